"""The suite `gymnax`: MinAtar, classic control, bsuite and small worlds, written in JAX.

gymnax's `step` resets an episode that ends. The adapter calls its parts `step_env`, `is_truncated`
and `reset_env` instead, so that the caller sees the last observation and decides when to reset.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs import references
from discorl.envs.actions import combinations
from discorl.envs.base import Environment, GymnaxLike, Reference, Step
from discorl.envs.native.arrays import Adapted, fix_types
from discorl.envs.native.pictures import draw_planes
from discorl.types import Array, Key, PyTree, UserError, specs
from discorl.types.validation import integer

_NEEDS_DOWNLOAD = ("MNISTBandit-bsuite",)


def names() -> Sequence[str]:
    """All environments registered with gymnax, including those with continuous actions."""
    return [name for name in gymnax.registered_envs if name not in _NEEDS_DOWNLOAD]


def make(item: str, *, bins: int | None = None, **parameters: specs.Value) -> Environment:
    """Builds one environment.

    Args:
        item: its name in gymnax, such as `Breakout-MinAtar`.
        bins: number of values that each dimension of a continuous action is discretised into.
        **parameters: gymnax's parameters of this environment, such as `max_steps_in_episode`.
    """
    environment, settings = gymnax.make(item)
    known = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    for name in parameters:
        if name not in known:
            raise UserError(
                f"gymnax:{item} has no parameter {name!r}; {specs.nearest(name, known)}"
            )
    fitted = {name: _fit(item, name, value, known[name]) for name, value in parameters.items()}
    adapted = adapt(environment, settings.replace(**fitted), bins=bins, item=item)
    return dataclasses.replace(adapted, scored=not parameters)


def adapt(
    environment: GymnaxLike,
    settings: Any = None,
    *,
    bins: int | None = None,
    item: str | None = None,
) -> "Gymnax":
    """Adapts an environment with gymnax's interface.

    Args:
        environment: an object with gymnax's methods, such as one of your own.
        settings: its parameters; by default `default_params`.
        bins: number of values that each dimension of a continuous action is discretised into.
        item: its name; by default that of its class.
    """
    settings = environment.default_params if settings is None else settings
    item = item or type(environment).__name__
    actions = _actions(item, environment.action_space(settings), bins)
    return Gymnax(item, environment, len(actions), settings, actions)


_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _fit(item: str, name: str, value: specs.Value, default: Any) -> specs.Value:
    """The value, if it is of its default's type."""
    kind = type(default)
    if kind not in _KINDS:
        raise UserError(f"gymnax:{item}: {name} is an array, which cannot be given by name")
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(f"gymnax:{item}: {name} is {value!r}; expected {_KINDS[kind]}")
    if name == "max_steps_in_episode":
        integer(name, value, least=1, owner=f"gymnax:{item}")
    return value


def _actions(item: str, space: Any, bins: int | None) -> np.ndarray:
    """All actions in gymnax's form: [A], or [A, dimensions] for discretised ones."""
    if isinstance(space, gymnax.environments.spaces.Discrete):
        if bins is not None:
            raise UserError(f"gymnax:{item} has {space.n} discrete actions: it takes no bins")
        return np.arange(space.n, dtype=np.int32)
    if bins is None:
        raise UserError(
            f"gymnax:{item} has continuous actions, and rules need discrete ones: discretise each "
            f"dimension with gymnax:{item},bins=5"
        )
    integer("bins", bins, least=2, owner=f"gymnax:{item}")
    low, high = (np.broadcast_to(end, space.shape).ravel() for end in (space.low, space.high))
    axes = [np.linspace(*ends, bins) for ends in zip(low, high, strict=True)]
    return combinations(axes, space.shape, np.float32, f"gymnax:{item}")


@dataclasses.dataclass(frozen=True, eq=False)
class Gymnax(Adapted):
    """An environment of gymnax. Discrete observations become one-hot vectors, [n] bool."""

    settings: Any  # gymnax's parameters
    actions: np.ndarray  # [A, ...], gymnax's actions
    scored: bool = False  # whether it is a registered one with default parameters

    @property
    def name(self) -> str:
        """The name that a run records if it is given the object."""
        return f"gymnax:{self.item}"

    def reset(self, key: Key) -> tuple[PyTree, PyTree]:
        observation, state = self.environment.reset_env(key, self.settings)
        return fix_types((state, self._encode(observation)))

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
        observation, state, reward, terminated, _ = self.environment.step_env(
            key, state, jnp.asarray(self.actions)[action], self.settings
        )
        truncated = self.environment.is_truncated(state, self.settings)
        return fix_types(state), Step(
            observation=fix_types(self._encode(observation)),
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(terminated, bool),
            truncated=jnp.asarray(truncated, bool),
        )

    def _encode(self, observation: PyTree) -> PyTree:
        space = self.environment.observation_space(self.settings)
        if isinstance(space, gymnax.environments.spaces.Discrete):
            return jax.nn.one_hot(observation, space.n, dtype=bool)
        return observation

    def reference(self) -> Reference | None:
        """From random play to gymnax's trained agents, for a few environments."""
        return references.lookup("gymnax", self.item) if self.scored else None

    def render(self, state: PyTree) -> np.ndarray | None:
        """A picture of MinAtar's planes, one colour each; None for other environments."""
        if not self.item.endswith("-MinAtar"):
            return None
        key = jax.random.key(0)  # MinAtar's observations are functions of the state
        return draw_planes(np.asarray(self.environment.observe(key, state, None, self.settings)))
