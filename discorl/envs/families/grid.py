"""Grid worlds with random walls and objects."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.families import board, draws
from discorl.envs.families.base import Family, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import Fields, bounded

_CHANNELS = 4  # agent, walls, rewards and penalties


class GridParameters(NamedTuple):
    """One world; `K` is the number of objects."""

    walls: Array  # [size * size] bool
    squares: Array  # [K] int32, where the objects are
    rewards: Array  # [K] float32, of entering an object's square; negative: a penalty
    terminal: Array  # [K] bool, the episode terminates on collecting the object
    respawn: Array  # [K] float32, probability a step that a collected object reappears
    meanings: Array  # [5] int32, the direction that each action means


class GridState(NamedTuple):
    """The agent's square and the objects left."""

    square: Array  # [] int32
    present: Array  # [K] bool
    time: Array  # [] int32, steps taken


@dataclasses.dataclass(frozen=True)
class Grid(Family[GridParameters, GridState]):
    """An agent walks among walls and collects, or avoids, objects.

    The actions are stay, up, down, left and right, in a member-specific order if `permuted`. An
    episode begins on a random empty square with all objects present. Being on an object's square
    after a move collects it: its reward is paid, and it disappears or ends the episode. After
    `limit` steps the episode is truncated.

    The observation is [size, size, 4] float32: the agent, the walls, the rewards and the penalties
    (as magnitudes) of the objects present; or the same as a vector if `flat`.

    Members differ in the walls, which leave all empty squares connected; in the places of the
    objects; in their rewards, of a magnitude from `reward`, positive for the first object and, with
    probability `bad`, negative for each of the others; in which are terminal, each with probability
    `terminal`; and in which of them reappear when collected, each with probability `returning`:
    those do with a probability per step from `respawn`.

    Splits: on a board coloured like a chess board, the number of objects on black squares is even
    in train members and odd in held-out members, so some object is in another place.
    """

    size: int = bounded(5, least=3)
    objects: int = 3
    limit: int = bounded(32, least=1)
    permuted: bool = True
    flat: bool = False
    reward: Range[float] = bounded(Range(0.5, 1.0), least=0.01, most=100)
    bad: float = bounded(0.5, least=0, most=1)
    terminal: float = bounded(0.5, least=0, most=1)
    returning: float = bounded(0.5, least=0, most=1)
    respawn: Range[float] = bounded(Range(0.02, 0.2), least=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Walls take at most one square of either colour per pillar; one must remain to start on.
        room = self.size**2 // 2 - self._pillars**2 - 1
        Fields(self, "grid").integer("objects", least=1, most=min(room, 8))

    @property
    def sizes(self) -> Sizes:
        shape = (self.size, self.size, _CHANNELS)
        return Sizes(
            board.NUM_MOVES,
            (np.prod(shape).item(),) if self.flat else shape,
            self.limit,
            (self.size**2, 2**self.objects),
        )

    @property
    def _pillars(self) -> int:
        """The maximum number of pillars in a row."""
        return (self.size - 1) // 2

    def draw(self, key: Key, parity: Array) -> GridParameters:
        wall_key, square_key, chance_key, reward_key, respawn_key, meaning_key = jax.random.split(
            key, 6
        )
        walls = self._sample_walls(wall_key)
        chances = jnp.array([1 - self.bad, self.terminal, self.returning])[:, None]
        drawn = jax.random.bernoulli(chance_key, chances, (3, self.objects))
        positive, terminal, returns = drawn
        magnitude = draws.number(reward_key, self.reward, (self.objects,))
        respawn = draws.number(respawn_key, self.respawn, (self.objects,))
        return GridParameters(
            walls=walls,
            squares=self._sample_squares(square_key, walls, parity),
            rewards=jnp.where(positive.at[0].set(True), magnitude, -magnitude),
            terminal=terminal,
            respawn=jnp.where(returns, respawn, 0.0),
            meanings=board.meanings(meaning_key, self.permuted),
        )

    def _sample_walls(self, key: Key) -> Array:
        """Pillars on a lattice, some with a wall to the next: [size * size] bool.

        A pillar may have a wall to its right or downwards, never both, and none is at the edge.
        Such walls form no loop, among themselves or with the edge, so they enclose nothing.
        """
        kind = draws.index(key, 6, (self._pillars, self._pillars))  # 0, 1, 2: no pillar
        walls = jnp.zeros((self.size, self.size), bool)
        walls = walls.at[1:-1:2, 1:-1:2].set(kind > 2)
        walls = walls.at[1:-1:2, 2::2].set(kind == 4)
        return walls.at[2::2, 1:-1:2].set(kind == 5).ravel()

    def _sample_squares(self, key: Key, walls: Array, wanted: Array) -> Array:
        """Different empty squares, of which an even or odd number are black: [K] int32."""
        first_key, key = jax.random.split(key)
        order = jnp.argsort(jnp.where(walls, 2.0, jax.random.uniform(key, walls.shape)))
        others = order[: self.objects - 1].astype(jnp.int32)
        black = board.is_black(jnp.arange(self.size**2), self.size)
        # The first object is placed last, on the colour that makes the number right.
        makes_right = black == ((black[others].sum() + wanted) % 2 == 1)
        possible = (makes_right & ~walls).at[others].set(False)
        first = board.random_square(first_key, possible)
        return jnp.concatenate([first[None], others])

    def begin(self, parameters: GridParameters, key: Key) -> GridState:
        empty = self._empty(parameters)
        # The n-th empty square for a random n, which is cheaper than a number for every square.
        rank = draws.index(key, empty.sum())
        square = jnp.sum(jnp.cumsum(empty) <= rank).astype(jnp.int32)
        return GridState(square, jnp.ones(self.objects, bool), jnp.int32(0))

    def _empty(self, parameters: GridParameters) -> Array:
        """Squares without wall or object: [size * size] bool."""
        return (~parameters.walls).at[parameters.squares].set(False)

    def transition(
        self, parameters: GridParameters, state: GridState, action: Array, key: Key
    ) -> tuple[GridState, Array, Array]:
        square = self._move(parameters, state.square, parameters.meanings[action])
        collected = state.present & (parameters.squares == square)
        left = state.present & ~collected
        reappeared = jax.random.uniform(key, (self.objects,)) < parameters.respawn
        state = GridState(square, left | reappeared, state.time + 1)
        reward = jnp.sum(collected * parameters.rewards)
        return state, reward, jnp.any(collected & parameters.terminal)

    def _move(self, parameters: GridParameters, square: Array, direction: Array) -> Array:
        ahead = board.move(square, direction, self.size, self.size)
        return jnp.where(parameters.walls[ahead], square, ahead)

    def observe(self, parameters: GridParameters, state: GridState) -> Array:
        squares = jnp.arange(self.size**2)
        shown = jnp.where(state.present, parameters.rewards, 0.0)
        # Compares with every object, because a scatter is slow in a batch.
        worth = ((squares[:, None] == parameters.squares) * shown).sum(axis=-1)
        channels = (
            squares == state.square,
            parameters.walls,
            jax.nn.relu(worth),
            jax.nn.relu(-worth),
        )
        picture = jnp.stack([each.astype(jnp.float32) for each in channels], axis=-1)
        return picture.reshape(self.sizes.observation)

    def starts(self, parameters: GridParameters) -> Array:
        """A random empty square, all objects present: [size * size, 2^K]."""
        empty = self._empty(parameters)
        all_present = jax.nn.one_hot(2**self.objects - 1, 2**self.objects)
        return (empty / empty.sum())[:, None] * all_present

    def lookahead(self, parameters: GridParameters, time: Array, values: Array) -> Array:
        present = self._sets()
        squares = jnp.arange(self.size**2)[:, None]
        ahead = self._move(parameters, squares, parameters.meanings)  # [squares, 5]
        here = ahead[..., None] == parameters.squares  # [squares, 5, K]
        collected = here[:, None] & present[:, None]  # [squares, sets, 5, K]
        left = present[:, None] & ~collected
        left_index = (left * 2 ** jnp.arange(self.objects)).sum(axis=-1)
        continues = ~jnp.any(collected & parameters.terminal, axis=-1)
        expected = values @ self._respawning(parameters).T  # [squares, sets]
        rewards = (collected * parameters.rewards).sum(axis=-1)
        return rewards + continues * expected[ahead[:, None], left_index]

    def _sets(self) -> Array:
        """Which objects each set holds, by the bits of its number: [2^K, K] bool."""
        return (jnp.arange(2**self.objects)[:, None] >> jnp.arange(self.objects)) % 2 == 1

    def _respawning(self, parameters: GridParameters) -> Array:
        """Probability that one set of objects becomes another by reappearance: [2^K, 2^K]."""
        before, after = self._sets()[:, None], self._sets()
        absent = jnp.where(after, parameters.respawn, 1 - parameters.respawn)
        return jnp.where(before, after, absent).prod(axis=-1)

    def observations(self, parameters: GridParameters) -> Array:
        squares, sets = jnp.arange(self.size**2), self._sets()

        def seen(square: Array, present: Array) -> Array:
            return self.observe(parameters, GridState(square, present, jnp.int32(0)))

        return jax.vmap(lambda s: jax.vmap(lambda present: seen(s, present))(sets))(squares)

    def situation(self, state: GridState) -> tuple[Array, ...]:
        """The agent's square and the number of the set of objects present."""
        return state.square, (state.present * 2 ** jnp.arange(self.objects)).sum()

    def render(self, parameters: GridParameters, state: GridState) -> np.ndarray:
        filled = [(square, board.WALL) for square in np.flatnonzero(parameters.walls).tolist()]
        objects = zip(parameters.squares, parameters.rewards, state.present, strict=True)
        filled += [
            (int(square), board.GOOD if reward > 0 else board.BAD)
            for square, reward, present in objects
            if present
        ]
        return board.draw(self.size, self.size, filled, [(int(state.square), board.AGENT)])
