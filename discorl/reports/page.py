"""The page: a self-contained HTML file, rendered from the templates beside this module."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from discorl.reports.charts import Chart
from discorl.runs import palette

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


def shareable(versions: Mapping[str, str | None]) -> dict[str, str | None]:
    """What a run was made with, its command without the folders of somebody's machine."""
    command = versions.get("command")
    return {**versions, "command": command and _FOLDERS.sub("", command)}


def render(
    template: str, *, title: str, series: Sequence[str], charts: Sequence[Chart], **context: Any
) -> bytes:
    """Renders a page; everything outside the templates' own HTML is escaped.

    `series` are the labels of lines in charts; the script on the page draws `charts`.
    """
    data = {
        "series": list(series),
        "dashes": palette.DASHES,
        "charts": [chart.as_dict() for chart in charts],
    }
    text = _environment().get_template(template).render(title=title, data=data, **context)
    # Of a name that is no UTF-8, Python keeps the bytes as what cannot be encoded.
    return (text.rstrip("\n") + "\n").encode(errors="backslashreplace")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("discorl.reports", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}

    def verbatim(name: str) -> Markup:
        """A file of ours as it is: the style or the script."""
        assert environment.loader is not None
        source, _, _ = environment.loader.get_source(environment, name)
        return Markup(source.rstrip("\n"))

    environment.globals |= {
        "verbatim": verbatim,
        "colours": palette.COLOURS,
        "dark_colours": palette.DARK_COLOURS,
    }
    return environment
