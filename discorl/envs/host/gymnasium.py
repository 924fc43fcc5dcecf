"""Environments with Gymnasium's interface: registered or the user's own, single or as vectors."""

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from discorl.envs.host.base import (
    HostEnvironment,
    HostStep,
    HostVector,
    Reader,
    seeds_from,
)
from discorl.envs.host.serial import Outcome
from discorl.envs.host.spaces import (
    ACTION_MASK,
    actions_of,
    arrangement_of,
    mask_in,
    observation_of,
    without_mask,
)
from discorl.envs.host.workers import vector_of
from discorl.types import PyTree, UserError, imports
from discorl.types.validation import integer


def names() -> Sequence[str]:
    """All registered identifiers, except those that only redirect to another package."""
    return sorted(
        identifier
        for identifier, spec in gymnasium.registry.items()
        if getattr(spec.entry_point, "__module__", None) != "gymnasium.envs"
    )


def names_for(item: str) -> Sequence[str]:
    """Like `names`, but imports the module of an item in Gymnasium's `MODULE:ID` notation first."""
    module, colon, _ = item.rpartition(":")
    if not colon:
        return names()
    imports.look_here()
    try:
        importlib.import_module(module)
    except imports.ANYTHING as error:
        raise imports.not_imported(module, error) from error
    return [f"{module}:{name}" for name in names()]


def make(
    item: str, *, bins: int | None = None, max_steps: int | None = None, workers: int = 0
) -> HostEnvironment:
    """Builds a registered environment.

    Args:
        item: such as `CartPole-v1`, or `ale_py:ALE/Pong-v5` to import a module first.
        bins: number of values that each dimension of a continuous action is discretised into.
        max_steps: a time limit that replaces the registered one.
        workers: worker processes; see `from_gymnasium`.
    """
    if max_steps is not None:
        integer("max_steps", max_steps, least=1, owner="gymnasium")

    def create(render: bool) -> gymnasium.Env:
        mode = {"render_mode": "rgb_array"} if render else {}  # not all environments accept it
        # Without Gymnasium's checker: results are checked here anyway.
        return gymnasium.make(item, max_episode_steps=max_steps, disable_env_checker=True, **mode)

    try:
        return from_gymnasium(create, name=f"gymnasium:{item}", bins=bins, workers=workers)
    except UserError:
        raise
    except Exception as error:  # a missing package, or raised by the environment
        reason = str(error) or type(error).__name__
        raise UserError(f"gymnasium:{item} cannot be made: {reason}") from error


def from_gymnasium(
    create: Callable[[bool], gymnasium.Env],
    *,
    name: str,
    bins: int | None = None,
    episode_metrics: tuple[str, ...] = (),
    workers: int = 0,
) -> HostEnvironment:
    """Adapts your own environment with Gymnasium's interface.

    Args:
        create: makes an environment; its argument says whether frames will be rendered.
        name: the name in messages.
        bins: number of values that each dimension of a continuous action is discretised into.
        episode_metrics: keys of numbers in `info` to report for every finished episode.
        workers: worker processes. 0 steps all environments in this process, which is faster if a
            step takes less than about 0.1 ms.
    """
    integer("workers", workers, least=0, owner=name)
    with contextlib.ExitStack() as stack:
        stack.callback(close_unused, env := create(False))
        parts = _spaces_of(env, "observation_space", "action_space", bins, name)
        masked = parts[-1] or _tells_mask(env, len(parts[-2]))
    return _Gymnasium(name, create, *parts[:-1], masked, episode_metrics, workers)


def _tells_mask(env: gymnasium.Env, num_actions: int) -> bool:
    """Whether `info` holds an action mask at the start of an episode."""
    with contextlib.suppress(Exception):  # reported when the environment is used
        mask_in(None, env.reset(seed=0)[1], num_actions)
        return True
    return False


def _spaces_of(
    env: gymnasium.Env | VectorEnv, seen: str, taken: str, bins: int | None, name: str
) -> tuple[PyTree, Reader, np.ndarray, bool]:
    """Observation specs, their reader, all actions, and whether observations hold a mask."""
    try:
        space, action_space = getattr(env, seen), getattr(env, taken)
    except Exception as error:  # also if there is none
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{name} needs {seen} and {taken}, but raised {reason}") from error
    actions = actions_of(action_space, bins, name)
    shown = without_mask(space, len(actions))
    return *observation_of(shown, name), actions, shown is not space


def close_unused(env: gymnasium.Env | VectorEnv) -> None:
    """Closes an unused environment, ignoring errors."""
    with contextlib.suppress(Exception):
        env.close()


@dataclasses.dataclass(frozen=True, eq=False)
class _Task(HostEnvironment):
    """How to make environments, read their observations and pass them actions."""

    name: str
    create: Callable[..., Any]
    spec: PyTree
    read: Reader  # of one environment's observation, or of a batch
    actions: np.ndarray  # [A, ...]
    has_action_mask: bool = False
    episode_metrics: tuple[str, ...] = ()

    @property
    def num_actions(self) -> int:  # type: ignore[override]
        return len(self.actions)

    @property
    def observation(self) -> PyTree:
        return self.spec


@dataclasses.dataclass(frozen=True, eq=False)
class _Gymnasium(_Task):
    workers: int = 0

    def start(self, count: int, seed: int, *, render: bool = False) -> HostVector:
        return vector_of(
            functools.partial(_Single, self, render),
            seeds_from(seed, count),
            observation=self.spec,
            workers=self.workers,
            timeout=self.timeout,
            read=self.read,
            mask=self.num_actions if self.has_action_mask else None,
        )


class _Single:
    """See `discorl.envs.host.serial.Single`."""

    def __init__(self, task: _Gymnasium, render: bool) -> None:
        self._metrics, self._has_mask = task.episode_metrics, task.has_action_mask
        self._env = task.create(render)
        self._arrange = arrangement_of(without_mask(self._env.observation_space, task.num_actions))
        # Spaces recognise Python's integers several times as fast as numpy's.
        whole = isinstance(self._env.action_space, gymnasium.spaces.Discrete)
        self._actions = task.actions.tolist() if whole else list(task.actions)

    def reset(self, seed: int | None) -> PyTree:
        return self._see(*self._env.reset(seed=seed))

    def _see(self, seen: Any, info: Mapping[str, Any], over: bool = False) -> PyTree:
        if self._has_mask:
            self._mask = mask_in(seen, info, len(self._actions), over)
        return self._arrange(seen)

    def action_mask(self) -> np.ndarray:
        return self._mask

    def step(self, action: int) -> Outcome:
        seen, reward, terminated, truncated, info = self._env.step(self._actions[action])
        over = bool(terminated or truncated)
        numbers = {name: float(info[name]) for name in self._metrics if over and name in info}
        shown = self._see(seen, info, over)
        return shown, float(reward), bool(terminated), bool(truncated), numbers

    def render(self) -> np.ndarray | None:
        return None if self._env.render_mode != "rgb_array" else np.asarray(self._env.render())

    def close(self) -> None:
        self._env.close()


# --- Gymnasium's vectors --------------------------------------------------------------------------


def from_vector(
    create: Callable[[int, bool], VectorEnv],
    *,
    name: str,
    bins: int | None = None,
    episode_metrics: tuple[str, ...] = (),
) -> HostEnvironment:
    """Adapts a Gymnasium vector environment, in any autoreset mode.

    Args:
        create: makes a vector of a number of environments; its second argument says whether frames
            will be rendered.
        name: the name in messages.
        bins: number of values that each dimension of a continuous action is discretised into.
        episode_metrics: keys of numbers in `info` to report for every finished episode.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(close_unused, vector := create(1, False))
        parts = _spaces_of(vector, "single_observation_space", "single_action_space", bins, name)
    return VectorTask(name, create, *parts, episode_metrics)


class GymnasiumVector(HostVector):
    """Maps any autoreset mode, from the vector's metadata or NextStep by default, to `HostStep`.

    - NextStep matches `HostStep`: a call that only resets follows every end of an episode.
    - SameStep has already reset a truncated episode whose last observation is still needed. A
      vector cannot skip an environment, so one step is played in the new episode, with an action
      that is legal there. A reset with `reset_mask` then discards that episode.
    - Disabled works the same way, except that all resets are requested here.
    """

    def __init__(self, vector: VectorEnv, task: _Task, seed: int) -> None:
        self._vector, self._task, self._seed = vector, task, seed  # of the first environment
        mode = vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = AutoresetMode(mode)
        self._ended = np.zeros(vector.num_envs, bool)  # by the latest step, and not yet reset

    def reset(self) -> PyTree:
        return self._show(self._latest(self._vector.reset(seed=self._seed)[0]))

    def _read(self, found: Any) -> PyTree:
        """Observations, [E, ...], and, if they hold one, the action mask, [E, A]."""
        if not self._task.has_action_mask:
            return self._task.read(found), None
        mask = np.asarray(found[ACTION_MASK], bool)
        return self._task.read(found), mask.reshape(len(mask), -1)

    def _latest(self, found: Any) -> PyTree:
        """Reads the vector's observations, and keeps the legal actions of its next step."""
        observation, self._legal = self._read(found)
        return observation, self._legal

    def _show(self, seen: PyTree) -> PyTree:
        self._seen, self._mask = seen
        return self._seen

    def action_mask(self) -> np.ndarray | None:
        return self._mask

    def step(self, action: np.ndarray) -> HostStep:
        filler = self._ended
        if self._legal is not None:  # the agent saw the last episode, not the new one
            action = np.where(filler, self._legal.argmax(axis=-1), action)
        found, reward, terminated, truncated, info = self._vector.step(self._task.actions[action])
        terminated = np.asarray(terminated, bool) & ~filler
        truncated = np.asarray(truncated, bool) & ~terminated & ~filler
        told = info.get("final_info", info)
        names = [name for name in self._task.episode_metrics if name in told]
        metrics = {name: np.asarray(told[name], float) for name in names}
        if self._mode is AutoresetMode.NEXT_STEP:
            self._ended, first = terminated | truncated, filler
            seen = self._latest(found)
        else:
            self._ended, first = truncated, filler | terminated
            if self._mode is AutoresetMode.DISABLED:
                seen = self._after_disabled(found, first)
            else:
                seen = self._after_same_step(found, info, filler)
        reward = np.where(filler, 0, reward).astype(np.float32)
        return HostStep(self._show(seen), reward, terminated, truncated, first, metrics)

    def _after_disabled(self, found: Any, first: np.ndarray) -> PyTree:
        last = self._latest(found)
        begin = first | self._ended  # truncated ones begin again after their filler
        return _pick(self._ended, last, self._begin(begin)) if begin.any() else last

    def _after_same_step(self, found: Any, info: Mapping[str, Any], filler: np.ndarray) -> PyTree:
        began = self._begin(filler) if filler.any() else self._latest(found)
        if not self._ended.any():
            return began
        ends = np.asarray(info["final_obs"])[self._ended]
        final = [self._read(jax.tree.map(lambda x: np.asarray(x)[None], end)) for end in ends]
        return _put(began, self._ended, final)

    def _begin(self, which: np.ndarray) -> PyTree:
        return self._latest(self._vector.reset(options={"reset_mask": which.copy()})[0])

    def render(self) -> np.ndarray | None:
        pictures = self._vector.render() if self._vector.render_mode == "rgb_array" else None
        return None if pictures is None else np.asarray(pictures[0])

    def close(self) -> None:
        self._vector.close()


class VectorTask(_Task):
    """A task whose environments come as a vector."""

    vector_class: ClassVar[type[GymnasiumVector]] = GymnasiumVector

    def start(self, count: int, seed: int, *, render: bool = False) -> HostVector:
        first = seeds_from(seed, count)[0]  # a vector seeds its environments consecutively
        return self.vector_class(self.create(count, render), self, first)


def _pick(condition: np.ndarray, chosen: PyTree, otherwise: PyTree) -> PyTree:
    """Selects rows along the leading axis."""

    def pick(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return jax.tree.map(pick, chosen, otherwise)


def _put(batch: PyTree, condition: np.ndarray, rows: list[PyTree]) -> PyTree:
    """The batch with `rows`, [1, ...] each, written where the condition holds."""

    def put(leaf: np.ndarray, *parts: np.ndarray) -> np.ndarray:
        leaf = leaf.copy()
        leaf[condition] = np.concatenate(parts)
        return leaf

    return jax.tree.map(put, batch, *rows)
