"""The contract for environments that run on the host and are stepped with numpy.

Such an environment must show the end of an episode as `discorl.types.Trajectory` needs it: a
truncation is not a termination, and learning bootstraps from the true last observation.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from discorl.envs.base import Reference
from discorl.types import PassingError, PyTree

# From a suite's own observations of several environments, [E, ...], to discorl's.
Reader = Callable[[Any], PyTree]

NO_METRICS: Mapping[str, Any] = {}


class EnvironmentFailure(PassingError):
    """An environment raised, hung or returned something invalid.

    `index` is its position in the vector, if known.
    """

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


@dataclasses.dataclass(frozen=True)
class HostStep:
    """The outcome of one action in each of `E` environments.

    If an episode ended and `first` is False, `observation` is the true last observation of that
    episode, and the next call ignores the action and only resets the environment. After a
    termination, an environment may start the next episode at once and set `first`. After a
    truncation it must not, because learning bootstraps from the last observation.
    """

    observation: PyTree  # [E, ...], what to act on next
    reward: np.ndarray  # [E] float
    terminated: np.ndarray  # [E] bool, the task itself is over
    truncated: np.ndarray  # [E] bool, cut by a time limit; never with `terminated`
    first: np.ndarray  # [E] bool, `observation` is the first of an episode
    # By the names in `HostEnvironment.episode_metrics`, [E], read where an episode ended.
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=lambda: NO_METRICS)


class HostVector(abc.ABC):
    """`E` environments that step together.

    The next call may overwrite the arrays that `reset` and `step` return.
    """

    @abc.abstractmethod
    def reset(self) -> PyTree:
        """Starts the first episodes; called once. Returns observations, [E, ...]."""

    @abc.abstractmethod
    def step(self, action: np.ndarray) -> HostStep:
        """Takes actions, [E] int32.

        Raises:
            EnvironmentFailure: an environment failed; `index` says which.
        """

    def action_mask(self) -> np.ndarray | None:
        """Legal actions at the latest observations, [E, A] bool.

        Asked for after `reset` and after every `step` if `HostEnvironment.has_action_mask`.
        """
        return None

    def render(self) -> np.ndarray | None:
        """A frame of the first environment, [height, width, 3] uint8; None if there is none."""
        return None

    def render_end(self) -> np.ndarray | None:
        """A frame of the end of the first environment's latest episode; None if unknown.

        After an end, `render` may already show the next episode.
        """
        return None

    def close(self) -> None:
        """Releases all resources of the environments."""
        return


class HostEnvironment(abc.ABC):
    """A task on the host, which starts vectors of environments."""

    name: str  # for the user
    num_actions: int
    if TYPE_CHECKING:  # at runtime, a subclass may have a plain attribute

        @property
        def observation(self) -> PyTree:
            """Shape and dtype of an observation: a pytree of `jax.ShapeDtypeStruct`."""

    has_action_mask: bool = False  # whether `HostVector.action_mask` says which actions are legal
    episode_metrics: tuple[str, ...] = ()  # names of metrics reported at the end of an episode
    deterministic: bool = True  # whether episodes are a function of seeds and actions
    timeout: float = 120.0  # seconds after which a call of a vector counts as hung

    @abc.abstractmethod
    def start(self, count: int, seed: int, *, render: bool = False) -> HostVector:
        """Starts `count` environments with seeds from `seeds_from`.

        `render` says whether `HostVector.render` will be called.
        """

    def prepare(self, observation: PyTree) -> PyTree:
        """Preprocesses observations, [N, ...], for the network: a pure function in JAX.

        It unpacks observations that are stored compactly. With stacked frames, the last axis is a
        multiple of its size in one frame.
        """
        return observation

    def summarise(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Further metrics of an agent, computed from the means of `episode_metrics`.

        Means are over finished episodes; a metric that no episode reported is missing.
        """
        return {}

    def reference(self) -> Reference | None:
        """The returns that normalise scores, if they are known."""
        return None


def seeds_from(seed: int, count: int) -> list[int]:
    """Consecutive seeds for `count` environments, usually far from those of another seed."""
    start = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**30
    return list(range(start, start + count))


def check_observation(found: PyTree, expected: PyTree, count: int) -> PyTree:
    """Returns observations, [count, ...], in the declared shapes and dtypes.

    Raises:
        EnvironmentFailure: the structure, a shape or the kind of a dtype differs, or a value is NaN
            or infinite.
    """
    observation = as_declared(found, expected, count)
    for array in jax.tree.leaves(observation):
        if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            raise EnvironmentFailure(not_finite("an observation"), int(np.argwhere(~finite)[0, 0]))
    return observation


def not_finite(what: str) -> str:
    """The message for NaN or infinity in something an environment returned."""
    return f"returned NaN or infinity in {what}"


def as_declared(found: PyTree, expected: PyTree, count: int) -> PyTree:
    """Like `check_observation`, but accepts NaN and infinity."""
    try:
        if isinstance(expected, jax.ShapeDtypeStruct):  # faster in the usual case
            return _leaf_as_declared(found, expected, count)
        return jax.tree.map(lambda leaf, x: _leaf_as_declared(x, leaf, count), expected, found)
    except (ValueError, TypeError) as error:
        # All observations share one structure, so the first environment is as wrong as any other.
        message = f"returned an observation of another structure: {error}"
        raise EnvironmentFailure(message, 0) from None


def _leaf_as_declared(found: Any, expected: jax.ShapeDtypeStruct, count: int) -> np.ndarray:
    whole = (count, *expected.shape)
    if isinstance(found, np.ndarray) and found.shape == whole and found.dtype == expected.dtype:
        return found
    array = np.asarray(found)
    if array.dtype.hasobject:
        raise TypeError(f"a {type(found).__name__} instead of an array")
    if array.shape[:1] != (count,):
        raise EnvironmentFailure(f"returned observations of shape {array.shape}; expected {whole}")
    if array.shape[1:] != expected.shape:  # of all environments
        shape = f"{array.shape[1:]}; expected {expected.shape}"
        raise EnvironmentFailure(f"returned an observation of shape {shape}", 0)
    try:
        return as_dtype(array, expected.dtype)
    except EnvironmentFailure:
        for index, one in enumerate(array):  # find the environment
            try:
                as_dtype(one, expected.dtype)
            except EnvironmentFailure as error:
                raise EnvironmentFailure(str(error), index) from None
        raise


def as_dtype(found: Any, dtype: Any) -> np.ndarray:
    """Casts an array to the declared dtype.

    Floats are rounded to other floats, and integers are cast if they fit; floats are not cast to
    integers.

    Raises:
        EnvironmentFailure: the cast would lose information.
    """
    array, dtype = np.asarray(found), np.dtype(dtype)
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "bui" and dtype.kind in "bui":
        if array.size and not _fits(array, dtype):
            span = f"from {array.min()} to {array.max()}"
            raise EnvironmentFailure(
                f"returned an observation of {array.dtype} {span}; declared is {dtype}"
            )
    elif not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvironmentFailure(f"returned an observation of {array.dtype}; declared is {dtype}")
    return array.astype(dtype)


def _fits(array: np.ndarray, dtype: np.dtype) -> bool:
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(low <= int(array.min()) and int(array.max()) <= high)


def picture(image: np.ndarray, least: int = 160) -> np.ndarray:
    """An observation as an upscaled RGB frame: [height, width, 1 or 3] -> [..., ..., 3]."""
    scale = -(-least // min(image.shape[:2]))
    colour = np.broadcast_to(image, (*image.shape[:2], 3))
    return colour.repeat(scale, axis=0).repeat(scale, axis=1)
