"""The command `discorl inspect`, from agents to a page in a real browser."""

import csv
import dataclasses
import html
import json
import math
import re
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import TINY_SIZES
from PIL import Image
from test_comparison_page import BROWSER, FLAGS, WATCH

import discorl
from discorl import cli, rules
from discorl.reports import figures, page
from discorl.reports.charts import IntervalChart, Row, band
from discorl.reports.inspection import response, subject
from discorl.reports.inspection.findings import line, text_of
from discorl.rules import ActorCritic, Disco, Lean
from discorl.rules.lean import GAINS
from discorl.types import UserError

TINY = {"hidden": (4,), "num_envs": 4, "batch": 4, "unroll": 6, "replay": 8}
PROBE = """<script>
const seen = {
  headings: Array.from(document.querySelectorAll("h2"), (h) => h.textContent),
  pictures: Array.from(document.images, (i) => i.naturalWidth),
  charts: document.querySelectorAll("figure > svg").length,
  rows: document.querySelectorAll("g.row").length,
  reasons: Array.from(document.querySelectorAll("main > p:not(.note)"), (p) => p.textContent),
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  tables: Array.from(document.querySelectorAll(".scroll"), (t) => t.scrollWidth - t.clientWidth),
  troubles,
};
const out = document.createElement("pre");
out.id = "seen";
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>"""


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspection") / "inside"
    only = ["predictions", "attention", "ablations", "sensitivity", "response", "coefficients"]
    return discorl.inspect(
        "actor_critic",
        "catch:rows=4,columns=4",
        out=folder,
        only=only,
        beside=(),
        seeds=1,
        updates=2,
        eval_every=2,  # so that checkpoints hold the best agents as well
        eval_episodes=1,
        **TINY,
    )


def test_an_inspection_leaves_a_page_figures_and_their_numbers(inspected):
    folder = inspected.page.parent / "figures"
    assert inspected.outcomes["ablations"] == "parts can be taken out of Disco rules only"
    assert "lean rules have" in inspected.outcomes["coefficients"]
    for name in ("predictions", "attention", "response-map", "response-advantage"):
        assert (folder / f"{name}.png").stat().st_size > 1000
    with (folder / "response-advantage.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["advantage / sigma"]) for row in rows] == list(response.ADVANTAGES)
    assert {row["line"] for row in rows} == {"actor_critic"}
    assert [m.update for m in inspected.subject.lives[0].moments] == [0, 1, 2]


def test_the_page_in_a_browser(inspected, tmp_path):
    if BROWSER is None:
        pytest.skip("no browser is installed: chromium or google-chrome")
    probed = tmp_path / "probed.html"
    text = inspected.page.read_text().replace("<head>", "<head>" + WATCH, 1)
    probed.write_text(text.replace("</body>", PROBE + "</body>"))
    narrow = ["--window-size=500,900", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    command = [BROWSER, *FLAGS, *narrow]
    done = subprocess.run([*command, probed.as_uri()], capture_output=True, text=True, timeout=300)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    seen = json.loads(html.unescape(found[1]))
    assert seen["troubles"] == []
    assert len(seen["headings"]) == len(inspected.outcomes)
    assert len(seen["pictures"]) == 3
    assert min(seen["pictures"]) > 300
    charts = [c for each in inspected.outcomes.values() for c in getattr(each, "charts", ())]
    assert seen["charts"] == len(charts) == 4
    (sensitivity,) = inspected.outcomes["sensitivity"].charts
    assert seen["rows"] == sum(len(rows) for _, rows in sensitivity.panels) > 0
    assert len(seen["reasons"]) == 2
    assert seen["overflow"] <= 0
    assert max(seen["tables"]) <= 0  # names and numbers are seen without scrolling


def test_a_run_has_its_own_settings(inspected, capsys):
    run = inspected.page.parent / "run"
    with pytest.raises(UserError, match="is a run with its own settings; got updates besides"):
        discorl.inspect(run, updates=3)
    with pytest.raises(UserError, match=r"agents holds 7; expected seeds of .*, 0 to 0"):
        discorl.inspect(run, agents=[7])
    with pytest.raises(SystemExit) as stop:
        cli.main(["inspect", str(run), "--only", "responses"])
    assert stop.value.code == 2
    assert "no analysis 'responses'; did you mean 'response'?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.main(["inspect", str(run), "--only", "coefficients", "--json"])
    assert stop.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(run / "inspection" / "index.html")
    assert "does_not_apply" in found["analyses"]["coefficients"]


def test_a_lean_rule_is_drawn_beside_its_start(tmp_path):
    """The same rule but for its coefficients: a policy cost and a learning rate twice as high."""
    rule = Lean(hidden=2)
    eta = rule.init_params(jax.random.key(0))
    rows = [list(GAINS).index(name) for name in ("policy_cost", "learning_rate")]
    eta["coefficients"] = eta["coefficients"].at[jnp.array(rows), 0].set(math.log(2))
    found = discorl.inspect(
        (rule, eta),
        "catch:rows=4,columns=4",
        out=tmp_path,
        only=["response", "lifetime", "coefficients"],
        beside=("start",),
        seeds=1,
        updates=2,
        **TINY,
    )
    ratio = "size of the response, relative to start"
    assert found.outcomes["response"].facts[ratio] == "4.00"
    for moment in ("after 0 updates", "after 1 updates", "after 2 updates"):
        assert found.outcomes["lifetime"].facts[f"{moment}: {ratio}"] == "4.00"
    charts = {each.name: each for each in found.outcomes["coefficients"].charts}
    ends = {line.label: line.y[-1] for line in charts["coefficient-policy_cost"].lines}
    assert ends["start, N = 450"] == 1
    assert ends["N = 450"] == pytest.approx(2)
    # A rule that is its own start, and one whose start is random, have nothing to be drawn beside.
    for own in (Lean(hidden=2), ActorCritic(), Disco(sizes=TINY_SIZES, num_bins=5)):
        learner = dataclasses.replace(found.subject.learner, rule=own)
        agent = dataclasses.replace(found.subject.agent, learner=learner)
        alone = dataclasses.replace(found.subject, agent=agent, eta=rules.load(own)[1], beside={})
        assert subject.with_start(alone).beside == {}


def test_means_over_agents_leave_out_what_is_unknown():
    mean, low, high = band(np.array([[1.0, np.nan], [3.0, np.nan]]))
    np.testing.assert_array_equal(mean, [2.0, np.nan])
    np.testing.assert_array_equal([low[0], high[0]], [1.0, 3.0])
    assert text_of(np.array([1.0, 3.0])) == "2.00 [1.00, 3.00]"
    assert text_of(np.array([1.0, np.nan, 3.0])) == "2.00 [1.00, 3.00], 2 of 3 agents"
    assert text_of(np.array([-0.001])) == "0.00"
    ended = line("y", 0, np.arange(3), np.array([[1.0, np.nan, np.nan], [3.0, 4.0, np.nan]]))
    np.testing.assert_array_equal(ended.x, [0, 1])
    np.testing.assert_array_equal(ended.y, [2.0, 4.0])


def test_an_interval_is_drawn_no_wider_than_it_is(tmp_path):
    def drawn(low, high):
        rows = Row(0, "wide", 0.5, 0.0, 1.0), Row(0, "given", 0.75, low, high)
        figures.write(tmp_path, IntervalChart("intervals", "", (("", rows),)), ["rule"])
        return np.asarray(Image.open(tmp_path / "intervals.png"))

    def width(low, high):
        columns = (drawn(low, high) != drawn(math.nan, math.nan)).any(axis=(0, 2))
        return np.ptp(np.flatnonzero(columns)) + 1

    assert width(0.2, 0.3) / width(0.0, 1.0) == pytest.approx(0.1, abs=0.01)


def test_pages_do_not_show_the_folders_of_a_machine():
    def shown(command):
        return page.shareable({"command": command})["command"]

    command = "discorl inspect /home/me/rules/mine.npz:without=q --out=/tmp/x --env catch:rows=5"
    assert shown(command) == "discorl inspect mine.npz:without=q --out=x --env catch:rows=5"
    assert shown("discorl train --rule '/a/b.npz' --out runs/a/b") == (
        "discorl train --rule 'b.npz' --out runs/a/b"
    )
    assert shown("discorl rules pull https://hub.co/a/b") == "discorl rules pull https://hub.co/a/b"
    assert shown(None) is None


@pytest.mark.long
@pytest.mark.parametrize("rule", ["disco", "lean", "ppo", "q_lambda"])
def test_all_analyses_of_all_kinds_of_rules(rule, tmp_path):
    given = Disco(sizes=TINY_SIZES, num_bins=5) if rule == "disco" else rule
    small = {**TINY, "action_lstm": 3, "action_hidden": (4,)}
    found = discorl.inspect(
        given, "catch:rows=4,columns=4", out=tmp_path / "inside", seeds=2, updates=4, **small
    )
    silent = {name for name, each in found.outcomes.items() if isinstance(each, str)}
    expected = {
        "disco": {"coefficients"},
        "lean": {"ablations"},
        "ppo": {"ablations", "coefficients"},
        "q_lambda": {"ablations", "coefficients", "response", "lifetime"},
    }
    assert silent == expected[rule]


@pytest.mark.long
def test_each_analysis_alone_finds_what_it_finds_among_all(tmp_path):
    given = {"seeds": 1, "updates": 2, **TINY}
    all_of_them = discorl.inspect("lean", "catch:rows=4,columns=4", out=tmp_path, **given)
    for name, outcome in all_of_them.outcomes.items():
        alone = discorl.inspect(tmp_path / "run", out=tmp_path / name, only=[name]).outcomes
        assert list(alone) == [name]
        assert getattr(alone[name], "facts", alone[name]) == getattr(outcome, "facts", outcome)
        files = [*(tmp_path / name / "figures").glob("*")]
        assert {f.stem for f in files if f.suffix == ".png"} == {
            f.stem for f in files if f.suffix == ".csv"
        }
