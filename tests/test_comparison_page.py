"""The page of a comparison in a real browser: it loads, its numbers are right, charts react."""

import base64
import csv
import html
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from comparisons import COMMAND, fabricate

from discorl.reports import comparison

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Runs before all else on the page, and notes what goes wrong.
WATCH = """<script>
const troubles = [];
addEventListener("error", (e) => troubles.push(String(e.message || e.target.outerHTML)), true);
addEventListener("securitypolicyviolation", (e) => troubles.push(e.blockedURI));
</script>"""
# Uses the page like a reader, and leaves what it saw in an element.
PROBE = """<script>
const count = (selector) => document.querySelectorAll(selector).length;
const buttons = Array.from(document.querySelectorAll("#legend button"));
const lines = () => ["profiles", "curve-0"].map((name) =>
  ["0", "1", "2"].map((s) => count("#chart-" + name + " .line[data-series='" + s + "']")));
const rows = () => count("#chart-aggregates .row");
const seen = { names: buttons.map((b) => b.textContent), figures: count("figure") };
seen.charts = count("figure > svg");
seen.before = [lines(), rows()];
buttons[1].click();
seen.hidden = [lines(), rows(), buttons[1].getAttribute("aria-pressed")];
const chart = document.getElementById("chart-efficiency"), svg = chart.querySelector("svg");
const place = { clientX: svg.getBoundingClientRect().right - 1 };
svg.dispatchEvent(new PointerEvent("pointermove", place));
seen.tip = chart.querySelector(".tip").innerText;
svg.dispatchEvent(new PointerEvent("pointerleave"));
seen.tipHidden = chart.querySelector(".tip").hidden;
chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
seen.byKey = chart.querySelector(".tip").innerText;
const dots = document.getElementById("chart-aggregates"), dot = dots.querySelector(".row");
dot.dispatchEvent(new PointerEvent("pointerenter"));
seen.dotTip = dots.querySelector(".tip").innerText;
dot.dispatchEvent(new PointerEvent("pointerleave"));
seen.dotTipHidden = dots.querySelector(".tip").hidden;
buttons[1].click();
seen.after = [lines(), rows()];
const table = document.querySelectorAll("#summary tbody tr");
seen.summary = Array.from(table, (tr) => Array.from(tr.cells, (c) => c.textContent));
const summary = document.getElementById("summary").parentElement;
seen.summaryOverflow = summary.scrollWidth - summary.clientWidth;
seen.command = document.getElementById("command").textContent;
seen.background = getComputedStyle(document.body).backgroundColor;
seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
seen.scores = document.querySelector("a[download]").href;
seen.markup = document.querySelector("#chart-curve-1 h3").textContent;
const drawn = () => Array.from(document.querySelectorAll("figure > svg"));
const widest = () => Math.max(...drawn().map((svg) => svg.clientWidth));
seen.onScreen = widest();
dispatchEvent(new Event("beforeprint"));
seen.onPaper = widest();
seen.allOpen = count("details:not([open])") === 0;
dispatchEvent(new Event("afterprint"));
seen.afterPrint = [widest(), count("details[open]")];
seen.troubles = troubles;
const out = document.createElement("pre");
out.id = "seen";
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>"""


def browse(page, tmp_path, *flags):
    """What the probe saw on the page."""
    if BROWSER is None:
        pytest.skip("no browser is installed: chromium or google-chrome")
    probed = tmp_path / "probed.html"
    text = page.read_text().replace("<head>", "<head>" + WATCH, 1)
    probed.write_text(text.replace("</body>", PROBE + "</body>"))
    command = [BROWSER, *FLAGS, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run([*command, probed.as_uri()], capture_output=True, text=True, timeout=300)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return fabricate(tmp_path_factory.mktemp("page") / "comparison")


@pytest.fixture(scope="module")
def page(results):
    return comparison.write(results)


def test_page_in_a_browser(results, page, tmp_path):
    seen = browse(
        page, tmp_path, "--window-size=1200,900", "--blink-settings=preferredColorScheme=1"
    )
    assert seen["troubles"] == []
    assert seen["names"] == results.rules
    assert seen["charts"] == seen["figures"] == 6  # four statistics and two environments
    assert seen["background"] == "rgb(255, 255, 255)"
    assert seen["command"] == COMMAND
    assert seen["markup"] == "<small> & odd"
    # A rule is hidden everywhere, and comes back.
    assert seen["before"] == seen["after"] == [[[1, 1, 1], [1, 1, 1]], 12]
    assert seen["hidden"] == [[[1, 0, 1], [1, 0, 1]], 8, "false"]
    # What is read off a chart is what was computed; the hidden rule is not there.
    steps, curve = results.efficiency["actor_critic"]
    assert seen["tip"].startswith(f"environment steps {steps[-1]:,}")
    assert f"actor_critic {float(f'{curve.value[-1]:.4g}'):g} [" in seen["tip"]
    assert "ppo" not in seen["tip"]
    assert seen["tipHidden"] is True
    assert seen["byKey"] == seen["tip"]
    first = results.aggregates["actor_critic"]["iqm"]
    interval = f"[{first.low:.3f}, {first.high:.3f}]"
    assert seen["dotTip"] == f"actor_critic: {first.value:.3f} {interval}"
    assert seen["dotTipHidden"] is True
    # The table is the one of the statistics.
    for row, rule in zip(seen["summary"], results.rules, strict=True):
        found = results.aggregates[rule].values()
        expected = [f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in found]
        # A hundred updates of 2e9; 10 s for five runs, and for each of four cells of the sweep.
        assert row == [rule, *expected, "100", "2e+11", "2.0", "40.0"]
    assert seen["summaryOverflow"] <= 0  # scores and costs are seen at once
    # Charts are drawn as wide as paper and what is folded is opened; then all is as before.
    assert seen["onScreen"] > 1000
    assert seen["onPaper"] <= 704
    assert seen["allOpen"]
    assert seen["afterPrint"] == [seen["onScreen"], 0]
    kept = base64.b64decode(seen["scores"].partition("base64,")[2])
    assert kept == (page.parent / "scores.csv").read_bytes()


def test_narrow_and_dark(page, tmp_path):
    seen = browse(
        page, tmp_path, "--window-size=500,900", "--blink-settings=preferredColorScheme=0"
    )
    assert seen["troubles"] == []
    assert seen["background"] == "rgb(20, 23, 26)"
    assert seen["overflow"] <= 0  # nothing sticks out sideways


def test_page_stands_alone(page):
    text = page.read_text()
    outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'<)]*", text)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:link|script|img)[^>]+(?:src|href)=[\"'](?!data:)", text)


def test_tables_and_figures(results, page):
    rows = list(csv.DictReader(io.StringIO((page.parent / "scores.csv").read_text())))
    final = [row for row in rows if row["kind"] == "final"]
    assert len(final) == 3 * 2 * 5
    assert len(rows) - len(final) == 3 * 2 * 2 * 2  # sweep: two rates, two seeds
    for rule in results.rules:
        for number, task in enumerate(results.tasks):
            scores = [
                float(row["score"])
                for row in final
                if (row["rule"], row["environment"]) == (rule, task)
            ]
            assert scores == results.scores(rule)[:, number].tolist()
    summary = list(csv.DictReader(io.StringIO((page.parent / "summary.csv").read_text())))
    iqm = {row["rule"]: float(row["value"]) for row in summary if row["statistic"] == "iqm"}
    assert iqm == {rule: row["iqm"].value for rule, row in results.aggregates.items()}
    columns = ("updates", "flops", "seconds", "sweep_seconds")
    for row in summary:
        assert [float(row[name]) for name in columns] == [100, 2e11, 2, 40]
    figures = page.parent / "figures"
    names = ["aggregates", "curve-0", "curve-1", "efficiency", "improvement", "profiles"]
    assert sorted(p.stem for p in figures.glob("*.svg")) == names
    assert sorted(p.stem for p in figures.glob("*.png")) == names
    text = (figures / "profiles.svg").read_text()
    # Told apart by more than colour: three dashes, or none, and text that stays text.
    assert len(set(re.findall(r"stroke-dasharray: ([\d., ]+)", text))) >= 2
    assert all(f">{rule}</text>" in text for rule in results.rules)


def test_the_json_of_marl_eval(results, page):
    """Read as marl-eval reads it, which wants equal runs, steps and metrics everywhere."""
    data = json.loads((page.parent / "marl_eval.json").read_text())
    assert list(data) == ["comparison"]
    tasks = data["comparison"]
    assert list(tasks) == [task.lower() for task in results.tasks] == ["catch", "<small> & odd"]
    steps = [f"step_{i}" for i in range(49)]  # of 50: at the first, an agent has no return
    for task, scale in zip(tasks.values(), results.scales.values(), strict=True):
        assert list(task) == results.rules
        for rule, runs in task.items():
            assert list(runs) == [f"seed_{seed}" for seed in range(5)]
            for run in runs.values():
                assert list(run) == [*steps, "absolute_metrics"]
                assert [run[step]["step_count"] for step in steps] == list(range(800, 20_001, 400))
                assert all(len(metrics["mean_episode_return"]) == 1 for metrics in run.values())
            last = [run["step_48"]["mean_episode_return"][0] for run in runs.values()]
            final = [run["absolute_metrics"]["mean_episode_return"][0] for run in runs.values()]
            column = list(results.scales.values()).index(scale)
            np.testing.assert_allclose(
                [(x - scale.random) / (scale.optimal - scale.random) for x in final],
                results.scores(rule)[:, column],
            )
            # The curves of these runs approach the final score: see `comparisons.record`.
            grown = [(x - scale.random) * (1 - np.exp(-5)) for x in final]
            np.testing.assert_allclose([x - scale.random for x in last], grown)
