"""The compiled part of acting on the host.

A step calls the device once, for logits, to keep latency low. Noise is drawn before a rollout. The
host collects the trajectory and sends it to the device afterwards.
"""

import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl.agent import frames
from discorl.agent.frames import Frames
from discorl.envs.host.base import HostEnvironment
from discorl.networks.recurrence import blank_state, forget
from discorl.types import Array, Key, Params, PyTree, Trajectory

# Parameters, stacks [E, ...], recurrent state [E, ...] and action mask [E, A] -> logits [E, A] and
# the next recurrent state; see `discorl.agent.acting.Policy`.
Policy = Callable[[Params, PyTree, PyTree, Array | None], tuple[Array, PyTree]]

_ALIGNMENT = 64  # bytes; JAX's CPU backend copies other host arrays


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array that the CPU backend reads zero-copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


@dataclasses.dataclass(frozen=True)
class ActingPrograms:
    """Acting in E = `count` environments for T = `length` steps, as pure functions."""

    environment: HostEnvironment
    policy: Policy
    count: int
    length: int
    size: int = 1  # frames of a stack
    state: PyTree = ()  # shapes and dtypes of the recurrent state of one environment

    def blank(self) -> PyTree:
        """The recurrent state before the first rollout, [E, ...]."""
        return blank_state(self.state, self.count)

    def begin(self, recurrent_state: PyTree, age: Array, key: Key) -> tuple[PyTree, PyTree, Array]:
        """Starts a rollout from a recurrent state, [E, ...], and the ages of the frames, [E].

        Returns the recurrent state at the first observation, [E, ...], the same in the form of a
        trajectory, [1, E, ...], and noise for all actions, [T, E, A].
        """
        recurrent_state = forget(recurrent_state, age == 0)
        shape = (self.count, self.environment.num_actions)
        noise = jax.vmap(lambda t: jax.random.gumbel(jax.random.fold_in(key, t), shape))
        return (
            recurrent_state,
            jax.tree.map(lambda x: x[None], recurrent_state),
            noise(jnp.arange(self.length)),
        )

    def act(
        self,
        params: Params,
        recent: list[Array],
        age: Array,
        recurrent_state: PyTree,
        action_mask: Array | None,
    ) -> tuple[Array, PyTree]:
        """Logits, [E, A], and the next recurrent state.

        `recent` are the leaves of the last frames, [S, E, ...], newest last, whose `age` is [E].
        The mask, [E, A] bool, is None unless the environment has one.
        """
        frame = jax.tree.unflatten(jax.tree.structure(self.environment.observation), recent)
        if self.size == 1:
            stack = jax.tree.map(lambda x: x[0], frame)
        else:
            stack = frames.window(frame, age, self.size)
        return self.policy(params, stack, forget(recurrent_state, age == 0), action_mask)

    def page(self) -> PyTree:
        """Host memory for the frames of a rollout and the S-1 before it: [S+T, E, ...]."""
        moments = self.size + self.length

        def room(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
            array = aligned((moments, self.count, *leaf.shape), leaf.dtype)
            array[...] = 0
            return array

        return jax.tree.map(room, self.environment.observation)

    def masks(self, moments: int) -> np.ndarray | None:
        """Room for action masks, [moments, E, A] bool; None: the environment has none."""
        if not self.environment.has_action_mask:
            return None
        return np.ones((moments, self.count, self.environment.num_actions), bool)

    def example(self) -> Trajectory:
        """Zeros in the shapes and dtypes of a trajectory."""
        shape = (self.length, self.count)
        frame = jax.tree.map(jnp.asarray, self.page())
        age = jnp.zeros((self.length + 1, self.count), jnp.int32)
        return Trajectory(
            observation=frame if self.size == 1 else Frames(frame, age),
            action=jnp.zeros(shape, jnp.int32),
            reward=jnp.zeros(shape, jnp.float32),
            terminated=jnp.zeros(shape, bool),
            behaviour_logits=jnp.zeros((*shape, self.environment.num_actions)),
            truncated=jnp.zeros(shape, bool),
            filler=jnp.zeros(shape, bool),
            recurrent_state=jax.tree.map(lambda x: x[None], self.blank()),
            action_mask=jax.tree.map(jnp.asarray, self.masks(self.length + 1)),
        )


class CompiledPrograms:
    """Programs that several actors may share across threads; the first one compiles them."""

    def __init__(self, programs: ActingPrograms) -> None:
        self.programs = programs
        self.begin = jax.jit(programs.begin)
        # Puts small arrays on the device, several times as fast as `jax.device_put`.
        self.send = jax.jit(lambda arrays: arrays)
        self._lock = threading.Lock()
        self._act: Callable[..., tuple[Array, PyTree]] | None = None

    def act(self, params: Params) -> Callable[..., tuple[Array, PyTree]]:
        with self._lock:
            if self._act is None:
                programs = self.programs
                recent = [x[: programs.size] for x in jax.tree.leaves(programs.page())]
                age = np.zeros(programs.count, np.int32)
                recurrent_state = jax.eval_shape(programs.blank)
                mask = jax.tree.map(lambda x: x[0], programs.masks(1))
                lowered = jax.jit(programs.act).lower(params, recent, age, recurrent_state, mask)
                self._act = lowered.compile()
            return self._act
