"""Comparisons that are run, stopped, killed and resumed; and reports of single runs."""

import dataclasses
import html
import json
import logging
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from comparisons import TINY

import discorl
from discorl import cli
from discorl.comparison import load
from discorl.reports import comparison
from discorl.reports import run as run_page
from discorl.runs.metrics import EPISODES, RETURN, SPEED, STEP, TOTAL_LOSS, WALL_TIME
from discorl.types import UserError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A comparison that is stopped after its first cell, then goes on to its end."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.toml").write_text(TINY)
    out, lines = folder / "run", []

    def stop(line):
        lines.append(line)
        if line.startswith("[1/"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        discorl.compare(suite=folder / "tiny.toml", out=out, tell=stop)
    assert not caught.value.result.finished
    assert len(list(out.glob("cells/*/*/*/result.json"))) == 1
    assert not caught.value.result.aggregates
    results = discorl.compare(resume=out, tell=lines.append)
    return folder, results, lines


def test_a_comparison(tiny):
    _, results, lines = tiny
    assert results.finished
    # The environment that cannot be made is told of, recorded, and stops nothing.
    assert any(
        "broken cannot be made: catch: rows is 1; expected at least 2" in line for line in lines
    )
    assert {cell.environment.label for cell in results.failures} == {"broken"}
    assert all("rows is 1; expected at least 2" in r["message"] for r in results.failures.values())
    assert results.tasks == ["catch"]
    # Scores are those of the runs, on the scale of the environment.
    for cell, content in results.final.items():
        if cell.environment.label == "broken":
            continue
        metrics = discorl.runs.Run.open(results.path / cell.folder, read_only=True).metrics()
        for seed, value in zip(content["seeds"], content["returns"], strict=True):
            expected = discorl.runs.metrics.recent_return(metrics, seed)
            assert value == expected
        random, optimal = -1 / 3, 1.0  # of 3x3 Catch: one in three, and all
        scores = (np.array(content["returns"]) - random) / (optimal - random)
        np.testing.assert_allclose(results.scores(cell.rule.label)[:, 0], scores, rtol=1e-6)
        assert content["steps"] == 96
        assert content["flops_per_update"] > 0
        assert content["seconds"] > 0
        assert not (results.path / cell.folder / "checkpoints").exists()
    assert results.chosen["policy_gradient", "catch"] == 0.02
    assert comparison.write(results).exists()


def test_one_program_serves_all_learning_rates(tmp_path, caplog):
    """The sweep and the runs that count, all of two seeds, are one program, and end as if alone."""
    settings = {"hidden": [4], "num_envs": 2, "batch": 2, "unroll": 4, "replay_fraction": 0.0}

    def compiled(name):
        return sum(line.startswith(f"Compiling jit({name}) ") for line in caplog.messages)

    with caplog.at_level(logging.DEBUG, logger="jax._src.interpreters.pxla"):
        results = discorl.compare(
            rules=["actor_critic"],
            environments=["catch:rows=3,columns=3"],
            learning_rates=[0.003, 0.01, 0.03],
            steps=96,
            seeds=2,
            sweep_seeds=2,
            settings=settings,
            out=tmp_path / "run",
        )
        assert len(results.sweep) == 3
        assert results.finished
        assert (compiled("init"), compiled("run")) == (1, 1)
        *_, last = results.sweep
        config = results.config.training(last.rule, last.environment, last.learning_rate)
        alone = discorl.train(dataclasses.replace(config, seed=last.seed, seeds=last.seeds))
        assert (compiled("init"), compiled("run")) == (2, 2)
    with discorl.runs.Run.open(results.path / last.folder, read_only=True) as run:
        for name, column in run.metrics().items():
            if name not in (WALL_TIME, SPEED):
                np.testing.assert_array_equal(column, alone.metrics[name], err_msg=name)
    first = discorl.runs.Run.open(results.path / next(iter(results.sweep)).folder, read_only=True)
    assert not np.array_equal(first.metrics()[TOTAL_LOSS], alone.metrics[TOTAL_LOSS])


def test_a_suite_that_comes_later(tmp_path, monkeypatch):
    """An environment that could not be made runs, and counts, once its suite is there."""
    settings = {"hidden": [4], "num_envs": 2, "batch": 2, "unroll": 4, "replay_fraction": 0.0}
    path, lines = tmp_path / "run", []
    make = discorl.envs.make

    def missing(text, *arguments):
        if text == "chain":
            raise UserError("not installed")
        return make(text, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(discorl.envs, "make", missing)
        results = discorl.compare(
            rules=["actor_critic"],
            environments=["catch:rows=3,columns=3", "chain"],
            steps=400,
            seeds=2,
            settings=settings,
            out=path,
            tell=lines.append,
        )
    assert lines[0] == "chain cannot be made: not installed"
    assert results.tasks == ["catch:rows=3,columns=3"]
    lines.clear()
    results = discorl.compare(resume=path, tell=lines.append)
    assert results.tasks == ["catch:rows=3,columns=3", "chain"]
    assert len(lines) == 1
    assert lines[0].startswith("[2/2] final actor_critic on chain, seeds 0 to 1: mean score ")
    assert load(path).scores("actor_critic").shape == (2, 2)


def test_kill_and_resume(tiny, capsys):
    """A killed comparison comes to the same end, and runs no finished cell again."""
    folder, expected, _ = tiny
    out = folder / "killed"
    arguments = ["compare", "--suite", folder / "tiny.toml", "--out", out]
    command = [sys.executable, "-c", "from discorl.cli import main; main()", *map(str, arguments)]
    # With this process's own flags for XLA: its compiled programs are found again.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ)
    start = time.monotonic()
    while len(done := list(out.glob("cells/*/catch/*/result.json"))) < 2:
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() - start < 600
        time.sleep(0.05)
    process.kill()
    process.communicate()
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in done}
    with pytest.raises(SystemExit) as exit:
        cli.main(["compare", "--resume", str(out), "--json"])
    assert exit.value.code == 1  # an environment cannot be made
    told = json.loads(capsys.readouterr().out)
    assert told["finished"]
    assert told["environments"] == ["catch"]
    for file, state in before.items():
        assert (file.stat().st_mtime_ns, file.read_bytes()) == state
    for rule in expected.rules:
        np.testing.assert_array_equal(load(out).scores(rule), expected.scores(rule))
        assert told["aggregates"][rule]["iqm"]["value"] == expected.aggregates[rule]["iqm"].value


def test_a_discovery_is_drawn_along_meta_steps(tmp_path):
    """The steps of its agents begin anew with every life."""
    path, rng = tmp_path / "run", np.random.default_rng(0)
    config = discorl.configure_discovery(preset="demo").as_dict()
    with discorl.runs.Run.create(path, config, "discover") as run:
        for update in range(1, 401):
            steps = [update * 12 % 120, update * 12 % 360]
            rows = [
                {"update": update, "agent": i, "group": 0, RETURN: rng.random(), "life/steps": n}
                for i, n in enumerate(steps)
            ]
            run.log(rows, "agents")
            mean = {RETURN: rng.random(), EPISODES: 2, "life/steps": sum(steps) / 2}
            run.log([{"update": update} | mean])
    trained = tmp_path / "trained"
    config = discorl.configure(rule="ppo", env="catch").as_dict()
    with discorl.runs.Run.create(trained, config, "train") as run:
        rows = [(1, 20, 0.5), (2, 40, 1.0)]
        run.log(
            [
                {"update": i, "seed": 0, RETURN: value, EPISODES: 4, STEP: steps}
                for i, steps, value in rows
            ]
        )
    text = run_page.write([path, trained], tmp_path / "index.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    charts = {(chart["title"], chart["x_label"]): chart["lines"] for chart in data["charts"]}
    assert {name for name in charts if charts[name][0]["series"] == 0} == {
        (RETURN, "meta-steps"),
        (f"{RETURN} (agents)", "meta-steps"),
    }
    for title in (RETURN, f"{RETURN} (agents)"):
        (line,) = charts[title, "meta-steps"]
        assert (np.diff(line["x"]) > 0).all()
        assert line["x"][-1] == 400
    (line,) = charts[RETURN, "environment steps"]
    assert line["x"] == [20, 40]
    shown = table(text, "runs")
    assert [row["meta-steps"] for row in shown] == ["400", "\N{EN DASH}"]
    assert [row["steps"] for row in shown] == ["\N{EN DASH}", "40"]
    assert [row["environment"] for row in shown] == ["catch:rows=5,columns=5", "catch"]
    assert [row["rule"] for row in shown] == ["disco", "ppo"]
    assert [row["preset"] for row in shown] == ["demo", "small"]
    # The last tenth, as the terminal has it; in Catch that is a score from -0.75 to 1.
    assert shown[1]["recent return"] == "1.000"
    assert shown[1]["score"] == "1.000"


def table(text, name):
    """A table of a page as rows by heading."""
    content = text.partition(f'<table id="{name}">')[2].partition("</table>")[0]
    head = re.findall(r"<th>(.*?)</th>", content)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr><td.*", content)]
    rows = [list(map(html.unescape, row)) for row in rows]
    return [dict(zip(head, row, strict=True)) for row in rows] if head else [dict(rows)]


@pytest.mark.parametrize("name", ["@DATA@", "@BODY@", "{{ title }}", "</script><b>", "a & 'b'"])
def test_no_name_of_a_run_breaks_its_page(tmp_path, name):
    name = name.replace("/", "\N{DIVISION SLASH}")  # which a folder can be called
    path = tmp_path / name
    with discorl.runs.Run.create(path, {"rule": "<ppo>", "env": "no such"}, "train") as run:
        run.log([{"update": 1, "seed": 0, RETURN: 1.0, EPISODES: 1, STEP: 20}])
    text = run_page.write([path], tmp_path / "index.html").read_text()
    assert f"<h1>{html.escape(name)}</h1>".replace("&#x27;", "&#39;") in text
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert data["series"] == [name]
    assert len(data["charts"]) == 1
    assert table(text, "runs")[0]["rule"] == "<ppo>"


def test_a_discovery_leads_with_the_panels_of_its_picture(tmp_path):
    path = tmp_path / "run"
    config = discorl.configure_discovery(preset="laptop").as_dict()
    with discorl.runs.Run.create(path, config, "discover") as run:
        for i in range(1, 21):
            parts = {f"meta/{part}": i for part in ("policy_gradient", "entropy_penalty")}
            parts |= {
                "meta/target_penalty": i,
                "meta/gradient_norm": i,
                "meta/gradient_cosine": 0.1,
            }
            returns = {RETURN: i / 20, EPISODES: 3, f"{RETURN}/a": i, f"{RETURN}/b": 100 * i}
            entropies = {"policy/entropy": 1.0, "rule/pi_hat_entropy": 0.5, "losses/total": 2.0}
            run.log([{"update": i} | returns | parts | entropies])
        run.log([{"update": 20, "charts/score": 0.25, "charts/best_score": 0.75}], "evaluation")
    text = run_page.write([path], tmp_path / "index.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    first, *_ = (chart for chart in data["charts"] if chart["name"] == "panel-0")
    assert [line["label"] for line in first["lines"]] == ["a", "b"]
    assert first["scale"] == "symlog"
    before, _, folded = text.partition("<details>")
    assert re.findall(r'<figure id="chart-(.*?)">', before) == [f"panel-{i}" for i in range(6)]
    assert 'id="chart-metric-0"' in folded
    (row,) = table(text, "runs")
    # The mean of the last tenth, 19 and 20; and the best score there was, not the last.
    assert row["recent return"] == "0.975"
    assert row["best score"] == "0.750"


def test_reports_of_runs(tiny, capsys, tmp_path):
    _, results, _ = tiny
    runs = [results.path / c.folder for c in results.final if c.environment.label == "catch"]
    (runs[0] / "episode.gif").write_bytes(b"GIF89a")
    with pytest.raises(SystemExit) as exit:
        cli.main(["report", *map(str, runs), "--out", str(tmp_path)])
    assert not exit.value.code
    text = (tmp_path / "index.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert len(data["series"]) == 2
    charts = {chart["title"]: chart for chart in data["charts"]}
    assert {RETURN, "losses/total", "policy/entropy"} <= set(charts)
    metrics = discorl.runs.Run.open(runs[0], read_only=True).metrics()
    last = metrics["update"] == metrics["update"].max()
    line = charts["policy/entropy"]["lines"][0]
    values = metrics["policy/entropy"][last]
    shown = (line["y"][-1], line["low"][-1], line["high"][-1])
    assert shown == pytest.approx((values.mean(), values.min(), values.max()), rel=1e-5)
    assert "seeds" not in line  # single seeds are drawn only in the chart of returns
    line = charts[RETURN]["lines"][0]
    assert np.shape(line["seeds"]) == (len(values), len(line["x"]))
    assert np.mean([seed[-1] for seed in line["seeds"]]) == pytest.approx(line["y"][-1], rel=1e-5)
    assert "data:image/gif;base64,R0lGODlh" in text
    # A comparison has a page of its own, and stands for itself.
    for arguments, status in (([results.path], 0), ([results.path, runs[0]], 2), ([tmp_path], 2)):
        with pytest.raises(SystemExit) as exit:
            cli.main(["report", *map(str, arguments)])
        assert (exit.value.code or 0) == status
    assert "give it alone" in capsys.readouterr().err
