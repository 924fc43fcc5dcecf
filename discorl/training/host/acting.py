"""Acting in environments on the host: trajectories like those of `discorl.agent.acting`."""

import copy
import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import jax
import numpy as np

from discorl.agent.frames import Frames
from discorl.envs.host.base import (
    EnvironmentFailure,
    HostStep,
    HostVector,
    as_declared,
    check_observation,
    not_finite,
    seeds_from,
)
from discorl.training.host.programs import ActingPrograms, CompiledPrograms, aligned
from discorl.training.host.rollout import Episode, RolloutBuffer, RunningEpisodes
from discorl.types import Key, Params, PyTree, Trajectory, UserError
from discorl.types.imports import ANYTHING


@dataclasses.dataclass(frozen=True)
class Rollout:
    """The experience of `E` environments in one rollout."""

    trajectory: Trajectory  # [T, E], on the device
    episodes: list[Episode]  # finished ones
    steps: int  # over all environments, without fillers


class HostActor:
    """Acts in `count` environments, one rollout at a time.

    If an environment needs a separate call to reset, that step is a filler, as after every
    truncation: the step before it is marked as truncated, whether or not it terminated the episode.
    A rollout may start with a filler.
    """

    def __init__(self, programs: ActingPrograms, seed: int, *, render: bool = False) -> None:
        self._environment, self._expected = programs.environment, programs.environment.observation
        self._programs = CompiledPrograms(programs)
        self._length, self._count = programs.length, programs.count
        self._oldest = max(1, programs.size - 1)  # only first observations have age 0
        self._render = render
        self._reset(seed)

    def with_seed(self, seed: int) -> Self:
        """An actor in other environments that shares the compiled programs."""
        other = copy.copy(self)
        other._reset(seed)
        return other

    def _reset(self, seed: int) -> None:
        count = self._count
        self._seed = seed
        self._vector: HostVector | None = None
        self._taken = 0  # steps of the vector
        self._called_at: float | None = None  # start of the pending call to the environments
        self._running = RunningEpisodes.at_start(count)
        self._age = np.zeros(count, np.int32)

    def start(self, params: Params) -> None:
        """Starts environments and their first episodes, and compiles for these parameters."""
        with self._failures_located():
            self._vector = self._environment.start(self._count, self._seed, render=self._render)
            found = self._vector.reset()
            self._observation = check_observation(found, self._expected, self._count)
            self._mask = self._ask_mask(np.zeros(self._count, bool))
        programs = self._programs.programs
        self._page, self._recurrent_state = programs.page(), programs.blank()
        for x, seen in zip(*map(jax.tree.leaves, (self._page, self._observation)), strict=True):
            x[-1] = seen
        self._act = self._programs.act(params)

    def rollout(self, params: Params, key: Key) -> Rollout:
        """Acts for T steps.

        Raises:
            EnvironmentFailure: with the environment, its seed and the step in the message.
        """
        size = self._programs.programs.size
        recurrent_state, start, drawn = self._programs.begin(self._recurrent_state, self._age, key)
        noise, page = np.asarray(drawn), self._turn_page()
        leaves, buffer = jax.tree.leaves(page), RolloutBuffer(self._length, self._count)
        logits, action = np.empty_like(noise), np.empty(noise.shape[:2], np.int32)
        masks = self._programs.programs.masks(self._length + 1)
        if masks is not None:
            masks[0] = self._mask
        age = np.zeros((self._length + 1, self._count), np.int32)
        age[0], before = self._age, self._taken
        try:
            for t in range(self._length):
                answer, recurrent_state = self._act(
                    params,
                    [x[t : t + size] for x in leaves],
                    age[t],
                    recurrent_state,
                    None if masks is None else masks[t],
                )
                logits[t] = np.asarray(answer)
                action[t] = (logits[t] + noise[t]).argmax(axis=-1)  # the Gumbel-max trick
                buffer.add(t, self._step(action[t]))
                for x, seen in zip(leaves, jax.tree.leaves(self._observation), strict=True):
                    x[t + size] = seen
                if masks is not None:
                    masks[t + 1] = self._mask
                np.add(age[t], 1, out=age[t + 1], where=~buffer.first[t])
        finally:  # also if a step fails: an earlier NaN may be the cause
            self._check(buffer, leaves, before)
        age = np.minimum(age, self._oldest)
        transitions, episodes, self._running = buffer.finish(self._running)
        self._recurrent_state, self._age, self._page = recurrent_state, age[-1], page
        # The device may still read these arrays, so they are not written to again.
        arrays = {"action": action, "behaviour_logits": logits, **transitions}
        sent, ages, action_mask = self._programs.send((arrays, age, masks))
        seen = jax.device_put(page)
        observation = seen if size == 1 else Frames(seen, ages)
        trajectory = Trajectory(
            observation=observation, recurrent_state=start, action_mask=action_mask, **sent
        )
        return Rollout(trajectory, episodes, int((~transitions["filler"]).sum()))

    def _turn_page(self) -> PyTree:
        """A new page that starts with the last frames of the old one."""
        size = self._programs.programs.size

        def turn(old: np.ndarray) -> np.ndarray:
            new = aligned(old.shape, old.dtype)
            new[:size] = old[-size:]
            return new

        return jax.tree.map(turn, self._page)

    def running_episodes(self) -> list[Episode]:
        """The unfinished episodes; call it between two rollouts."""
        return self._running.as_list()

    def render(self, *, end: bool = False) -> np.ndarray | None:
        """A frame of the first environment, or of the end of its latest episode, if there is one.

        See `HostVector.render` and `HostVector.render_end`.
        """
        if self._vector is None:
            return None
        with self._failures_located():  # such as a missing package to draw with
            return self._vector.render_end() if end else self._vector.render()

    def close(self) -> None:
        vector, self._vector = self._vector, None
        if vector is not None:
            vector.close()

    @property
    def timeout(self) -> float:
        return self._environment.timeout

    def hung(self) -> EnvironmentFailure | None:
        """The failure to report if the environments have not responded in time."""
        called_at, limit = self._called_at, self._environment.timeout
        if called_at is None or time.monotonic() - called_at < limit:
            return None
        return self._located(EnvironmentFailure(f"did not answer within {limit:g} s"))

    def _step(self, action: np.ndarray) -> HostStep:
        assert self._vector is not None
        self._taken += 1
        with self._failures_located():
            step = self._vector.step(action)
            self._observation = as_declared(step.observation, self._expected, self._count)
            for name in ("reward", "terminated", "truncated", "first"):
                shape = np.shape(getattr(step, name))
                if shape != (self._count,):
                    raise EnvironmentFailure(
                        f"returned {name} of shape {shape}; expected {(self._count,)}"
                    )
            self._mask = self._ask_mask((step.terminated | step.truncated) & ~step.first)
        return step

    def _ask_mask(self, over: np.ndarray) -> np.ndarray | None:
        """Legal actions at the latest observations, [E, A] bool, if the environment has a mask."""
        if not self._environment.has_action_mask:
            return None
        assert self._vector is not None
        mask = np.asarray(self._vector.action_mask(), bool)
        check_mask(mask, (self._count, self._environment.num_actions), over)
        return mask

    def _check(self, buffer: RolloutBuffer, leaves: list[np.ndarray], before: int) -> None:
        """Checks the numbers of a whole rollout, which is far cheaper than checking every step.

        `leaves` are the observations, [S+T, E, ...], and `before` the steps before the rollout.
        """
        seen = [x[-self._length :][: buffer.written] for x in leaves if x.dtype.kind == "f"]
        checks = [(not_finite("an observation"), np.isfinite(x)) for x in seen] + buffer.checks()
        found = [
            (*np.argwhere(~good)[0, :2].tolist(), message)
            for message, good in checks
            if not good.all()
        ]
        if found:
            t, index, message = min(found)
            self._taken = before + t + 1
            raise self._located(EnvironmentFailure(message, index))

    @contextmanager
    def _failures_located(self) -> Iterator[None]:
        self._called_at = time.monotonic()
        try:
            yield
        except EnvironmentFailure as error:
            raise self._located(error) from error
        except UserError:
            raise
        except ANYTHING as error:
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


def check_mask(mask: np.ndarray, expected: tuple[int, int], over: np.ndarray) -> None:
    """Rejects an action mask whose shape is not [E, A], or without a legal action.

    No action needs to be legal where an episode is `over`, [E] bool.
    """
    if mask.shape != expected:
        raise EnvironmentFailure(
            f"returned an action mask of shape {mask.shape}; expected {expected}"
        )
    if not (mask.any(axis=1) | over).all():
        raise EnvironmentFailure("returned an action mask without a legal action within an episode")
