"""The interface of networks."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from discorl.networks.layers import take_action
from discorl.networks.recurrence import Recurrence, blank_state, unroll
from discorl.types import Array, Key, Outputs, OutputSpec, Params, PyTree, Trajectory, UserError


@dataclasses.dataclass(frozen=True)
class Parts:
    """A network in three parts, so that a learner computes only what it needs.

    A loss reads the outputs of the actions taken, while targets read those of all actions. The
    split lets gradients flow through the former alone. The latter, which are large, can be computed
    a few rows at a time.
    """

    # (params, observations [N, ...]) -> state outputs [N, ...], and a root that the others read
    observe: Callable[[Params, PyTree], tuple[Outputs, PyTree]]
    # (params, root) -> action outputs [N, A, ...]
    all_actions: Callable[[Params, PyTree], Outputs]
    # (params, root, actions [N]) -> action outputs [N, ...] of those actions
    taken_actions: Callable[[Params, PyTree, Array], Outputs]


@dataclasses.dataclass(frozen=True)
class Network:
    """A network as a pure pair of functions; any library's module will do.

    `init(key, observations)` makes parameters from a batch of observations [N, ...], and
    `apply(params, observations)` yields every output of the rule's `OutputSpec`: state outputs as
    [N, *shape], action outputs as [N, A, *shape].

    A recurrent network also has a `recurrence`, which turns observations into features. `apply` and
    `parts` then read those features.
    """

    init: Callable[[Key, PyTree], Params]
    apply: Callable[[Params, PyTree], Outputs]
    parts: Parts | None = None
    recurrence: Recurrence | None = None
    # (params, observations [N, ...]) -> features [N, F] that all heads read, for analyses only
    torso: Callable[[Params, PyTree], Array] | None = None

    @property
    def state(self) -> PyTree:
        """Shapes and dtypes of one environment's recurrent state; () if there is none."""
        return () if self.recurrence is None else self.recurrence.state

    def advance(self, params: Params, observation: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
        """Features of observations [B, ...], and the next state, [B, ...]."""
        if self.recurrence is None:
            return observation, state
        inputs = self.recurrence.encode(params, observation)
        return self.recurrence.step(params, inputs, state)

    def unroll(self, params: Params, trajectory: Trajectory) -> PyTree:
        """Features of all moments of trajectories, [T+1, B, ...]."""
        if self.recurrence is None:
            return trajectory.observation
        return unroll(self.recurrence, params, trajectory)


def parts_of(network: Network, spec: OutputSpec) -> Parts:
    """The network's own parts; without those, parts derived from `apply`."""
    if network.parts is not None:
        return network.parts

    def observe(params: Params, observation: PyTree) -> tuple[Outputs, PyTree]:
        outputs = network.apply(params, observation)
        return {n: outputs[n] for n in spec.state}, {n: outputs[n] for n in spec.action}

    def all_actions(params: Params, root: PyTree) -> Outputs:
        return root

    def taken_actions(params: Params, root: PyTree, action: Array) -> Outputs:
        return {name: take_action(output, action) for name, output in root.items()}

    return Parts(observe, all_actions, taken_actions)


def check_outputs(network: Network, spec: OutputSpec, params: Params, observation: PyTree) -> None:
    """Raises a `UserError` if the network does not yield what the rule asks for.

    `observation` is a batch, [N, ...].
    """
    rows = jax.tree.leaves(observation)[0].shape[0]
    state = blank_state(network.state, rows)
    features, _ = jax.eval_shape(network.advance, params, observation, state)
    outputs: Any = jax.eval_shape(network.apply, params, features)
    expected = {name: (rows, *shape) for name, shape in spec.state.items()}
    expected |= {name: (rows, spec.num_actions, *shape) for name, shape in spec.action.items()}
    if not isinstance(outputs, dict):
        raise UserError(
            f"the network's apply returned a {type(outputs).__name__}; "
            f"a dict with the outputs {sorted(expected)} is needed"
        )
    for name, shape in expected.items():
        if name not in outputs:
            raise UserError(
                f"the network yields no output '{name}', which the rule needs with shape "
                f"{shape}; it yields {sorted(outputs)}"
            )
        if tuple(outputs[name].shape) != shape:
            raise UserError(
                f"the network's output '{name}' has shape {tuple(outputs[name].shape)} for "
                f"{rows} observations; the rule needs {shape}"
            )
