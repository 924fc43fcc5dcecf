"""Sweeps: their trials, what mattered in them, and the page and the command that say so."""

import json
import math

import comparisons
import numpy as np
import pytest

from discorl import cli
from discorl.comparison import configure_comparison, load, runner
from discorl.comparison.results import final_cells
from discorl.comparison.sweeps import (
    configure_sweep,
    effects,
    explained,
    ranking,
    read_settings,
    read_space,
)
from discorl.reports import sweep as page
from discorl.training.compiled.trainer import CompiledTrainer
from discorl.types import UserError
from discorl.types.specs import Range

# --- trials ---------------------------------------------------------------------------------------


def trials_of(config):
    return [(entry.rule, dict(entry.settings)) for entry in config.rules]


def test_a_grid_has_every_combination():
    space = {"learning_rate": [0.1, 0.2], "rule": ["ppo", "ppo:clip=0.1"]}
    config = configure_sweep(space, environments=["catch"], seeds=2, steps=100)
    assert trials_of(config) == [
        ("ppo", {"learning_rate": 0.1}),
        ("ppo:clip=0.1", {"learning_rate": 0.1}),
        ("ppo", {"learning_rate": 0.2}),
        ("ppo:clip=0.1", {"learning_rate": 0.2}),
    ]
    assert config.rules[1].label == "learning_rate=0.1, rule=ppo:clip=0.1"
    assert config.over == ("learning_rate", "rule")
    catch = config.environments[0]
    assert config.training(config.rules[3], catch).agent.optimiser.learning_rate == 0.2


def test_random_trials_lie_in_their_ranges_and_depend_on_the_seed():
    space = {"learning_rate": Range(1e-4, 1e-1), "unroll": Range(4, 9), "hidden": ["8", "8 4"]}
    made = [configure_sweep(space, trials=40, seed=seed, steps=100) for seed in (0, 0, 1)]
    assert trials_of(made[0]) == trials_of(made[1]) != trials_of(made[2])
    drawn = [settings for _, settings in trials_of(made[0])]
    rates = np.array([trial["learning_rate"] for trial in drawn])
    assert len(drawn) == 40
    assert 1e-4 <= rates.min() < 1e-3
    assert 1e-2 < rates.max() <= 1e-1
    assert 10 < (rates < 10**-2.5).sum() < 30  # half of them: the scale is logarithmic
    assert {trial["unroll"] for trial in drawn} == {4, 5, 6, 7, 8, 9}
    assert {trial["hidden"] for trial in drawn} == {(8,), (8, 4)}


def test_there_are_no_more_random_trials_than_combinations():
    assert len(configure_sweep({"unroll": [4, 8]}, trials=9, steps=100).rules) == 2


def test_what_the_command_line_says_of_a_space():
    assert read_space(["learning-rate=1e-3,0.1", "unroll=4..8", "rule=ppo:clip=0.1,muesli"]) == {
        "learning_rate": [1e-3, 0.1],
        "unroll": Range(4, 8),
        "rule": ["ppo:clip=0.1", "muesli"],
    }
    assert read_settings(["hidden=64 32", "preset=small", "unroll=4"]) == {
        "hidden": (64, 32),
        "preset": "small",
        "unroll": 4,
    }


@pytest.mark.parametrize(
    ("space", "settings", "words"),
    [
        ({}, {}, "over is empty"),
        ({"learning_rat": [1]}, {}, r"no setting 'learning_rat'; did you mean 'learning_rate'"),
        ({"seed": [1]}, {}, "over has 'seed', which is the same in all trials: see seed"),
        ({"unroll": Range(1, 2)}, {}, "unroll is a range; expected values, or a number of trials"),
        ({"unroll": [1, Range(1, 2)]}, {}, "expected single values, or one range"),
        ({"unroll": [4, -1]}, {}, r"settings of 'unroll=-1' in 'catch': unroll is -1"),
        ({"unroll": [4]}, {"trials": 0}, "trials is 0"),
        ({"unroll": 4}, {}, "over: unroll is 4; expected a list of values, or a Range"),
        ({"rule": "ppo"}, {}, "over: rule is 'ppo'; expected a list of values, or a Range"),
        ({"unroll": [[4, 8]]}, {}, "expected single values, or one range"),
        ({"hidden": [Range(4, 8)]}, {}, "expected single values, or one range"),
        ({"unroll": [4, 8, 4]}, {}, "over: unroll has 4 twice"),
        ({"unroll": Range(1, 4)}, {"trials": 2, "seed": -1}, "seed is -1"),
        ({"unroll": [4]}, {"settings": {"unroll": 8}}, "settings has 'unroll', which over varies"),
        ({"unroll": [4]}, {"settings": 3}, "settings is 3; expected a table"),
        ({"unroll": [4]}, {"settings": {"rule": "ppo"}}, "settings has 'rule', .*: see rule$"),
        ({"unroll": [4]}, {"settings": {"env": "grid"}}, "settings has 'env', .*: see environment"),
        ({"unroll": [4]}, {"settings": {"updates": 3}}, "settings has 'updates', .*: see steps"),
        ({"unroll": [4]}, {"settings": {"seeds": 3}}, "settings has 'seeds', .*: see seeds"),
    ],
)
def test_mistakes(space, settings, words):
    with pytest.raises(UserError, match=words):
        configure_sweep(space, environments=["catch"], steps=100, **settings)


def test_environments_may_be_tables():
    table = {"env": "catch:rows=4", "label": "low"}
    config = configure_sweep({"unroll": [4, 8]}, environments=[table], steps=100)
    assert [(entry.env, entry.label) for entry in config.environments] == [("catch:rows=4", "low")]


@pytest.mark.parametrize("text", ["learning_rate", "learning_rate=", "learning_rate=1,,2"])
def test_a_space_that_cannot_be_read(text):
    with pytest.raises(UserError, match="expected NAME=VALUE,VALUE"):
        read_space([text])


# --- what mattered --------------------------------------------------------------------------------


def test_the_variance_that_groups_explain():
    """Scores 1, 3 | 5, 7: within 4, total 20; 1 - (4 / 2) / (20 / 3) = 0.7."""
    assert explained([np.array([1.0, 3.0]), np.array([5.0, 7.0])]) == pytest.approx(0.7)
    assert explained([np.array([1.0, 3.0]), np.array([1.0, 3.0])]) == 0
    assert math.isnan(explained([np.array([1.0]), np.array([2.0])]))


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A sweep with made-up results, in which the learning rate matters and the unroll does not."""
    space = {"unroll": [4, 8], "learning_rate": [0.001, 0.01, 0.1]}
    config = configure_sweep(space, rule="ppo", environments=["catch"], seeds=5, steps=1000)
    quality = {0.001: 0.2, 0.01: 0.8, 0.1: 0.5}
    runner.create(tmp_path / "sweep", config).close()
    scales = load(tmp_path / "sweep").scales
    random = np.random.default_rng(0)
    for cell in final_cells(config, {}):
        rate = cell.rule.settings["learning_rate"]
        monkeypatch.setitem(comparisons.QUALITY, cell.rule.label, quality[rate])
        record = comparisons.record(cell, scales["catch"], random, 1000)
        comparisons.write(tmp_path / "sweep", cell, record | {"learning_rate": rate})
    return load(tmp_path / "sweep")


def test_the_setting_that_matters_comes_first(results):
    first, second = effects(results)
    assert (first.setting, second.setting) == ("learning_rate", "unroll")
    assert first.share > 0.8
    assert second.share < 0.1
    assert [text for text, _ in first.groups] == ["0.001", "0.01", "0.1"]
    np.testing.assert_allclose([e.value for _, e in first.groups], [0.2, 0.8, 0.5], atol=0.06)
    assert [len(effect.groups) for effect in (first, second)] == [3, 2]
    best, score = ranking(results)[0]
    assert "learning_rate=0.01" in best
    assert score.value == pytest.approx(results.scores(best).mean())


def test_many_values_are_shown_as_three_ranges(results, monkeypatch):
    monkeypatch.setattr("discorl.comparison.sweeps.MOST_GROUPS", 2)
    (found,) = (effect for effect in effects(results) if effect.setting == "learning_rate")
    assert [text for text, _ in found.groups] == ["0.001 to 0.001", "0.01 to 0.01", "0.1 to 0.1"]


def test_the_page_has_the_best_command_and_all_trials(results):
    text = page.write(results).read_text()
    assert text.count("<tr>") >= 6 + 2
    assert 'id="chart-effects"' in text
    assert '"label": "learning_rate = 0.01"' in text
    command = page.train_command(results)
    assert command.startswith("discorl train --rule ppo --env catch --steps 1000 --unroll ")
    assert command.endswith("--learning-rate 0.01")
    assert command in text
    assert "optional" not in text  # a field of entries: the table has the trials
    assert (results.path / "report" / "scores.csv").read_text().count("\n") == 31


# --- the command ----------------------------------------------------------------------------------


def test_a_sweep_from_the_command_line(tmp_path, capsys, monkeypatch):
    """Learning rates share one program; a resume, and a report, read what is there."""
    made = []
    make = CompiledTrainer._make_run
    monkeypatch.setattr(
        CompiledTrainer, "_make_run", lambda *given: made.append(given) or make(*given)
    )
    folder = str(tmp_path / "sweep")
    small = ["hidden=4", "num_envs=2", "batch=2", "unroll=4", "replay_fraction=0.0"]
    command = ["sweep", "--rule", "actor_critic", "--envs", "catch:rows=3,columns=3"]
    command += ["--over", "learning-rate=0.01,0.1", "--steps", "96", "--seeds", "2"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--settings", *small, "--out", folder, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert len(made) == 1
    assert {trial["learning_rate"] for trial in found["trials"]} == {0.01, 0.1}
    assert found["effects"][0]["setting"] == "learning_rate"
    for again in (["sweep", "--resume", folder], ["report", folder]):
        with pytest.raises(SystemExit) as ended:
            cli.main([*again, "--json"])
        assert ended.value.code == 0
        assert json.loads(capsys.readouterr().out)["report"] == found["report"]
    assert len(made) == 1
    assert 'id="trials"' in (tmp_path / "sweep" / "report" / "index.html").read_text()


def test_an_ordinary_comparison_is_not_resumed_as_a_sweep(tmp_path, capsys, monkeypatch):
    config = configure_comparison(rules=["ppo"], environments=["catch"], steps=100, seeds=1)
    runner.create(tmp_path / "comparison", config).close()
    monkeypatch.setattr("discorl.cli.sweep.compare", lambda **_: pytest.fail("it trained"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["sweep", "--resume", str(tmp_path / "comparison")])
    assert ended.value.code == 2
    assert "comparison is not a sweep; continue it with" in capsys.readouterr().err
