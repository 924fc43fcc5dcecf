"""The interface of update rules.

A rule turns an agent's outputs along a trajectory into *targets*, and defines the loss that moves
the outputs toward them. It never sees an environment, an observation or a network, so one rule
trains any agent. docs/how-to/writing-a-rule.md shows how to write one.
"""

import abc
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import masks, searched
from discorl.rules.files import trees
from discorl.runs import npz
from discorl.runs.files import naming
from discorl.types import (
    Array,
    Key,
    Metrics,
    Outputs,
    OutputSpec,
    Params,
    PyTree,
    Trajectory,
    UserError,
)
from discorl.types.validation import Fields, bounded

# For recipes: undoes the weight decay and schedule that a preset chose for another rule.
PLAIN: Mapping[str, Any] = {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0}


@dataclasses.dataclass(frozen=True)
class Rule(abc.ABC):
    """An update rule as pure functions of its parameters and state.

    The fields of a rule are static settings. Its learned parameters, `eta`, are passed as the first
    argument, so that discovery can differentiate with respect to them.
    """

    name: ClassVar[str]
    # Training settings of this rule that replace those of a preset.
    recipe: ClassVar[Mapping[str, Any]] = {}
    # Further settings for single presets, by name; a class with its own recipe does not inherit
    # them. A mapping under "rule" holds defaults of the rule's own settings. A reward scale is
    # multiplied by the rule's `reward_unit`.
    recipes: ClassVar[searched.Recipes] = {}

    discount: float = bounded(0.997, least=0, most=1)

    # Gradient steps per call of `targets`: `epochs` passes over `minibatches` parts of the batch.
    epochs: int = dataclasses.field(default=1, kw_only=True)
    minibatches: int = dataclasses.field(default=1, kw_only=True)

    # Scales of evolution's perturbations, by the top-level key of `eta`; by default 1. Parts with
    # scale 0 are not evolved.
    noise_scales: ClassVar[Mapping[str, float]] = {}

    # EMA decay of the target network at each update; None: the rule reads no target network.
    target_decay: ClassVar[float | None] = None

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "name"):
            cls.name = cls.__name__

    def __post_init__(self) -> None:
        fields = self._fields().declared()
        fields.integer("epochs", "minibatches", least=1)

    def _fields(self) -> Fields:
        """Checks of the settings; messages name the rule."""
        return Fields(self, self.name)

    @abc.abstractmethod
    def outputs(self, num_actions: int) -> OutputSpec:
        """The outputs that an agent must produce to be trained by this rule."""

    def init_params(self, key: Key) -> Params:
        """Parameters `eta` of a new rule; hand-designed rules have none."""
        return ()

    def init_state(self, lifetime: Array) -> PyTree:
        """The rule's state at the start of an agent's life of `lifetime` updates, [] int32."""
        return ()

    def step_size(self, eta: Params, state: PyTree) -> Array | None:
        """Multiplier of the learning rate in one update.

        Args:
            eta: the rule's parameters.
            state: the rule's state before the update.

        Returns:
            the multiplier, []; None: the learning rate is unchanged.
        """
        return None

    @property
    def reward_unit(self) -> float:
        """Rewards of this size mean to this rule what rewards of 1 mean to others of its class."""
        return 1.0

    def reward_scale(self, span: Callable[[], float | None]) -> float:
        """Default factor on the rewards that an agent learns from.

        Args:
            span: returns the environment's optimal minus random return; None if unknown.
        """
        return 1.0

    def mask_actions(self, outputs: Outputs, legal: Array) -> Outputs:
        """Masks illegal actions before anything else reads the outputs.

        Args:
            outputs: the agent's `state` outputs, [..., *shape].
            legal: the action mask, [..., A] bool.

        Returns:
            the outputs; by default, the logits of illegal actions are `masks.ILLEGAL`.
        """
        if "logits" not in outputs:
            raise UserError(
                f"{self.name} has no output 'logits', and the environment has action masks; "
                "expected a rule that overrides Rule.mask_actions"
            )
        return outputs | {"logits": masks.mask_logits(outputs["logits"], legal)}

    def policy(self, outputs: Outputs) -> Array:
        """Logits of the policy that an agent acts by.

        Args:
            outputs: the agent's `state` outputs, [..., *shape].

        Returns:
            logits, [..., A]; by default the output of that name.
        """
        return outputs["logits"]

    def summarise(self, eta: Params, name: str, output: Array) -> Array | None:
        """Reduces one output, row by row, to what `targets` reads.

        Large outputs are computed and summarised a few rows at a time and never stored whole.

        Args:
            eta: the rule's parameters.
            name: name of the output.
            output: the output's values, [N, ...] or, for per-action outputs, [N, A, ...].

        Returns:
            The summary, [N, ...]; None if `targets` does not read this output.
        """
        return output

    @abc.abstractmethod
    def targets(
        self,
        eta: Params,
        state: PyTree,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
    ) -> tuple[PyTree, PyTree, Metrics]:
        """Computes where the agent's outputs should move.

        Args:
            eta: the rule's parameters.
            state: the rule's state.
            trajectory: a batch of experience, [T, B].
            online: summaries of the agent's outputs, [T+1, B, ...].
            target: likewise for the target network; empty if the rule has none.

        Returns:
            targets, arrays [T, B, ...]; the new state; metrics.
        """

    @abc.abstractmethod
    def loss(self, outputs: Outputs, targets: PyTree, trajectory: Trajectory) -> dict[str, Array]:
        """Weighted terms of the loss at each step; their sum is minimised.

        Args:
            outputs: the agent's outputs with `state` outputs at all moments, [T+1, B, ...], and
                `action` outputs of the actions taken, [T, B, ...].
            targets: from `targets`.
            trajectory: the batch of experience, [T, B].

        Returns:
            named terms, each [T, B].
        """

    def penalty(
        self, targets: PyTree, trajectory: Trajectory, online: Outputs, target: Outputs
    ) -> Array:
        """Regulariser of an update's targets, which discovery adds to its loss.

        Args:
            targets: from `targets`; gradients with respect to `eta` flow through them.
            trajectory: the batch of experience, [T, B].
            online: the summaries that `targets` was given.
            target: likewise.

        Returns:
            the weighted penalty, []; by default zero.
        """
        return jnp.zeros(())

    def output_penalty(self, outputs: Outputs, weight: Array) -> tuple[Array, Metrics]:
        """Regulariser of a trained agent's outputs, which discovery adds to its loss.

        Args:
            outputs: the agent's outputs on fresh experience, as `loss` reads them.
            weight: of each moment, 0 at fillers, [T+1, B].

        Returns:
            the weighted penalty, [], by default zero; metrics.
        """
        return jnp.zeros(()), {}

    # --- the rule as a file -----------------------------------------------------------------------

    def save(
        self,
        path: str | os.PathLike[str],
        eta: Params,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the rule to an npz file, which `discorl.load_rule` reads back.

        Equal input gives equal bytes. If writing fails, an existing file is kept.

        Args:
            path: the file to write or replace.
            eta: the rule's parameters.
            provenance: the rule's origin, as JSON values.

        Raises:
            UserError: the parameters do not fit the rule, or the file cannot be written.
        """
        cls = type(self)
        with naming(path):
            if "." in cls.__qualname__:
                raise UserError(
                    f"{cls.__qualname__} cannot be found by name; expected a class defined at the "
                    "top level of a module"
                )
            arrays = trees.flatten(eta)
            trees.unflatten(arrays, self._params_like())
            settings = trees.settings_of(self)
        metadata = {"kind": kind_of(cls), "settings": settings}
        npz.write(path, arrays, metadata | dict(provenance or {}))

    @classmethod
    def stored_settings(cls, archive: npz.Archive) -> dict[str, Any]:
        """The settings of a rule that `save` wrote, as arguments of the constructor."""
        return trees.read_settings(cls, archive.metadata)

    def stored_params(self, archive: npz.Archive) -> Params:
        """The parameters of a rule that `save` wrote, checked."""
        return trees.unflatten(archive.arrays, self._params_like())

    def _params_like(self) -> Params:
        with jax.enable_x64(False):  # files hold float32 at any precision of the process
            return jax.eval_shape(self.init_params, jax.random.key(0))


def summaries(rule: Rule, eta: Params, outputs: Outputs) -> Outputs:
    """The summaries of rows of outputs, without those that the rule does not read."""
    found = {name: rule.summarise(eta, name, output) for name, output in outputs.items()}
    return {name: summary for name, summary in found.items() if summary is not None}


def kind_of(cls: type[Rule]) -> str:
    """A class as a file names it: by its rule's name in discorl, else as `module:Class`."""
    if cls.__module__.startswith(f"{__package__}."):
        return cls.name
    return f"{cls.__module__}:{cls.__qualname__}"
