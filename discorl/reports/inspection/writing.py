"""The files of an inspection: figures, the numbers behind them, and one page."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from discorl.reports import figures, page
from discorl.reports.charts import Chart
from discorl.reports.inspection.findings import Analysis, Findings, Picture, rows_of
from discorl.reports.inspection.subject import Subject
from discorl.reports.page import PAGE, as_csv
from discorl.runs.files import write_bytes, write_errors_reported
from discorl.runs.metrics import recent_return
from discorl.runs.versions import versions

_DPI = 110  # of pictures; a page has several


def write_figures(folder: Path, label: str, findings: Findings) -> None:
    """Writes an analysis's figures into `figures`: PNG and CSV, and SVG for charts."""
    drawn = folder / "figures"
    with write_errors_reported(folder):
        drawn.mkdir(parents=True, exist_ok=True)
        for chart in findings.charts:
            figures.write(drawn, chart, [label])
            write_bytes(drawn / f"{chart.name}.csv", as_csv(rows_of(chart)))
        for picture in findings.pictures:
            write_bytes(drawn / f"{picture.name}.png", png(picture))
            write_bytes(drawn / f"{picture.name}.csv", as_csv(picture.rows))


def write_page(
    folder: Path,
    subject: Subject,
    outcomes: Mapping[str, Findings | str],
    analyses: Mapping[str, Analysis],
) -> Path:
    """Writes `index.html`, which holds all figures."""
    sections: list[dict[str, Any]] = []
    for name, outcome in outcomes.items():
        found = Findings({}) if isinstance(outcome, str) else outcome
        pictures = [
            {"caption": each.caption, "content": base64.b64encode(png(each)).decode()}
            for each in found.pictures
        ]
        sections.append(
            {
                "title": analyses[name].title,
                "about": analyses[name].about,
                "reason": outcome if isinstance(outcome, str) else "",
                "facts": page.pairs(name, dict(found.facts)),
                "charts": found.charts,
                "pictures": pictures,
            }
        )
    charts: list[Chart] = [chart for section in sections for chart in section["charts"]]
    return page.write(
        folder / PAGE,
        "inspection.html",
        title=f"Inside {subject.label}",
        series=[subject.label],
        charts=charts,
        about=page.pairs("about", _about(subject)),
        sections=sections,
        command=page.shareable(versions())["command"],
    )


def png(picture: Picture) -> bytes:
    """The picture as a file; equal pictures make equal files."""
    stream = io.BytesIO()
    with matplotlib.rc_context({"savefig.dpi": _DPI}):
        picture.figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def _about(subject: Subject) -> dict[str, str]:
    config = subject.config
    earned = ", ".join(f"{recent_return(subject.metrics, life.seed):.3f}" for life in subject.lives)
    moments = ", ".join(str(moment.update) for moment in subject.lives[0].moments)
    return {
        "rule": subject.label,
        "environment": config.env,
        "agents": f"seeds {', '.join(str(life.seed) for life in subject.lives)}",
        "updates": f"{config.updates:,}, {config.agent.steps_per_update:,} environment steps each",
        "moments of their lives": f"after {moments} updates",
        "return, last tenth": f"{earned} by seed",
        "bands and brackets": "lowest to highest agent, around the mean",
    }
