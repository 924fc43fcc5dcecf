"""The page: a self-contained HTML file, rendered from the templates beside this module."""

import csv
import dataclasses
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from discorl.reports.charts import Chart
from discorl.runs import palette
from discorl.runs.files import write_bytes, write_errors_reported
from discorl.runs.statistics import Estimate

PAGE = "index.html"
NOTHING = "\N{EN DASH}"  # in a cell without a number
# The folders of an absolute path, at the start of a word or of a value in it.
_FOLDERS = re.compile(r"(?<![^\s'\"=,])/(?:[^\s'\"=,/]+/)*(?=[^\s'\"/])")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A table cell with formatting."""

    text: str
    small: str = ""  # written smaller behind the text
    kind: str = ""  # "text": set to the left, may break into lines; "best": emphasised
    span: int = 1  # columns


Rows = list[list[str | Cell]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table."""

    name: str
    head: Sequence[str]  # nothing for a table of names and values
    rows: Rows


def pairs(name: str, values: dict[str, Any]) -> Table:
    """A table of names and values, without a head."""
    rows: Rows = [
        [key, value if isinstance(value, Cell) else Cell(str(value), kind="text")]
        for key, value in values.items()
    ]
    return Table(name, [], rows)


def number(found: Estimate, kind: str = "") -> Cell:
    """A statistic with its interval."""
    return Cell(f"{found.value:.3f}", f"[{found.low:.3f}, {found.high:.3f}]", kind)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows of equal keys as CSV."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()


def shareable(versions: Mapping[str, str | None]) -> dict[str, str | None]:
    """What a run was made with, its command without the folders of the machine."""
    command = versions.get("command")
    return {**versions, "command": command and _FOLDERS.sub("", command)}


def write(
    file: Path,
    template: str,
    *,
    title: str,
    series: Sequence[str],
    charts: Sequence[Chart],
    **context: Any,
) -> Path:
    """Writes a page and returns its file; everything outside the templates' own HTML is escaped.

    `series` are the labels of lines in charts; the script on the page draws `charts`.
    """
    data = {
        "series": list(series),
        "dashes": palette.DASHES,
        "charts": [chart.as_dict() for chart in charts],
    }
    text = _environment().get_template(template).render(title=title, data=data, **context)
    # File names that are not UTF-8 hold surrogates, which cannot be encoded.
    content = (text.rstrip("\n") + "\n").encode(errors="backslashreplace")
    with write_errors_reported(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content)
    return file


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("discorl.reports", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    environment.globals |= {"colours": palette.COLOURS, "dark_colours": palette.DARK_COLOURS}
    return environment
