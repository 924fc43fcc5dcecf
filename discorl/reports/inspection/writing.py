"""The files of an inspection: figures, the numbers behind them, and one page."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

from discorl.reports import figures, page
from discorl.reports.charts import Chart
from discorl.reports.comparison import PAGE, as_csv
from discorl.reports.inspection.findings import Findings, Picture, rows_of
from discorl.reports.inspection.subject import Subject
from discorl.runs.files import write_bytes, write_errors_reported
from discorl.runs.metrics import recent_return
from discorl.runs.versions import versions

_DPI = 110  # of pictures; a page has several


def write(
    folder: Path,
    subject: Subject,
    outcomes: Mapping[str, Findings | str],
    titles: Mapping[str, tuple[str, str]],
) -> Path:
    """Writes `index.html`, and PNG, SVG and CSV of each figure in `figures`; returns the page.

    `titles` has the title of each analysis, and how to read it.
    """
    sections: list[dict[str, Any]] = []
    charts: list[Chart] = []
    with write_errors_reported(folder):
        drawn = folder / "figures"
        drawn.mkdir(parents=True, exist_ok=True)
        for name, outcome in outcomes.items():
            title, about = titles[name]
            section: dict[str, Any] = {
                "title": title,
                "about": about,
                "reason": "",
                "pictures": [],
                "charts": [],
            }
            if isinstance(outcome, str):
                sections.append(section | {"reason": outcome, "facts": None})
                continue
            for chart in outcome.charts:
                figures.write(drawn, chart, [subject.label])
                write_bytes(drawn / f"{chart.name}.csv", as_csv(rows_of(chart)))
            for picture in outcome.pictures:
                write_bytes(drawn / f"{picture.name}.png", png(picture))
                write_bytes(drawn / f"{picture.name}.csv", as_csv(picture.rows))
            charts += outcome.charts
            sections.append(
                section
                | {
                    "facts": page.pairs(name, dict(outcome.facts)),
                    "charts": outcome.charts,
                    "pictures": [
                        {
                            "caption": each.caption,
                            "content": base64.b64encode(png(each)).decode(),
                        }
                        for each in outcome.pictures
                    ],
                }
            )
        content = page.render(
            "inspection.html",
            title=f"Inside {subject.label}",
            series=[subject.label],
            charts=charts,
            about=page.pairs("about", _about(subject)),
            sections=sections,
            command=versions()["command"],
        )
        write_bytes(folder / PAGE, content)
    return folder / PAGE


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
        "rule": config.rule,
        "environment": config.env,
        "agents": f"{len(subject.lives)}, seeds {config.seed} to {config.seed + config.seeds - 1}",
        "updates": f"{config.updates:,}, {config.agent.steps_per_update:,} environment steps each",
        "moments of their lives": f"after {moments} updates",
        "return, last tenth": f"{earned} by seed",
        "bands and brackets": "lowest to highest agent, around the mean",
    }
