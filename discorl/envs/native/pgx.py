"""The suite `pgx`: Pgx's single-player games, 2048 and MinAtar, written in JAX."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pgx

from discorl.envs.base import Environment, Step
from discorl.envs.native.arrays import Adapted, fix_types
from discorl.envs.native.pictures import draw_planes
from discorl.types import Array, Key, PyTree, UserError
from discorl.types.validation import integer, number

_MINATAR = "minatar-"


def names() -> Sequence[str]:
    """The games for one player."""
    return [name for name in pgx.available_envs() if name == "2048" or name.startswith(_MINATAR)]


def make(item: str, *, max_steps: int | None = None, sticky: float | None = None) -> Environment:
    """Builds a game.

    Args:
        item: its name in Pgx, such as `minatar-breakout`.
        max_steps: steps after which an episode is truncated; by default never.
        sticky: for MinAtar: the probability that the last action is repeated; by default 0.1.
    """
    environment = pgx.make(item)
    if max_steps is not None:
        integer("max_steps", max_steps, least=1, owner="pgx")
    if sticky is not None:
        if not item.startswith(_MINATAR):
            raise UserError(f"pgx:{item} takes no sticky={sticky}; MinAtar's games do")
        number("sticky", sticky, least=0, most=1, owner="pgx")
        environment = type(environment)(sticky_action_prob=sticky)
    start = jax.eval_shape(environment.init, jax.random.key(0))
    return Pgx(item, environment, start.legal_action_mask.shape[0], max_steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Pgx(Adapted):
    """A game of Pgx for one player. Observations are planes, [rows, columns, planes] bool."""

    max_steps: int | None

    def reset(self, key: Key) -> tuple[PyTree, Array]:
        state = fix_types(self.environment.init(key))
        return state, state.observation

    def step(self, state: PyTree, action: Array, key: Key) -> tuple[PyTree, Step]:
        state = fix_types(self.environment.step(state, action, key))
        late = self.max_steps is not None and state._step_count >= self.max_steps
        return state, Step(
            observation=state.observation,
            reward=state.rewards[0].astype(jnp.float32),
            terminated=state.terminated,
            truncated=jnp.asarray(late) & ~state.terminated,
        )

    def action_mask(self, state: PyTree) -> Array | None:
        """In 2048, the moves that change the board; all actions of MinAtar are legal."""
        return None if self.item.startswith(_MINATAR) else state.legal_action_mask

    def render(self, state: PyTree) -> np.ndarray:
        return draw_planes(np.asarray(state.observation))
