"""The one way in which commands print tables and paragraphs."""

import io
import os
import sys
import textwrap
from collections.abc import Collection, Sequence

from discorl.runs.statistics import Estimate

ENDLESS = 10_000  # columns; where nobody reads along, lines stay whole for `grep` and `awk`


def width() -> int:
    """Columns to write in: those of the terminal, or of the variable COLUMNS; else no limit."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or ENDLESS
    except (OSError, ValueError, AttributeError):  # not a terminal, or not even a file
        return ENDLESS


def paragraph(text: str, indent: str = "") -> str:
    """A text in lines that fit the terminal; those after the first are indented further."""
    return textwrap.fill(
        text,
        width(),
        initial_indent=indent,
        subsequent_indent=f"{indent}  " if indent else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def interval(found: Estimate, between: str = " ") -> str:
    """A statistic and its interval."""
    return f"{found.value:.3f}{between}[{found.low:.3f}, {found.high:.3f}]"


def table(
    rows: Sequence[Sequence[str]],
    head: Sequence[str] = (),
    *,
    wrap: Collection[int] = (-1,),
    numeric: Collection[int] = (),
) -> str:
    """A table in aligned columns that fits the terminal; a cell may have several lines.

    `wrap` tells which columns break into lines where there is no room for them, negative ones
    counting from the last, and `numeric` which are set to the right.
    """
    # Imported late: most of the time that `discorl` takes to answer is spent on imports.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    count = len(head or rows[0])
    made = Table(box=None, show_header=bool(head), pad_edge=False, padding=(0, 1), header_style="")
    for i in range(count):
        made.add_column(
            Text(head[i]) if head else "",
            justify="right" if i in numeric else "left",
            overflow="fold",
            no_wrap=i not in wrap and i - count not in wrap,
        )
    for row in rows:
        made.add_row(*map(Text, row))
    text = io.StringIO()
    console = Console(file=text, width=width(), color_system=None, force_terminal=False)
    console.print(made)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
