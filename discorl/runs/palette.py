"""Colours, dashes and markers of series, the same in figures and on pages.

The hues are those of Okabe and Ito, which are safe for colour blindness. Some are darkened for
contrast on white.
"""

from typing import NamedTuple

COLOURS = ("#0072b2", "#d55e00", "#00805d", "#b0588a", "#b87a00", "#2a8fc4", "#555555")
DARK_COLOURS = ("#4fb3e8", "#ff8a3d", "#2ec79a", "#e39ac5", "#f0b63a", "#8fd0f5", "#b5b5b5")
# Lengths of strokes and gaps, in line widths; nothing for a solid line.
DASHES = ((), (4.5, 2), (1.5, 1.5), (5.5, 1.5, 1.5, 1.5), (3, 3), (1, 2.5), (7, 2))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Style(NamedTuple):
    """Colour, dashes and marker of a series."""

    colour: str
    dashes: tuple[float, ...]
    marker: str

    @property
    def linestyle(self) -> str | tuple[int, tuple[float, ...]]:
        """The dashes for matplotlib."""
        return (0, self.dashes) if self.dashes else "-"


def style(series: int) -> Style:
    """The style of a series; 49 differ, the first seven in colour, dashes and marker."""
    count = len(COLOURS)
    other = (series + series // count) % count
    return Style(COLOURS[series % count], DASHES[other], MARKERS[other])
