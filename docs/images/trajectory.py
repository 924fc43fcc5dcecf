"""Draws docs/images/trajectory.svg: `python docs/images/trajectory.py`."""

from pathlib import Path

# The palette of Okabe and Ito; one colour for each of the three episodes.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"

EPISODE = [BLUE] * 3 + [ORANGE] * 4 + [GREEN] * 3  # of the observations 0 to 9
REWARD = [0, 0, 1, 0, 0, 1, 0, 0, 0]
TERMINATED, TRUNCATED, FILLER = 2, 5, 6  # steps
STEPS = len(REWARD)

WIDTH, HEIGHT = 880, 430
LEFT, STEP = 160, 76  # of the first observation, and from one to the next
RADIUS = 17
ROWS = {  # vertical middle of each row
    "observation": 100,
    "action": 175,
    "reward": 218,
    "terminated": 261,
    "truncated": 304,
    "filler": 347,
    "one-step target": 396,
}
STYLE = """
text { font: 14px Helvetica, Arial, sans-serif; text-anchor: middle; dominant-baseline: central }
.name { font-size: 15px; text-anchor: end }
.shape { font-size: 11px; text-anchor: end; fill: #777777 }
.note { font-size: 12px }
.on { fill: white; font-size: 15px }
.set { font-weight: bold }
.filler { fill: #777777 }
.sub { font-size: 70% }
.i { font-style: italic }
"""


def symbol(name: str, index: int) -> str:
    """A letter with an index, as in `r_3`."""
    return f'<tspan class="i">{name}</tspan><tspan class="sub" dy="3">{index}</tspan>'


def text(x: float, y: float, content: str, kind: str = "") -> str:
    """A line of text around a point."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{content}</text>'


def lines(x: float, y: float, rows: list[str], kind: str) -> list[str]:
    """Several lines of text, the last of them at y."""
    return [text(x, y - 14 * (len(rows) - 1 - i), row, kind) for i, row in enumerate(rows)]


def target(t: int) -> str:
    """The one-step return of step t."""
    reward, plus = symbol("r", t), '<tspan dy="-3"> + \N{GREEK SMALL LETTER GAMMA}</tspan>'
    return reward if t == TERMINATED else reward + plus + symbol("v", t + 1)


def observations() -> list[str]:
    """Circles for the T+1 observations, and an arrow from each to the next for the step."""
    y, drawn = ROWS["observation"], []
    for t in range(STEPS):
        crosses = t in (TERMINATED, FILLER)
        colour = GREY if crosses else EPISODE[t]
        dashes = ' stroke-dasharray="2 3"' if crosses else ""
        start, end = LEFT + STEP * t + RADIUS + 2, LEFT + STEP * (t + 1) - RADIUS - 3
        line = f'<path d="M{start} {y}H{end - 7}" stroke="{colour}" stroke-width="1.5"{dashes}/>'
        tip = f'<path d="M{end} {y}l-8 -4v8z" fill="{colour}"/>'
        drawn += [line, tip]
    for t, colour in enumerate(EPISODE):
        x = LEFT + STEP * t
        drawn.append(f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="{colour}"/>')
        drawn.append(text(x, y - 1, symbol("o", t), "on"))
    notes = {
        TERMINATED + 0.5: ["terminated:", "the next observation", "begins an episode"],
        TRUNCATED + 0.4: ["truncated:", "the next observation is", "the last of the episode"],
        FILLER + 0.85: ["filler:", "stands in for", "the reset"],
    }
    for t, rows in notes.items():
        drawn += lines(LEFT + STEP * t, y - 38, rows, "note")
    return drawn


def table() -> list[str]:
    """What a trajectory holds for every step, under the step's arrow."""
    drawn = []
    for t in range(STEPS):
        x = LEFT + STEP * (t + 0.5)
        cells = {
            "action": symbol("a", t),
            "reward": f'{symbol("r", t)}<tspan dy="-3"> = {REWARD[t]}</tspan>',
            "terminated": "True" if t == TERMINATED else "\N{EN DASH}",
            "truncated": "True" if t == TRUNCATED else "\N{EN DASH}",
            "filler": "True" if t == FILLER else "\N{EN DASH}",
        }
        for name, content in cells.items():
            kind = "filler" if t == FILLER else ""
            drawn.append(text(x, ROWS[name], content, f"{kind} set" if content == "True" else kind))
        if t == FILLER:
            drawn += lines(x, ROWS["one-step target"] + 7, ["not learned", "from"], "note filler")
        else:
            drawn.append(text(x, ROWS["one-step target"], target(t)))
    for name, y in ROWS.items():
        shape = {"observation": "[T+1, B, ...]", "one-step target": ""}.get(name, "[T, B]")
        drawn.append(text(LEFT - 32, y - (7 if shape else 0), name, "name"))
        if shape:
            drawn.append(text(LEFT - 32, y + 9, shape, "shape"))
    return drawn


def main() -> None:
    """Writes the figure beside this file."""
    shades = [
        f'<rect x="{LEFT + STEP * t}" y="146" width="{STEP}" height="278" fill="#f3f3f3"/>'
        for t in range(0, STEPS, 2)
    ]
    rule = f'<path d="M20 371H{LEFT + STEP * STEPS}" stroke="{GREY}"/>'
    content = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}">',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        *shades,
        rule,
        *observations(),
        *table(),
        "</svg>",
    ]
    Path(__file__).with_suffix(".svg").write_text("\n".join(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
