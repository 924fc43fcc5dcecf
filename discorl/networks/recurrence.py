"""Recurrent state of a network: carried from step to step, and zero where an episode begins."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from discorl.types import Array, Params, PyTree, Trajectory, UserError


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """The recurrent part of a network, between the observations and everything else.

    The rest of the network reads its features instead of observations. Computation that does not
    depend on the state belongs in `encode`, which is called once for all steps of a trajectory.
    """

    state: PyTree  # shapes and dtypes for one environment: a pytree of `jax.ShapeDtypeStruct`
    # (params, observations [N, ...]) -> inputs [N, ...]
    encode: Callable[[Params, PyTree], PyTree]
    # (params, inputs [B, ...], state [B, ...]) -> features [B, ...], the next state [B, ...]
    step: Callable[[Params, PyTree, PyTree], tuple[PyTree, PyTree]]


def blank_state(state: PyTree, count: int) -> PyTree:
    """The state at the start of an episode, [count, ...], from its shapes and dtypes."""
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), state)


def forget(state: PyTree, begins: Array) -> PyTree:
    """Resets the state, [B, ...], where an episode begins, [B] bool."""
    return jax.tree.map(
        lambda x: jnp.where(begins.reshape(-1, *[1] * (x.ndim - 1)), 0, x),
        state,
    )


def unroll(recurrence: Recurrence, params: Params, trajectory: Trajectory) -> PyTree:
    """Features at all steps of trajectories, [T+1, B, ...], starting from the stored state."""
    if len(jax.tree.leaves(trajectory.recurrent_state)) != len(jax.tree.leaves(recurrence.state)):
        raise UserError(
            "the network is recurrent, but the trajectory does not hold its state at the start: "
            f"`recurrent_state` is {trajectory.recurrent_state}; expected leaves [1, B, ...] of "
            f"{recurrence.state}"
        )
    begins = trajectory.begins()
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trajectory.observation)
    inputs = jax.tree.map(
        lambda x: x.reshape(*begins.shape, *x.shape[1:]), recurrence.encode(params, rows)
    )

    def step(state: PyTree, moment: tuple[PyTree, Array]) -> tuple[PyTree, PyTree]:
        inputs, begins = moment
        features, state = recurrence.step(params, inputs, forget(state, begins))
        return state, features

    start = jax.tree.map(lambda x: x[0], trajectory.recurrent_state)
    first = jax.tree.map(lambda x: x[0], (inputs, begins))
    # The stored state may have another precision than the parameters.
    like = jax.eval_shape(step, start, first)[0]
    start = jax.tree.map(lambda x, y: x.astype(y.dtype), start, like)
    return jax.lax.scan(step, start, (inputs, begins))[1]
