"""A key, a door and a goal behind it."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.families import board, draws
from discorl.envs.families.base import Family, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded


class KeyDoorParameters(NamedTuple):
    """One pair of rooms."""

    walls: Array  # [rows * columns] bool, between the rooms, without the door
    start: Array  # [] int32, square
    key: Array  # [] int32, square
    door: Array  # [] int32, square
    goal: Array  # [] int32, square
    reward: Array  # [] float32, of reaching the goal
    hint: Array  # [] float32, reward of picking up the key
    meanings: Array  # [5] int32, the direction that each action means


class KeyDoorState(NamedTuple):
    """The agent's square and whether it holds the key."""

    square: Array  # [] int32
    has_key: Array  # [] bool
    time: Array  # [] int32, steps taken


@dataclasses.dataclass(frozen=True)
class KeyDoor(Family[KeyDoorParameters, KeyDoorState]):
    """Two rooms with a locked door between them: fetch the key, pass the door, reach the goal.

    The actions are stay, up, down, left and right, in a member-specific order if `permuted`.
    An episode begins on the member's start square. Entering the key's square picks the key up;
    the door is a wall without the key and a free square with it. The goal pays its reward and
    terminates the episode. After `limit` steps the episode is truncated. The observation shows the
    agent's square, one-hot, and then the key's while it has not been picked up:
    [2 * rows * columns] float32.

    Members differ in the column of the wall between the rooms and the row of its door; in the
    squares of the start, the key and the goal; in the goal's reward, from `reward`; in whether the
    key pays, with probability `hinted`: then a share of that reward from `hint`; and in the
    meanings of the actions.

    Splits: on a board coloured like a chess board, the number of key, door and goal on black
    squares is even in train members and odd in held-out members, so one of them is elsewhere.
    """

    rows: int = bounded(4, least=2)
    columns: int = bounded(6, least=3)
    limit: int = bounded(40, least=1)
    permuted: bool = True
    reward: Range[float] = bounded(Range(0.5, 1.5), least=0.01, most=100)
    hinted: float = bounded(0.5, least=0, most=1)
    hint: Range[float] = bounded(Range(0.05, 0.2), least=0, most=1)

    @property
    def sizes(self) -> Sizes:
        return Sizes(board.NUM_MOVES, (2 * self._squares,), self.limit, (self._squares, 2))

    @property
    def _squares(self) -> int:
        return self.rows * self.columns

    def draw(self, key: Key, parity: Array) -> KeyDoorParameters:
        keys = iter(jax.random.split(key, 9))
        squares = jnp.arange(self._squares)
        wall_column = 1 + draws.index(next(keys), self.columns - 2)
        door = draws.index(next(keys), self.rows) * self.columns + wall_column
        column = squares % self.columns
        near, far = column < wall_column, column > wall_column
        key_square = board.random_square(next(keys), near)
        start = board.random_square(next(keys), near & (squares != key_square))
        # The goal is placed last, on the colour that gives the number of black squares its parity.
        others = board.is_black(jnp.stack([key_square, door]), self.columns).sum()
        makes_right = board.is_black(squares, self.columns) == ((others + parity) % 2 == 1)
        reward = draws.number(next(keys), self.reward)
        hint = draws.number(next(keys), self.hint)
        return KeyDoorParameters(
            walls=(column == wall_column) & (squares != door),
            start=start,
            key=key_square,
            door=door,
            goal=board.random_square(next(keys), far & makes_right),
            reward=reward,
            hint=jnp.where(jax.random.bernoulli(next(keys), self.hinted), hint * reward, 0.0),
            meanings=board.meanings(next(keys), self.permuted),
        )

    def begin(self, parameters: KeyDoorParameters, key: Key) -> KeyDoorState:
        return KeyDoorState(parameters.start, jnp.zeros((), bool), jnp.int32(0))

    def transition(
        self, parameters: KeyDoorParameters, state: KeyDoorState, action: Array, key: Key
    ) -> tuple[KeyDoorState, Array, Array]:
        direction = parameters.meanings[action]
        square, has_key = self._move(parameters, state.square, state.has_key, direction)
        picked_up, arrived = has_key & ~state.has_key, square == parameters.goal
        hint = jnp.where(picked_up, parameters.hint, 0.0)
        reward = jnp.where(arrived, parameters.reward, 0.0) + hint
        return KeyDoorState(square, has_key, state.time + 1), reward, arrived

    def _move(
        self, parameters: KeyDoorParameters, square: Array, has_key: Array, direction: Array
    ) -> tuple[Array, Array]:
        """The square that a direction leads to, and whether the agent holds the key there."""
        ahead = board.move(square, direction, self.rows, self.columns)
        locked = (ahead == parameters.door) & ~has_key
        square = jnp.where(parameters.walls[ahead] | locked, square, ahead)
        return square, has_key | (square == parameters.key)

    def observe(self, parameters: KeyDoorParameters, state: KeyDoorState) -> Array:
        squares = jnp.arange(self._squares)
        lies = (squares == parameters.key) & ~state.has_key
        return jnp.concatenate([squares == state.square, lies]).astype(jnp.float32)

    def lookahead(self, parameters: KeyDoorParameters, time: Array, values: Array) -> Array:
        squares = jnp.arange(self._squares)[:, None, None]
        had_key = jnp.array([False, True])[:, None]
        square, has_key = self._move(parameters, squares, had_key, parameters.meanings)
        arrived = square == parameters.goal
        after = jnp.where(arrived, parameters.reward, values[square, has_key.astype(jnp.int32)])
        return after + jnp.where(has_key & ~had_key, parameters.hint, 0.0)

    def observations(self, parameters: KeyDoorParameters) -> Array | None:
        squares, keys = jnp.arange(self._squares)[:, None], jnp.array([False, True])
        states = jnp.broadcast_arrays(squares, keys, jnp.int32(0))
        return jax.vmap(jax.vmap(lambda *s: self.observe(parameters, KeyDoorState(*s))))(*states)

    def situation(self, state: KeyDoorState) -> tuple[Array, ...]:
        return state.square, state.has_key.astype(jnp.int32)

    def render(self, parameters: KeyDoorParameters, state: KeyDoorState) -> np.ndarray:
        filled = [(square, board.WALL) for square in np.flatnonzero(parameters.walls).tolist()]
        filled.append((int(parameters.goal), board.GOOD))
        discs = [(int(state.square), board.AGENT)]
        if not state.has_key:
            filled.append((int(parameters.door), board.BAD))
            discs.insert(0, (int(parameters.key), board.BALL))
        return board.draw(self.rows, self.columns, filled, discs)
