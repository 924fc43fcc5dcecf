"""Four rooms with a door between each two neighbours, and a goal in one of them."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.families import board, draws
from discorl.envs.families.base import PlaceFamily, PlaceState, Sizes
from discorl.types import Array, Key
from discorl.types.specs import Range
from discorl.types.validation import bounded

_DIRECTIONS = board.NUM_MOVES - 1  # all moves but to stay


class FourRoomsParameters(NamedTuple):
    """One floor plan."""

    doors: Array  # [4] int32, squares, in the upper, lower, left and right wall
    start: Array  # [] int32, square
    goal: Array  # [] int32, square
    reward: Array  # [] float32, of reaching the goal
    slip: Array  # [] float32, probability that a move goes in a random direction
    meanings: Array  # [4] int32, the direction that each action means


@dataclasses.dataclass(frozen=True)
class FourRooms(PlaceFamily[FourRoomsParameters]):
    """Find the way from one of four rooms to the goal in another.

    After the four rooms of Sutton, Precup and Singh (1999). Walls in the middle row and the middle
    column divide the board; each of the four walls has one door. The actions are up, down, left and
    right, in a member-specific order if `permuted`. An episode begins on the member's start
    square. The goal pays its reward and terminates the episode; nothing else pays. After `limit`
    steps the episode is truncated. The observation is the agent's square, one-hot:
    [size * size] float32.

    Members differ in the doors; in the goal, anywhere in a room, and the start, anywhere in another
    room; in the goal's reward, from `reward`; in the probability, from `slip`, that a move goes in
    a random one of the four directions; and in the meanings of the actions.

    Splits: on a board coloured like a chess board, the number of doors and goals on black squares
    is even in train members and odd in held-out members, so one of them is elsewhere.
    """

    size: int = bounded(7, least=5)
    limit: int = bounded(24, least=1)
    permuted: bool = True
    reward: Range[float] = bounded(Range(0.5, 1.5), least=0.01, most=100)
    # With a slip of 1, actions would have no effect.
    slip: Range[float] = bounded(Range(0.0, 0.3), least=0, most=0.9)

    @property
    def sizes(self) -> Sizes:
        return Sizes(_DIRECTIONS, (self.size**2,), self.limit, (self.size**2,))

    @property
    def _middle(self) -> int:
        """The row and the column of the walls."""
        return self.size // 2

    def draw(self, key: Key, parity: Array) -> FourRoomsParameters:
        door_key, goal_key, start_key, reward_key, slip_key, meaning_key = jax.random.split(key, 6)
        doors = self._sample_doors(door_key)
        squares = jnp.arange(self.size**2)
        in_room = ~self._is_wall_line(squares)
        # The goal goes on the colour that gives the number of black squares its parity.
        others = board.is_black(doors, self.size).sum()
        makes_right = board.is_black(squares, self.size) == ((others + parity) % 2 == 1)
        goal = board.random_square(goal_key, in_room & makes_right)
        elsewhere = self._room(squares) != self._room(goal)
        order = draws.order(meaning_key, _DIRECTIONS) if self.permuted else jnp.arange(_DIRECTIONS)
        return FourRoomsParameters(
            doors=doors,
            start=board.random_square(start_key, in_room & elsewhere),
            goal=goal,
            reward=draws.number(reward_key, self.reward),
            slip=draws.number(slip_key, self.slip),
            meanings=1 + order.astype(jnp.int32),
        )

    def _sample_doors(self, key: Key) -> Array:
        """One door in each wall: [4] int32."""
        before, after = self._middle, self.size - 1 - self._middle  # squares of a wall
        offsets = draws.index(key, jnp.array([before, after, before, after]), (4,))
        offsets += jnp.array([0, before + 1, 0, before + 1])
        across = offsets[:2] * self.size + self._middle
        return jnp.concatenate([across, self._middle * self.size + offsets[2:]])

    def _is_wall_line(self, square: Array) -> Array:
        """Whether a square is in the middle row or column."""
        return (square // self.size == self._middle) | (square % self.size == self._middle)

    def _room(self, square: Array) -> Array:
        """The number of the room that a square is in, from 0 to 3."""
        return 2 * (square // self.size > self._middle) + (square % self.size > self._middle)

    def start(self, parameters: FourRoomsParameters) -> Array:
        return parameters.start

    def transition(
        self, parameters: FourRoomsParameters, state: PlaceState, action: Array, key: Key
    ) -> tuple[PlaceState, Array, Array]:
        # One random number decides whether the agent slips and, by its size relative to the
        # probability of a slip, in which direction. Without slips, the quotient is not below 4.
        quotient = _DIRECTIONS * jax.random.uniform(key) / parameters.slip
        anywhere = 1 + quotient.astype(jnp.int32)
        direction = jnp.where(quotient < _DIRECTIONS, anywhere, parameters.meanings[action])
        state = PlaceState(self._move(parameters, state.place, direction), state.time + 1)
        arrived = state.place == parameters.goal
        return state, jnp.where(arrived, parameters.reward, 0.0), arrived

    def _move(self, parameters: FourRoomsParameters, square: Array, direction: Array) -> Array:
        ahead = board.move(square, direction, self.size, self.size)
        is_door = (ahead[..., None] == parameters.doors).any(axis=-1)
        return jnp.where(self._is_wall_line(ahead) & ~is_door, square, ahead)

    def lookahead(self, parameters: FourRoomsParameters, time: Array, values: Array) -> Array:
        squares = jnp.arange(self.size**2)
        worth = jnp.where(squares == parameters.goal, parameters.reward, values)  # of entering
        meant = worth[self._move(parameters, squares[:, None], parameters.meanings)]
        anywhere = meant.mean(axis=-1, keepdims=True)
        return (1 - parameters.slip) * meant + parameters.slip * anywhere

    def render(self, parameters: FourRoomsParameters, state: PlaceState) -> np.ndarray:
        lines = np.flatnonzero(self._is_wall_line(jnp.arange(self.size**2)))
        walls = np.setdiff1d(lines, np.asarray(parameters.doors)).tolist()
        filled = [*((square, board.WALL) for square in walls), (int(parameters.goal), board.GOOD)]
        return board.draw(self.size, self.size, filled, [(int(state.place), board.AGENT)])
