"""The page: one HTML file that needs nothing else, put together from its template."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from discorl.reports.charts import Chart

NOTHING = "&ndash;"  # in a cell without a number


def render(
    title: str, body: Iterable[str], series: Sequence[str], charts: Sequence[Chart]
) -> bytes:
    """Puts a page together.

    Args:
        title: of the window.
        body: pieces of HTML, whose figures name the charts.
        series: what the lines of charts stand for, by number.
        charts: what the script on the page draws.
    """
    data = {"series": list(series), "charts": [chart.as_dict() for chart in charts]}
    # Within a script, nothing may look like the end of it.
    plain = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    text = _template("page.html")
    for name, value in (
        ("TITLE", escape(title)),
        ("STYLE", _template("page.css")),
        ("SCRIPT", _template("page.js")),
        ("BODY", "\n".join(body)),
        ("DATA", plain),
    ):
        before, _, after = text.partition(f"@{name}@")
        text = before + value + after
    return text.encode()


def escape(text: Any) -> str:
    """A text as HTML."""
    return html.escape(str(text))


def heading(text: str, note: str = "") -> str:
    """A heading, with a sentence on how to read what follows."""
    return f"<h2>{escape(text)}</h2>" + (f'<p class="note">{escape(note)}</p>' if note else "")


def legend() -> str:
    """Where the script puts the buttons that hide and show series."""
    return '<div id="legend" role="group" aria-label="Show or hide"></div>'


def figure(chart: Chart, caption: str = "", heading: bool = False) -> str:
    """Where the script draws a chart."""
    title = f"<h3>{escape(chart.title)}</h3>" if heading else ""
    below = (
        f"<figcaption>{escape(caption)}</figcaption>" if caption else "<figcaption></figcaption>"
    )
    return f'<figure id="chart-{escape(chart.name)}">{title}{below}</figure>'


def table(name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML, and one that starts with `<td` is taken as it is."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = []
    for row in rows:
        cells = "".join(c if c.startswith("<td") else f"<td>{c}</td>" for c in row)
        lines.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll"><table id="{escape(name)}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def pairs(name: str, values: Mapping[str, Any]) -> str:
    """A table of names and values."""
    rows = [
        [escape(key), f'<td class="text">{escape(value)}</td>'] for key, value in values.items()
    ]
    return table(name, ["", ""], rows)


def details(summary: str, *content: str) -> str:
    """What is folded away until it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(content)}</details>"


def _template(name: str) -> str:
    file = resources.files("discorl.reports") / "template" / name
    return file.read_text(encoding="utf-8").rstrip("\n")
