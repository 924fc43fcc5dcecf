"""Frame stacking: networks see the last few frames, but a trajectory stores each frame once.

A trajectory of `T` steps with stacks of `S` holds `S - 1 + T + 1` frames: its own, and the earlier
ones that its first stacks include. Stacks are formed right before the network. The age of a frame
is the number of its predecessors in the episode. A stack that reaches back before the start of the
episode repeats its first frame.
"""

import dataclasses
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.base import Environment, Step
from discorl.types import Array, Key, PyTree, Trajectory

State = TypeVar("State")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frames:
    """Single frames, and how to stack them.

    Leaves of `frame` are [M + S - 1, B, ...] for stacks at M time steps.
    """

    frame: PyTree
    age: Array  # [M, B] int32, frames before this one in its episode, at most S - 1


def stacked(observation: PyTree, size: int) -> PyTree:
    """Shapes and dtypes of a stack of `size` frames.

    The last axis grows; images without channels, [height, width], get a channel axis.
    """
    if size == 1:
        return observation

    def grow(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        shape = leaf.shape if len(leaf.shape) in (1, 3) else (*leaf.shape, 1)
        return jax.ShapeDtypeStruct((*shape[:-1], shape[-1] * size), leaf.dtype)

    return jax.tree.map(grow, observation)


def expand(frames: Frames, size: int) -> PyTree:
    """The stacks of frames, [M, B, ...], oldest frame first."""
    moments, count = frames.age.shape
    oldest = size - 1 - jnp.minimum(frames.age, size - 1)
    within = jnp.maximum(jnp.arange(size), oldest[..., None])  # [M, B, S], each from 0 to S - 1
    row = jnp.arange(moments)[:, None, None] + within
    column = jnp.arange(count)[:, None]

    def gather(leaf: Array) -> Array:
        picked = leaf.at[row, column].get(mode="promise_in_bounds")  # [M, B, S, ...]
        if leaf.ndim - 2 not in (1, 3):
            picked = picked[..., None]
        last = jnp.moveaxis(picked, 2, -2)  # [M, B, ..., S, C]
        return last.reshape(*last.shape[:-2], -1)

    return jax.tree.map(gather, frames.frame)


def window(frame: PyTree, age: Array, size: int) -> PyTree:
    """Stacks at one time step, leaves [N, ...], from the last `size` frames, leaves [size, N, ...].

    The newest frame comes last; `age`, [N], is its age.
    """
    return jax.tree.map(lambda x: x[0], expand(Frames(frame, age[None]), size))


def push(frames: Frames, observation: PyTree, size: int) -> Frames:
    """The last `size` frames, leaves [size, ...], after another one."""
    frame = jax.tree.map(
        lambda old, new: jnp.concatenate([old[1:], new[None]]), frames.frame, observation
    )
    return Frames(frame, jnp.minimum(frames.age + 1, size - 1))


def with_stacks(trajectory: Trajectory, size: int) -> Trajectory:
    """The trajectory with stacks as observations, for the learner."""
    if size == 1:
        return trajectory
    return dataclasses.replace(trajectory, observation=expand(trajectory.observation, size))


# --- environments written in JAX ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FrameStack(Environment[tuple[State, Frames]], Generic[State]):
    """An environment that returns its last `size` frames, as `Frames` with leaves [size, ...]."""

    inner: Environment[State]
    size: int

    @property
    def num_actions(self) -> int:  # type: ignore[override]
        return self.inner.num_actions

    @property
    def resets_at_once(self) -> int | None:  # type: ignore[override]
        return self.inner.resets_at_once

    @property
    def observation(self) -> Frames:
        frame = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.size, *x.shape), x.dtype), self.inner.observation
        )
        return Frames(frame, jax.ShapeDtypeStruct((), jnp.int32))  # type: ignore[arg-type]

    def reset(self, key: Key) -> tuple[tuple[State, Frames], Frames]:
        """Starts an episode; its first frame is repeated."""
        state, observation = self.inner.reset(key)
        frame = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.size, *jnp.shape(x))), observation)
        frames = Frames(frame, jnp.int32(0))
        return (state, frames), frames

    def step(
        self, state: tuple[State, Frames], action: Array, key: Key
    ) -> tuple[tuple[State, Frames], Step]:
        inner, frames = state
        inner, step = self.inner.step(inner, action, key)
        frames = push(frames, step.observation, self.size)
        return (inner, frames), dataclasses.replace(step, observation=frames)

    def action_mask(self, state: tuple[State, Frames]) -> Array | None:
        return self.inner.action_mask(state[0])

    def render(self, state: tuple[State, Frames]) -> np.ndarray | None:
        return self.inner.render(state[0])


def stacks_of(observation: Frames, size: int) -> PyTree:
    """Stacks from the observations of `FrameStack`: [N, size, ...] -> [N, ...]."""
    frame = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), observation.frame)
    return window(frame, observation.age, size)


def without_repeats(trajectory: Trajectory) -> Trajectory:
    """A trajectory collected in `FrameStack`, with every frame stored once."""
    frames = trajectory.observation

    def once(leaf: Array) -> Array:  # [T+1, B, S, ...] -> [S-1+T+1, B, ...]
        before = jnp.moveaxis(leaf[0, :, :-1], 1, 0)
        return jnp.concatenate([before, leaf[:, :, -1]])

    once_each = Frames(jax.tree.map(once, frames.frame), frames.age)
    return dataclasses.replace(trajectory, observation=once_each)
