"""The suite `craftax`: survival in generated worlds, written in JAX."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name

from discorl.envs import references
from discorl.envs.base import Environment, Reference, Step
from discorl.envs.native.arrays import Adapted, fix_types
from discorl.types import Array, Key, PyTree
from discorl.types.validation import integer

_ITEMS = (
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
)
_NEVER = np.iinfo(np.int32).max


def names() -> Sequence[str]:
    """The two games, each with symbolic and pixel observations."""
    return _ITEMS


def make(item: str, *, max_timesteps: int | None = None) -> Environment:
    """Builds a game; `max_timesteps` defaults to Craftax's own time limit."""
    environment = make_craftax_env_from_name(item, auto_reset=False)
    settings = environment.default_params
    if max_timesteps is not None:
        integer("max_timesteps", max_timesteps, least=1, owner="craftax")
        settings = settings.replace(max_timesteps=max_timesteps)
    return Craftax(item, environment, int(environment.action_space(settings).n), settings)


@dataclasses.dataclass(frozen=True, eq=False)
class Craftax(Adapted):
    """A game of Craftax: symbols, [n] float32, or images, [height, width, 3] uint8."""

    settings: Any  # Craftax's parameters

    resets_at_once = 1  # a world takes about as long to generate as dozens of steps

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        observation, state = self.environment.reset_env(key, self.settings)
        return fix_types((state, self._encode(observation)))

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
        """Takes one action. Craftax merges death and the time limit; here they are separate."""
        observation, state, reward, _, _ = self.environment.step_env(
            key, state, action, self.settings
        )
        unlimited = self.settings.replace(max_timesteps=_NEVER)
        return fix_types(state), Step(
            observation=fix_types(self._encode(observation)),
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(self.environment.is_terminal(state, unlimited), bool),
            truncated=jnp.asarray(state.timestep >= self.settings.max_timesteps, bool),
        )

    def _encode(self, observation: Array) -> Array:
        if observation.ndim == 3:  # an image, which Craftax divides by 255
            return jnp.round(observation * 255).astype(jnp.uint8)
        return observation

    def reference(self) -> Reference | None:
        """From no to all achievements, the scale on which Craftax reports results."""
        return references.lookup("craftax", self.item)

    def render(self, state: PyTree) -> np.ndarray:
        pixels = make_craftax_env_from_name(self.item.replace("Symbolic", "Pixels"), False)
        picture = np.asarray(pixels.get_obs(state) * 255).round().astype(np.uint8)
        return picture.repeat(3, axis=0).repeat(3, axis=1)
