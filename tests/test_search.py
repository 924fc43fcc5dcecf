"""Adaptive sweeps: proposals of TPE, and that interruptions don't change them."""

import json
import math
import sys

import numpy as np
import pytest

from discorl import cli
from discorl.comparison import cells, compare, configure_sweep, load
from discorl.comparison.search import STARTUP, make_search, propose
from discorl.reports import sweep as page
from discorl.runs.files import sha256_of
from discorl.types import UserError
from discorl.types.specs import Range

SPACE = {"learning_rate": Range(1e-4, 1e-1), "unroll": [4, 8, 16]}


def score(trial):
    """Best at a learning rate of 0.01 with an unroll of 8."""
    return -abs(math.log10(trial["learning_rate"]) + 2) - (trial["unroll"] != 8)


def drawn(count, seed=0):
    config = configure_sweep(SPACE, trials=count, seed=seed, steps=100)
    return [dict(entry.settings) for entry in config.rules]


def searched(count, batch=1, seed=0, accepts=lambda trial: True):
    search = make_search(SPACE, "ppo", count, batch)
    trials = drawn(STARTUP, seed)
    while len(trials) < count:
        found = propose(search, [(trial, score(trial)) for trial in trials], seed, accepts)
        assert 0 < len(found) <= batch
        trials += found
    return trials


@pytest.fixture
def trained(monkeypatch):
    """Cells that record what `score` says, in place of training; returns those that ran."""
    pytest.importorskip("optuna")
    ran = []

    def run(cell, path, config, steps, **_):
        ran.append(cell.rule.label)
        agent = config.agent
        known = {"learning_rate": agent.optimiser.learning_rate, "unroll": agent.unroll}
        steps_of_curve = [steps // 2, steps]
        record = {
            "status": "finished",
            "message": "",
            "seeds": list(range(cell.seed, cell.seed + cell.seeds)),
            "returns": [score(known) - 0.01 * i for i in range(cell.seeds)],
            "learning_rate": known["learning_rate"],
            "updates": 10,
            "steps": steps,
            "seconds": 1.0,
            "flops_per_update": None,
            "curve": {"steps": steps_of_curve, "returns": [[0.0, 0.0]] * cell.seeds},
        }
        cells.write_record(path, record)
        return record

    monkeypatch.setattr(cells, "run", run)
    return ran


# --- proposals ------------------------------------------------------------------------------------


def test_proposals_come_closer_to_the_best_settings_than_random_ones():
    pytest.importorskip("optuna")
    adaptive, random = searched(40), drawn(40)
    assert adaptive[:STARTUP] == drawn(STARTUP)
    late = [np.mean([score(trial) for trial in trials[20:]]) for trials in (adaptive, random)]
    assert late[0] > late[1] + 0.5
    assert all(1e-4 <= trial["learning_rate"] <= 1e-1 for trial in adaptive)


def test_proposals_depend_on_the_seed_and_the_scores_alone():
    pytest.importorskip("optuna")
    assert searched(14) == searched(14)
    assert searched(14, seed=1) != searched(14)
    search, trials = make_search(SPACE, "ppo", 20, 2), drawn(STARTUP)
    scored = [(trial, score(trial)) for trial in trials]
    better = [(trial, -value) for trial, value in scored]
    one, other = (propose(search, x, 0, lambda trial: True) for x in (scored, better))
    assert len(one) == len(other) == 2
    assert one != other


def test_invalid_and_failed_trials():
    """A failed trial is no reason to stop; invalid settings are not proposed."""
    pytest.importorskip("optuna")
    assert {t["unroll"] for t in searched(20, accepts=lambda t: t["unroll"] == 4)[STARTUP:]} == {4}
    search, failed = make_search(SPACE, "ppo", 20, 1), [(trial, None) for trial in drawn(STARTUP)]
    assert len(propose(search, failed, 0, lambda trial: True)) == 1


def test_a_small_space_ends_a_search(tmp_path, trained):
    """Four values; ten trials are asked for at the start, and no more than four can be."""
    config = configure_sweep(
        {"unroll": [4, 8, 16, 32]}, rule="ppo", method="tpe", trials=12, steps=100, seeds=1
    )
    results = compare(config, out=tmp_path / "sweep")
    assert sorted(entry.settings["unroll"] for entry in results.config.rules) == [4, 8, 16, 32]
    assert results.finished
    assert load(tmp_path / "sweep").finished


# --- whole sweeps ---------------------------------------------------------------------------------


def sweep(path, **settings):
    values = {"method": "tpe", "trials": 15, "batch": 2, "steps": 100, "seeds": 2} | settings
    return compare(configure_sweep(SPACE, **{"rule": "ppo"} | values), out=path)


def test_an_interrupted_sweep_proposes_the_same_trials(tmp_path, trained, monkeypatch):
    whole = sweep(tmp_path / "whole")
    assert len(whole.config.rules) == len(set(trained)) == 15
    count, run = len(trained), cells.run

    def stop_at(number):
        def stopping(*given, **named):
            if len(trained) == count + number:
                raise KeyboardInterrupt
            return run(*given, **named)

        monkeypatch.setattr(cells, "run", stopping)

    stop_at(4)  # among the first
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "stopped")
    for number in (11, 12):  # within a batch, and before one
        stop_at(number)
        with pytest.raises(KeyboardInterrupt):
            compare(resume=tmp_path / "stopped")
        assert not load(tmp_path / "stopped").finished
    monkeypatch.setattr(cells, "run", run)
    results = compare(resume=tmp_path / "stopped")
    assert results.config == whole.config
    assert trained[count:] == trained[:count]  # each once


def test_further_trials_have_copies_of_the_rule(tmp_path, trained):
    results = sweep(tmp_path / "sweep", rule="lean2")
    copies = list((tmp_path / "sweep").glob("rule-*.npz"))
    assert len(copies) == 15
    assert len(results.sha256) == 15
    assert {sha256_of(copy) for copy in copies} == set(results.sha256.values())
    compare(resume=tmp_path / "sweep")  # none of them looks like a change


def test_the_command_and_its_page(tmp_path, trained, capsys):
    command = ["sweep", "--rule", "ppo", "--over", "learning-rate=1e-4..1e-1", "unroll=4,8,16"]
    command += ["--method", "tpe", "--trials", "12", "--seeds", "2", "--out", str(tmp_path / "s")]
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--json"])
    assert ended.value.code == 0
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 12
    assert 'id="adaptive"' in (tmp_path / "s" / "report" / "index.html").read_text()
    random = compare(configure_sweep(SPACE, trials=3, steps=100, seeds=2), out=tmp_path / "random")
    assert 'id="adaptive"' not in page.write(random).read_text()


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "tpe", "trials": 10}, "trials is 10; expected more than 10"),
        ({"method": "tpe", "trials": 30, "batch": 30}, "trials is 30; expected more than 30"),
        ({"method": "tpe", "trials": 30, "batch": 0}, "batch is 0"),
        ({"method": "tpe", "trials": 10**9}, "trials is 1000000000"),
        ({"method": "tpe", "trials": 30.5}, "trials is 30.5"),
        ({"method": "tpe"}, "trials is None with method 'tpe'"),
        ({"trials": 3, "batch": 32}, "batch is 32 with method 'random'"),
        ({"method": "grid", "trials": 3}, "trials is 3 with method 'grid'"),
        ({"method": "bayes", "trials": 3}, "method is 'bayes'; expected one of grid, random, tpe"),
    ],
)
def test_mistakes(settings, words):
    with pytest.raises(UserError, match=words):
        configure_sweep(SPACE, steps=100, **settings)


def test_learning_rates_of_a_comparison_do_not_go_with_tpe():
    pytest.importorskip("optuna")
    with pytest.raises(UserError, match=r"learning_rates is .* expected none with method 'tpe'"):
        configure_sweep({"unroll": [4, 8]}, method="tpe", trials=11, learning_rates=[0.1])


def test_without_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r'pip install "discorl\[optuna\]"'):
        configure_sweep(SPACE, method="tpe", trials=30, steps=100)
