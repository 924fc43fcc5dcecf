"""Acting in environments on the host: trajectories like those of `discorl.acting`.

Every observation goes to the device once. The program that chooses actions writes it, the actions
and their logits into a rollout there; rewards and ends of episodes follow when the rollout is full.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

from discorl import frames
from discorl.envs.host.base import (
    EnvironmentFailure,
    HostEnvironment,
    HostStep,
    HostVector,
    check_finite,
    check_observation,
    seeds_from,
)
from discorl.frames import Frames
from discorl.types import Array, Key, Params, PyTree, Trajectory

Policy = Callable[[Params, PyTree], Array]  # parameters, stacks [E, ...] -> logits [E, A]


@dataclasses.dataclass(frozen=True)
class Episode:
    """A finished episode."""

    index: int  # of its environment
    total: float  # undiscounted return
    length: int
    metrics: Mapping[str, float]  # by the names in `HostEnvironment.episode_metrics`


@dataclasses.dataclass(frozen=True)
class Rollout:
    """What `E` environments went through."""

    trajectory: Trajectory  # [T, E], on the device
    episodes: list[Episode]  # that finished
    steps: int  # taken in all environments; a filler is not one


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Page:
    """A rollout being written, on the device."""

    frame: PyTree  # [S-1+T+1, E, ...]
    age: Array  # [T+1, E] int32
    action: Array  # [T, E] int32
    logits: Array  # [T, E, A]


@dataclasses.dataclass(frozen=True)
class _Programs:
    """What is compiled; `size` frames make a stack."""

    policy: Policy
    observation: PyTree
    num_actions: int
    count: int
    length: int
    size: int

    def tail(self) -> PyTree:
        """Frames before the first rollout: [S-1, E, ...]."""
        return self._zeros(self.size - 1)

    def begin(self, tail: PyTree) -> _Page:
        """An empty page behind the frames that stacks reach back to."""
        shape = (self.length, self.count)
        page = self._zeros(self.length + 1)
        return _Page(
            frame=jax.tree.map(lambda x, y: jnp.concatenate([x, y]), tail, page),
            age=jnp.zeros((self.length + 1, self.count), jnp.int32),
            action=jnp.zeros(shape, jnp.int32),
            logits=jnp.zeros((*shape, self.num_actions)),
        )

    def act(
        self, page: _Page, params: Params, key: Key, observation: PyTree, age: Array, t: Array
    ) -> tuple[_Page, Array]:
        """Writes the observations of a moment, and the actions chosen: [E]."""
        page = self._observe(page, observation, age, t)
        recent = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, t, self.size), page.frame)
        stack = observation if self.size == 1 else frames.window(recent, age, self.size)
        logits = self.policy(params, stack)
        noise = jax.random.gumbel(jax.random.fold_in(key, t), logits.shape)
        action = jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
        page = dataclasses.replace(
            page, action=page.action.at[t].set(action), logits=page.logits.at[t].set(logits)
        )
        return page, action

    def finish(
        self, page: _Page, observation: PyTree, age: Array, ends: dict[str, Array]
    ) -> tuple[Trajectory, PyTree]:
        """The trajectory, and the frames that the next one reaches back to."""
        page = self._observe(page, observation, age, jnp.int32(self.length))
        tail = jax.tree.map(lambda x: x[self.length : self.length + self.size - 1], page.frame)
        observations = page.frame if self.size == 1 else Frames(page.frame, page.age)
        return Trajectory(
            observation=observations, action=page.action, behaviour_logits=page.logits, **ends
        ), tail

    def example(self) -> Trajectory:
        """Shapes and dtypes of a trajectory."""
        row = jax.tree.map(lambda x: x[0], self._zeros(1))
        flags = jnp.zeros((self.length, self.count), bool)
        ends = dict.fromkeys(("terminated", "truncated", "mask"), flags)
        ends["reward"] = flags.astype(jnp.float32)
        age = jnp.zeros(self.count, jnp.int32)
        return self.finish(self.begin(self.tail()), row, age, ends)[0]

    def _observe(self, page: _Page, observation: PyTree, age: Array, t: Array) -> _Page:
        frame = jax.tree.map(
            lambda rows, x: rows.at[t + self.size - 1].set(x), page.frame, observation
        )
        return dataclasses.replace(page, frame=frame, age=page.age.at[t].set(age))

    def _zeros(self, moments: int) -> PyTree:
        return jax.tree.map(
            lambda x: jnp.zeros((moments, self.count, *x.shape), x.dtype), self.observation
        )


def example(environment: HostEnvironment, count: int, length: int, size: int) -> Trajectory:
    """Shapes and dtypes of the trajectories that a `HostActor` with these settings makes."""
    programs = _programs(environment, _no_policy, count, length, size)
    return jax.eval_shape(programs.example)


def _no_policy(params: Params, observation: PyTree) -> Array:
    raise NotImplementedError


def _programs(
    environment: HostEnvironment, policy: Policy, count: int, length: int, size: int
) -> _Programs:
    return _Programs(policy, environment.observation, environment.num_actions, count, length, size)


class HostActor:
    """Acts in `count` environments, a rollout at a time.

    Where an environment needs a call of its own to begin an episode, the step is a filler, as after
    every truncation: its mask is 0 and the step before it is marked as truncated, whether or not it
    terminated the episode. A rollout may begin with a filler.
    """

    def __init__(
        self,
        environment: HostEnvironment,
        policy: Policy,
        *,
        count: int,
        length: int,
        seed: int,
        frame_stack: int = 1,
        render: bool = False,
    ) -> None:
        """Prepares; nothing runs before `start`.

        Args:
            environment: the task.
            policy: gives logits, from parameters and stacks of observations.
            count: number of environments, E.
            length: steps of a rollout, T.
            seed: of the environments.
            frame_stack: frames that the policy sees.
            render: whether pictures will be asked for.
        """
        self._environment = environment
        self._programs = _programs(environment, policy, count, length, frame_stack)
        self._length, self._count, self._oldest = length, count, frame_stack - 1
        self._seed, self._render = seed, render
        self._vector: HostVector | None = None
        self._taken = 0  # steps of the vector
        self._called_at: float | None = None  # when the environments were asked, if they are busy
        self._ended = np.zeros(count, bool)  # by the latest step, with a filler to follow
        self._age = np.zeros(count, np.int32)
        self._return = np.zeros(count)
        self._steps = np.zeros(count, np.int64)

    def start(self, params: Params) -> None:
        """Starts the environments and their first episodes, and compiles.

        Args:
            params: shapes and dtypes of the policy's parameters.
        """
        with self._failures_located():
            self._vector = self._environment.start(self._count, self._seed, render=self._render)
            found = self._vector.reset()
            expected = self._environment.observation
            self._observation = check_observation(found, expected, self._count)
        programs = self._programs
        self._tail = jax.jit(programs.tail)()
        self._begin, self._finish = jax.jit(programs.begin), jax.jit(programs.finish)
        key = jax.eval_shape(lambda: jax.random.key(0))
        arguments = (params, key, self._observation, self._age, np.int32(0))
        act = jax.jit(programs.act, donate_argnums=0)
        self._act = act.lower(jax.eval_shape(programs.begin, self._tail), *arguments).compile()

    def rollout(self, params: Params, key: Key) -> Rollout:
        """Acts for T steps.

        Args:
            params: of the policy.
            key: randomness of the actions.

        Raises:
            EnvironmentFailure: with the environment, its seed and the step in the message.
        """
        shape = (self._length, self._count)
        reward = np.zeros(shape, np.float32)
        terminated, truncated, mask = (np.zeros(shape, bool) for _ in range(3))
        episodes: list[Episode] = []
        page = self._begin(self._tail)
        for t in range(self._length):
            page, action = self._act(page, params, key, self._observation, self._age, np.int32(t))
            filler = self._ended
            step = self._step(np.asarray(action))
            mask[t] = ~filler
            reward[t] = np.where(filler, 0, step.reward)
            terminated[t] = step.terminated & ~filler
            ended = (step.terminated | step.truncated) & ~filler
            self._ended = ended & ~step.first
            truncated[t] = self._ended
            episodes += self._count_episodes(reward[t], mask[t], ended, step)
            self._age = np.where(step.first, 0, np.minimum(self._age + 1, self._oldest)).astype(
                np.int32
            )
        ends = {
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "mask": mask,
        }
        trajectory, self._tail = self._finish(page, self._observation, self._age, ends)
        return Rollout(trajectory, episodes, int(mask.sum()))

    def under_way(self) -> list[Episode]:
        """The unfinished episodes as they stand; to be asked between two rollouts."""
        return [
            Episode(i, float(self._return[i]), int(self._steps[i]), {}) for i in range(self._count)
        ]

    def render(self) -> np.ndarray | None:
        """A picture of the first environment."""
        if self._vector is None:
            return None
        with self._failures_located():  # such as a missing package to draw with
            return self._vector.render()

    def close(self) -> None:
        """Ends the environments."""
        vector, self._vector = self._vector, None
        if vector is not None:
            vector.close()

    @property
    def timeout(self) -> float:
        """Seconds after which the environments count as hung."""
        return self._environment.timeout

    def hung(self) -> EnvironmentFailure | None:
        """The failure to report if the environments have not answered in time."""
        called_at, limit = self._called_at, self._environment.timeout
        if called_at is None or time.monotonic() - called_at < limit:
            return None
        return self._located(EnvironmentFailure(f"did not answer within {limit:g} s"))

    def _step(self, action: np.ndarray) -> HostStep:
        assert self._vector is not None
        self._taken += 1
        with self._failures_located():
            step = self._vector.step(action)
            self._observation = check_observation(
                step.observation, self._environment.observation, self._count
            )
            for name in ("reward", "terminated", "truncated", "first"):
                shape = np.shape(getattr(step, name))
                if shape != (self._count,):
                    raise EnvironmentFailure(
                        f"returned {name} of shape {shape}; expected {(self._count,)}"
                    )
            check_finite(step.reward, "a reward")
            unseen = np.asarray(step.truncated) & step.first
            if unseen.any():  # what would be bootstrapped from is not there
                message = "began an episode in place of a truncated one's last observation"
                raise EnvironmentFailure(message, int(np.argmax(unseen)))
        return step

    def _count_episodes(
        self, reward: np.ndarray, real: np.ndarray, ended: np.ndarray, step: HostStep
    ) -> list[Episode]:
        self._return += reward
        self._steps += real
        finished = []
        for index in np.flatnonzero(ended).tolist():
            metrics = {name: float(column[index]) for name, column in step.metrics.items()}
            total, length = float(self._return[index]), int(self._steps[index])
            finished.append(Episode(index, total, length, metrics))
        self._return[ended] = 0
        self._steps[ended] = 0
        return finished

    @contextmanager
    def _failures_located(self) -> Iterator[None]:
        self._called_at = time.monotonic()
        try:
            yield
        except EnvironmentFailure as error:
            raise self._located(error) from error
        except Exception as error:
            failure = EnvironmentFailure(f"raised {type(error).__name__}: {error}")
            raise self._located(failure) from error
        finally:
            self._called_at = None

    def _located(self, failure: EnvironmentFailure) -> EnvironmentFailure:
        seeds, index = seeds_from(self._seed, self._count), failure.index
        who = (
            f"environment {index} (seed {seeds[index]})"
            if index is not None
            else f"one of the environments (seeds {seeds[0]} to {seeds[-1]})"
        )
        step = f"step {self._taken}" if self._taken else "the start"
        return EnvironmentFailure(
            f"{self._environment.name}: {who} failed at {step}: it {failure}", index
        )
