"""Helpers of tasks on a board of squares: moves, random squares and pictures.

A square is one number, `row * columns + column`; rows count from the top.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.families import draws
from discorl.types import Array, Key

NUM_MOVES = 5
DOWN = 2
_ROWS = (0, -1, 1, 0, 0)  # stay, up, down, left, right
_COLUMNS = (0, 0, 0, -1, 1)

Colour = tuple[int, int, int]
BACKGROUND: Colour = (24, 26, 38)
AGENT: Colour = (72, 169, 230)
WALL: Colour = (96, 102, 124)
GOOD: Colour = (98, 190, 110)
BAD: Colour = (222, 82, 74)
BALL: Colour = (250, 180, 60)
_LINE: Colour = (38, 42, 58)
_LEAST_PIXELS = 160  # of the shorter side of a picture


def move(square: Array, direction: Array, rows: int, columns: int) -> Array:
    """The next square in a direction; moves off the board stay.

    Squares and directions (0: stay, 1: up, 2: down, 3: left, 4: right) are int of any shape.
    """
    row = square // columns + jnp.asarray(_ROWS, jnp.int32)[direction]
    column = square % columns + jnp.asarray(_COLUMNS, jnp.int32)[direction]
    return jnp.clip(row, 0, rows - 1) * columns + jnp.clip(column, 0, columns - 1)


def meanings(key: Key, permuted: bool) -> Array:
    """The direction of each action, [NUM_MOVES] int32, in order or shuffled."""
    return draws.order(key, NUM_MOVES) if permuted else jnp.arange(NUM_MOVES, dtype=jnp.int32)


def is_black(square: Array, columns: int) -> Array:
    """Whether a square, of any shape, would be black on a chess board."""
    return (square // columns + square % columns) % 2 == 1


def random_square(key: Key, possible: Array) -> Array:
    """One of the possible squares, [] int32; `possible`, [squares] bool, holds at least one."""
    chances = jax.random.uniform(key, possible.shape)
    return jnp.argmax(jnp.where(possible, chances, -1.0)).astype(jnp.int32)


def draw(
    rows: int,
    columns: int,
    filled: Iterable[tuple[int, Colour]],
    discs: Iterable[tuple[int, Colour]],
) -> np.ndarray:
    """A picture of a board, [height, width, 3] uint8: squares filled, then discs, in colours."""
    pixels = max(8, -(-_LEAST_PIXELS // min(rows, columns)))
    picture = np.full((rows * pixels, columns * pixels, 3), BACKGROUND, np.uint8)
    picture[::pixels] = _LINE
    picture[:, ::pixels] = _LINE
    offset = (np.arange(pixels) + 0.5) / pixels - 0.5
    shapes = (
        (np.abs(offset[:, None]) < 0.46) & (np.abs(offset) < 0.46),
        (np.hypot(offset[:, None], offset) < 0.34),
    )
    for shape, pieces in zip(shapes, (filled, discs), strict=True):
        for square, colour in pieces:
            top, left = (pixels * each for each in divmod(int(square), columns))
            picture[top : top + pixels, left : left + pixels][shape] = colour
    return picture
