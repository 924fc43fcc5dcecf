"""The interface of update rules.

A rule turns what an agent produced along a trajectory into *targets*, and defines the loss that
moves the agent's outputs toward them. It never sees an environment, an observation or a network,
so one rule trains any agent. docs/how-to/writing-a-rule.md shows how to write one.
"""

import abc
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from discorl.rules import masks
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
from discorl.types.validation import Fields

# For recipes of rules that have no use for the decay and schedule a preset chose for another rule.
PLAIN: Mapping[str, Any] = {"schedule": "constant", "warmup_steps": 0, "weight_decay": 0.0}


@dataclasses.dataclass(frozen=True)
class Rule(abc.ABC):
    """An update rule as pure functions of its parameters and state.

    The fields of a rule are static settings. Its learned parameters, `eta`, are passed as the first
    argument, so that discovery can differentiate with respect to them.
    """

    name: ClassVar[str]
    # Training settings that suit this rule better than those of a preset.
    recipe: ClassVar[Mapping[str, Any]] = {}
    # More of them for the tasks of single presets, by name; a class with a recipe of its own does
    # not inherit them. Settings of the rule itself, unless the user gives them, are a mapping under
    # "rule". Those for MinAtar come from `benchmarks/recipe_search.py`.
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    discount: float = 0.997

    # Gradient steps that one call of `targets` serves: `epochs` passes over `minibatches` parts.
    epochs: int = dataclasses.field(default=1, kw_only=True)
    minibatches: int = dataclasses.field(default=1, kw_only=True)

    # Scale of perturbations in evolution by the first name in the path of a part of `eta`: 1 where
    # nothing is said, and 0 for parts that are not evolved.
    noise_scales: ClassVar[Mapping[str, float]] = {}

    # EMA decay of the target network at each update; None: the rule reads no target network.
    target_decay: ClassVar[float | None] = None

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "name"):
            cls.name = cls.__name__

    def __post_init__(self) -> None:
        fields = self._fields()
        fields.number("discount", least=0, most=1)
        fields.integer("epochs", "minibatches", least=1)

    def _fields(self) -> Fields:
        """Checks of settings, whose messages name the rule."""
        return Fields(self, self.name)

    @abc.abstractmethod
    def outputs(self, num_actions: int) -> OutputSpec:
        """The outputs that an agent must produce to be trained by this rule."""

    def init_params(self, key: Key) -> Params:
        """Parameters `eta` of a new rule; hand-designed rules have none."""
        return ()

    def init_state(self, lifetime: Array) -> PyTree:
        """The rule's state at the beginning of an agent's life, `lifetime` updates, [] int32."""
        return ()

    def step_size(self, eta: Params, state: PyTree) -> Array | None:
        """What the learning rate is multiplied by in one update.

        Args:
            eta: the rule's parameters.
            state: the rule's state before the update.

        Returns:
            the multiplier, []; None: the learning rate stays as it is.
        """
        return None

    def reward_scale(self, span: Callable[[], float | None]) -> float:
        """What rewards are multiplied by for learning where the user does not say.

        Args:
            span: tells the optimal less the random return of the environment; None if unknown.
        """
        return 1.0

    def mask_actions(self, outputs: Outputs, legal: Array) -> Outputs:
        """Rules out illegal actions, before anything else reads the outputs.

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
        """What `targets` needs to know of one output, computed row by row.

        Large outputs are produced and summarised a few rows at a time and never stored whole.

        Args:
            eta: the rule's parameters.
            name: name of the output.
            output: the output's values, [N, ...] or, for per-action outputs, [N, A, ...].

        Returns:
            The summary, [N, ...]; None where `targets` never reads this output.
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
            target: the same of the target network; empty if the rule has none.

        Returns:
            targets, arrays [T, B, ...]; the new state; metrics.
        """

    @abc.abstractmethod
    def loss(self, outputs: Outputs, targets: PyTree, trajectory: Trajectory) -> dict[str, Array]:
        """Terms of the loss at each step, already weighted; their sum is what is minimised.

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
        """What discovery adds to its loss for the targets of an update, to keep them sound.

        Args:
            targets: from `targets`; gradients with respect to `eta` flow through them.
            trajectory: the batch of experience, [T, B].
            online: what `targets` was given.
            target: likewise.

        Returns:
            the weighted penalty, []; by default zero.
        """
        return jnp.zeros(())

    def output_penalty(self, outputs: Outputs, weight: Array) -> tuple[Array, Metrics]:
        """What discovery adds to its loss for the outputs of an agent that the rule has trained.

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

        Equal input gives equal bytes, and a failure leaves the old file.

        Args:
            path: the file to write or replace.
            eta: the rule's parameters.
            provenance: what to keep of the rule's origin, as JSON values.

        Raises:
            UserError: the parameters are not those of the rule, or the file cannot be written.
        """
        cls = type(self)
        with naming(path):
            if "." in cls.__qualname__:
                raise UserError(
                    f"{cls.__qualname__} cannot be found by name; expected a class that is defined "
                    "at the top of a module"
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
        with jax.enable_x64(False):  # files hold float32, whatever the precision of the process
            return jax.eval_shape(self.init_params, jax.random.key(0))


def kind_of(cls: type[Rule]) -> str:
    """How a file names a class: by the name of a rule of discorl's own, or by where it is."""
    if cls.__module__.startswith(f"{__package__}."):
        return cls.name
    return f"{cls.__module__}:{cls.__qualname__}"
