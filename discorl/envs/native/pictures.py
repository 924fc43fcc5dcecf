"""Frames for environments that only return numbers on a board."""

import colorsys

import numpy as np

from discorl.envs.families import board


def draw_planes(planes: np.ndarray) -> np.ndarray:
    """Draws each square in the colour of the last plane that marks it.

    Planes are [rows, columns, planes], zero where empty; the frame is [height, width, 3] uint8.
    """
    rows, columns, count = planes.shape
    marked = [
        (row * columns + column, _colour(plane, count))
        for plane in range(count)
        for row, column in np.argwhere(planes[..., plane] != 0)
    ]
    return board.draw(rows, columns, marked, ())


def _colour(index: int, count: int) -> board.Colour:
    """One of `count` well-separated colours."""
    red, green, blue = (round(255 * x) for x in colorsys.hsv_to_rgb(index / count, 0.65, 0.95))
    return red, green, blue
