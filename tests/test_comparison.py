"""Comparing rules: what is compared, the choice of learning rates, and runs that survive a kill."""

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparisons import fabricate, record, write

import discorl
from discorl import cli
from discorl.comparison import configure_comparison, load, report, run_report, suites, work
from discorl.comparison.cells import curve
from discorl.comparison.entries import RuleEntry
from discorl.comparison.results import final_cells, sweep_cells
from discorl.comparison.scales import Scale
from discorl.rules import HAND_MADE
from discorl.types import UserError

TINY = """
rules = [
    "actor_critic",
    { rule = "policy_gradient", learning_rates = [0.02] },
]
environments = [
    { env = "catch:rows=3,columns=3", label = "catch" },
    { env = "catch:rows=1", label = "broken" },
]
learning_rates = [0.01, 0.02]
steps = 96
seeds = 2
sweep_seeds = 2

[settings]
hidden = [4]
environments = 2
batch = 2
unroll = 4
replay_fraction = 0.0
"""


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", suites())
def test_named_suites(name):
    config = configure_comparison(name, rules=["ppo", "actor_critic"])
    assert config.name == name
    assert config.about
    for environment in config.environments:
        one, two = (config.training(rule, environment) for rule in config.rules)
        # The same steps for all rules, each in updates of its own size, none cut short.
        for training in (one, two):
            steps = training.updates * training.environments * training.unroll
            assert config.steps <= steps < config.steps + training.environments * training.unroll


@pytest.mark.parametrize("name", ["atari57", "procgen16"])
def test_presets_of_the_paper_do_not_handicap_hand_made_rules(name):
    config = configure_comparison(name, rules=list(HAND_MADE))
    paper = config.training(RuleEntry("disco103"), config.environments[0])
    assert paper.weight_decay > 0
    assert paper.warmup_steps > 0
    assert paper.schedule == "cosine"
    for rule in config.rules:
        plain = config.training(rule, config.environments[0])
        assert (plain.weight_decay, plain.warmup_steps, plain.schedule) == (0, 0, "constant")
        assert (plain.filters, plain.discount) == (paper.filters, paper.discount)
        assert len(config.rates(rule)) == 3, "every rule is tuned"


def test_a_memory_where_one_is_needed():
    config = configure_comparison("minigrid", rules=["ppo"])
    cores = {e.label: config.training(config.rules[0], e).core for e in config.environments}
    assert {label for label, core in cores.items() if core} == {"minigrid:MemoryS8"}


def test_a_line_more(tmp_path):
    base, more = tmp_path / "base.toml", tmp_path / "more.toml"
    base.write_text(TINY)
    more.write_text(f'extends = "{base}"\nmore_rules = ["ppo:epochs=2"]\n')
    config = configure_comparison(more, seeds=3, more_rules="ppo")
    own = configure_comparison(base).rules
    assert config.rules == (*own, RuleEntry("ppo:epochs=2"), RuleEntry("ppo"))
    assert (config.name, config.seeds, config.steps) == ("more", 3, 96)
    assert config.training(config.rules[0], config.environments[0]).hidden == (4,)
    with pytest.raises(UserError, match="'actor_critic' is there twice"):
        configure_comparison(base, more_rules=["actor_critic"])


def test_names_stand_for_entries_of_the_suite(tmp_path):
    suite = tmp_path / "suite.toml"
    suite.write_text("""
        learning_rates = [0.1, 0.2]
        rules = [
            "actor_critic",
            { rule = "ppo", label = "mine", learning_rates = [0.3], settings = { unroll = 5 } },
            { rule = "disco103", optional = true },
        ]
        environments = [{ env = "catch", label = "ours", random = 0.25, optimal = 0.5 }, "chain"]
    """)
    expected = RuleEntry("ppo", "mine", (0.3,), {"unroll": 5})
    for name in ("ppo", "mine"):
        config = configure_comparison(suite, rules=[name, "muesli"], environments=["catch"])
        assert config.rules == (expected, RuleEntry("muesli"))
        assert [(e.label, e.random) for e in config.environments] == [("ours", 0.25)]
    # A table is taken as it is; so are learning rates, unless they were the suite's.
    given = {"rule": "ppo", "learning_rates": [0.4]}
    config = configure_comparison(suite, rules=["mine", given], learning_rates=[0.5])
    assert [config.rates(rule) for rule in config.rules] == [(0.5,), (0.4,)]
    assert config.rules[0].settings == {"unroll": 5}
    # A rule that is asked for by name is not left out in silence.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
        patch.delenv("DISCORL_RULES", raising=False)
        assert len(configure_comparison(suite).rules) == 2
        with pytest.raises(UserError, match="rule 'disco103' is not on this machine"):
            configure_comparison(suite, rules=["disco103"])


def test_rules_on_the_command_line(tmp_path, capsys):
    """Settings that PPO refuses, so that nothing is trained."""
    suite, out = tmp_path / "suite.toml", tmp_path / "run"
    suite.write_text("""
        rules = ["muesli", { rule = "ppo", learning_rates = [0.1], settings = { unroll = 5 } }]
        environments = ["catch"]
        settings = { batch = 10, environments = 10 }
    """)
    options = ["--rules", "ppo", "--more-rules", "ppo:epochs=2", "--learning-rates", "0.2"]
    with pytest.raises(SystemExit):
        cli.main(["compare", "--suite", str(suite), *options, "--out", str(out), "--json"])
    assert len(json.loads(capsys.readouterr().out)["failures"]) == 2
    config = load(out).config
    assert [rule.label for rule in config.rules] == ["ppo", "ppo:epochs=2"]
    assert [config.rates(rule) for rule in config.rules] == [(0.2,), (0.2,)]
    assert [rule.settings for rule in config.rules] == [{"unroll": 5}, {}]


def test_a_file_beside_another(tmp_path):
    folder = tmp_path / "suites"
    folder.mkdir()
    (folder / "base.toml").write_text(TINY)
    (folder / "more.toml").write_text('extends = "base.toml"\nseeds = 7\n')
    config = configure_comparison(folder / "more.toml")
    assert (config.seeds, config.steps) == (7, 96)
    (folder / "base.toml").write_text('extends = "../suites/more.toml"')
    with pytest.raises(UserError, match="which extends this file in turn"):
        configure_comparison(folder / "more.toml")
    (folder / "base.toml").write_text("extends = 3")
    with pytest.raises(UserError, match="extends is 3; expected a suite's name"):
        configure_comparison(folder / "more.toml")


def test_an_optional_rule_is_left_out_where_it_is_not_found(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DISCORL_RULES", raising=False)
    entry = {"rule": "disco103", "optional": True}
    config = configure_comparison(rules=["ppo", entry], environments=["catch"], about="Two.")
    assert [rule.label for rule in config.rules] == ["ppo"]
    assert config.about == "Two. disco103 is left out: it has not been fetched."
    with pytest.raises(UserError, match="rule 'disco103' is not on this machine"):
        configure_comparison(rules=["ppo", "disco103"], environments=["catch"])
    with pytest.raises(UserError, match="no rules to compare"):
        configure_comparison(rules=[entry], environments=["catch"])


def test_an_optional_rule_stays_where_it_is_found(tmp_path):
    file = tmp_path / "mine.npz"
    file.touch()
    config = configure_comparison(
        rules=[{"rule": str(file), "optional": True}], environments=["catch"]
    )
    assert (len(config.rules), config.about) == (1, "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rules": []}, "no rules to compare"),
        ({"rules": ["pp0"]}, "did you mean 'ppo'"),
        ({"rules": ["ppo", "ppo"]}, "'ppo' is there twice"),
        ({"rules": [{"rule": "ppo", "lr": 1}]}, "no setting 'lr'"),
        ({"suite": "laptob"}, "did you mean 'laptop'"),
        ({"suite": "no.toml"}, "no.toml: cannot be read"),
        ({"stepps": 3}, "did you mean 'steps'"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"seeds": "5"}, "seeds is '5'; expected a whole number"),
        ({"seeds_at_once": -1}, "seeds_at_once is -1; expected at least 0"),
        ({"learning_rates": [0.0]}, "expected different positive numbers"),
        ({"learning_rates": 0.1}, "learning_rates is 0.1; expected a list of numbers"),
        ({"settings": {"hidden": 64}}, "hidden is 64; expected a list of widths"),
        ({"settings": {"batch": "8"}}, "settings of 'ppo' in 'catch': '>=' not supported"),
        ({"settings": 3}, "settings is 3; expected a table"),
        ({"rules": [3]}, "3: expected a name, or a table with the setting 'rule'"),
        ({"more_rules": 3}, "3: expected a name, or a table with the setting 'rule'"),
        ({"sweep_seed": 4}, "apart from those compared, 0 to 4"),
        ({"tune": "rule"}, "expected one of suite, environment"),
        ({"settings": {"hiden": [3]}}, "no setting 'hiden'"),
        ({"environments": [{"env": "catch", "random": 0.0}]}, "expected two different numbers"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(UserError, match=message):
        configure_comparison(**{"rules": ["ppo"], "environments": ["catch"]} | settings)


def test_scales_must_be_known(tmp_path):
    environments = ["probes:ConstantReward", "catch"]
    with pytest.raises(UserError, match="has no returns of its own to normalise scores by"):
        discorl.compare(rules=["ppo"], environments=environments, out=tmp_path / "run")
    # A slip of the pen is no suite that is not installed, and does not wait until all is trained.
    scaled = {"env": "katch", "random": 0, "optimal": 1}
    for environments in (["katch"], ["catch", "katch"], ["catch", scaled]):
        with pytest.raises(UserError, match="no environment 'katch'"):
            discorl.compare(rules=["ppo"], environments=environments, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- cells and learning rates ---------------------------------------------------------------------


def test_order_of_cells():
    config = configure_comparison(
        rules=["ppo", "actor_critic"],
        environments=["catch", "chain"],
        seeds=3,
        seeds_at_once=2,
        learning_rates=[0.1, 0.2],
    )
    sweep = [(c.environment.label, c.rule.label, c.learning_rate) for c in sweep_cells(config)]
    assert len(sweep) == len(set(sweep)) == 8
    assert {c.seed for c in sweep_cells(config)}.isdisjoint(range(3))
    final = [(c.seed, c.seeds, c.environment.label) for c in final_cells(config, {})]
    # Every environment has results before any has all its seeds.
    assert final[::2] == [(0, 2, "catch"), (0, 2, "chain"), (2, 1, "catch"), (2, 1, "chain")]


def test_on_the_host_a_cell_is_one_agent():
    settings = {"rules": ["ppo"], "environments": ["catch", "atari:Pong"], "seeds": 2}
    config = configure_comparison(**settings, learning_rates=[0.1, 0.2])
    final = [(c.environment.label, c.seed, c.seeds) for c in final_cells(config, {})]
    assert final == [("catch", 0, 2), ("atari:Pong", 0, 1), ("atari:Pong", 1, 1)]
    assert [c.seeds for c in sweep_cells(config)] == [2, 2, 1, 1, 1, 1]


def test_choice_of_learning_rates(tmp_path):
    """Rates 0.1 and 0.2 score 0.9 and 0.5 in one environment, 0.1 and 0.6 in the other."""
    scores = {("catch", 0.1): 0.9, ("catch", 0.2): 0.5, ("small", 0.1): 0.1, ("small", 0.2): 0.6}
    settings = {
        "rules": ["ppo"],
        "environments": ["catch", {"env": "catch:rows=5", "label": "small"}],
        "learning_rates": [0.1, 0.2],
    }

    def chosen(tune, **statuses):
        path = tmp_path / f"{tune}{len(statuses)}"
        results = fabricate(path, **settings, tune=tune)
        for cell in sweep_cells(results.config):
            scale = results.scales[cell.environment.label]
            score = scores[cell.environment.label, cell.learning_rate]
            value = scale.random + score * (scale.optimal - scale.random)
            status = statuses.get(f"{cell.environment.label}_{cell.learning_rate:g}", "finished")
            content = record(cell, scale, np.random.default_rng(0), 100)
            write(path, cell, content | {"returns": [value] * 2, "status": status})
        return list(load(path).chosen.values())

    assert chosen("suite") == [0.2, 0.2]
    assert chosen("environment") == [0.1, 0.2]
    # A rate that diverged somewhere comes after one that trained well everywhere.
    assert chosen("suite", **{"catch_0.2": "diverged"}) == [0.1, 0.1]


def test_a_rule_whose_whole_sweep_fails_is_not_run(tmp_path, capsys):
    """No cell gets as far as training: their settings are refused, be it once more."""
    path, lines = tmp_path / "run", []
    results = discorl.compare(
        rules=[{"rule": "ppo", "settings": {"batch": 10, "environments": 10}}],
        environments=["catch"],
        learning_rates=[0.1, 0.2],
        out=path,
        tell=lines.append,
    )
    assert results.finished
    assert not results.aggregates
    assert results.chosen == {("ppo", "catch"): None}
    (content,) = results.final.values()
    reason = "not run: every learning rate failed in the sweep: UserError: batch is 10"
    assert content["message"].startswith(reason)
    assert "learning rate of ppo: none, for all failed" in lines
    assert any("final ppo on catch, seeds 0 to 4: failed: not run" in line for line in lines)
    with pytest.raises(SystemExit) as exit:
        cli.main(["compare", "--resume", str(path)])
    assert exit.value.code == 1
    assert f"ppo: {reason}" in capsys.readouterr().out
    assert reason in (path / "report" / "index.html").read_text()


def test_a_sweep_that_fails_in_one_environment(tmp_path):
    """Tuned for the suite, a rate is chosen by the other; tuned for each, there is none here."""
    for tune, expected in (("suite", [0.01, 0.01]), ("environment", [0.01, None])):
        path = tmp_path / tune
        results = fabricate(path, rules=["ppo"], tune=tune)
        other = results.config.environments[1]
        for cell in results.sweep:
            good = record(cell, Scale(0, 1), np.random.default_rng(0), 100)
            better = {"returns": [cell.learning_rate] * 2}
            bad = {"status": "failed", "message": "out of luck"}
            write(path, cell, bad if cell.environment == other else good | better)
        results = load(path)
        assert list(results.chosen.values()) == expected
        assert list(results.untuned) == [("ppo", other.label)] * (tune == "environment")


def test_returns_as_they_are(tmp_path, capsys):
    """One environment without a scale: nothing is called normalised, and there is no gap."""
    path = tmp_path / "run"
    results = fabricate(path, environments=["probes:ConstantReward"])
    assert not results.normalised
    assert list(results.aggregates["ppo"]) == ["iqm", "median", "mean"]
    text = report.write(results).read_text()
    assert "returns as they are" in text
    assert "IQM of return per episode" in text
    with pytest.raises(SystemExit):
        cli.main(["compare", "--resume", str(path)])
    told = capsys.readouterr().out
    assert "returns as they are, 95% intervals" in told
    # A hundred updates of 2e9; 10 s for five runs, and twice 10 s for the sweep.
    (line,) = (line for line in told.splitlines() if line.startswith("ppo "))
    assert line.split()[-4:] == ["100", "2e+11", "2.0", "20.0"]
    for word in ("normalised", "ptimality gap"):
        assert word not in told
        assert word not in text
    results = fabricate(tmp_path / "other")
    text = report.write(results).read_text()
    assert "normalised score" in text
    assert "Optimality gap" in text
    assert "returns as they are" not in text
    assert "<th>seeds</th>" in text
    assert "<td>1000000&ndash;1000001</td>" in text


def test_unfinished_rules_do_not_hide_the_others(tmp_path):
    results = fabricate(tmp_path / "run")
    assert results.finished
    assert len(results.tasks) == 2
    failing = [cell for cell in results.final if cell.rule.label == "ppo"]
    write(tmp_path / "run", failing[0], {"status": "failed", "message": "out of memory"})
    # Nor does the environment that does not count add to what the others cost.
    for cell, content in [*results.sweep.items(), *results.final.items()]:
        if cell.environment == failing[0].environment and cell.rule.label == "actor_critic":
            write(tmp_path / "run", cell, content | {"updates": 7000, "seconds": 1e6})
    results = load(tmp_path / "run")
    assert results.tasks == [failing[1].environment.label]
    costs = results.costs["actor_critic"].numbers()
    assert costs == {"updates": 100, "flops": 2e11, "seconds": 2.0, "sweep_seconds": 20.0}
    assert results.scores("actor_critic").shape == (5, 1)
    write(tmp_path / "run", failing[1], {"status": "failed", "message": "out of memory"})
    results = load(tmp_path / "run")
    assert results.rules == ["actor_critic", "policy_gradient"]
    assert len(results.tasks) == 2
    assert "out of memory" in report.write(results).read_text()


def test_curve_by_hand():
    metrics = {
        "seed": np.array([0, 0, 1, 0, 0]),
        "steps": np.array([10, 20, 20, 30, 40]),
        "episodes": np.array([0, 1, 9, 3, 0]),
        "return": np.array([np.nan, 1.0, 50.0, 5.0, np.nan]),
    }
    found = curve(metrics, 0, np.array([10.0, 20.0, 30.0, 40.0, 60.0]), window=20)
    # Nothing yet; the first; 1 and three times 5; then 5 alone, which stands when nothing follows.
    np.testing.assert_allclose(found, [np.nan, 1.0, 4.0, 5.0, 5.0])


def test_scale():
    assert Scale(-1.0, 3.0).score(1.0) == 0.5


def test_flops():
    """Of a scan, in which XLA's count takes the body once, and of parts that XLA counts right."""
    a, b = jnp.ones((4, 8)), jnp.ones((8, 8))

    def loop(a, b):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ b), None), a, length=7)[0]

    assert work.flops(loop, a, b) == 7 * 2 * 4 * 8 * 8
    # With the gradient: the product again, and one for each factor.
    gradient = jax.grad(lambda b: jnp.sum(jax.jit(jnp.matmul)(a, b) ** 2))
    assert work.flops(gradient, b) == 2 * (2 * 4 * 8 * 8)

    def convolve(image, kernel):
        return jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID")

    shapes = jnp.ones((2, 3, 9, 9)), jnp.ones((5, 3, 3, 3))
    theirs = jax.jit(convolve).lower(*shapes).compile().cost_analysis()["flops"]
    assert work.flops(convolve, *shapes) == pytest.approx(theirs, rel=1e-3)


# --- running --------------------------------------------------------------------------------------


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

    stopped = discorl.compare(suite=folder / "tiny.toml", out=out, tell=stop)
    assert not stopped.finished
    assert len(list(out.glob("cells/*/*/*/result.json"))) == 1
    assert not stopped.aggregates
    results = discorl.compare(resume=out, tell=lines.append)
    return folder, results, lines


def test_a_comparison(tiny):
    _, results, lines = tiny
    assert results.finished
    # The environment that cannot be made is told of, recorded, and stops nothing.
    assert any("broken cannot be made: catch: rows must be at least 2" in line for line in lines)
    assert {cell.environment.label for cell in results.failures} == {"broken"}
    assert all("rows must be at least 2" in r["message"] for r in results.failures.values())
    assert results.tasks == ["catch"]
    # Scores are those of the runs, on the scale of the environment.
    for cell, content in results.final.items():
        if cell.environment.label == "broken":
            continue
        metrics = discorl.runs.Run.open(results.path / cell.folder, read_only=True).metrics()
        for seed, value in zip(content["seeds"], content["returns"], strict=True):
            expected = discorl.training.recent_return(metrics, seed)
            assert value == expected
        random, optimal = -1 / 3, 1.0  # of 3x3 Catch: one in three, and all
        scores = (np.array(content["returns"]) - random) / (optimal - random)
        np.testing.assert_allclose(results.scores(cell.rule.label)[:, 0], scores, rtol=1e-6)
        assert content["steps"] == 96
        assert content["flops_per_update"] > 0
        assert content["seconds"] > 0
        assert not (results.path / cell.folder / "checkpoints").exists()
    assert results.chosen["policy_gradient", "catch"] == 0.02
    assert report.write(results).exists()


def test_one_program_serves_all_learning_rates(tmp_path, caplog):
    """The sweep and the runs that count, all of two seeds, are one program, and end as if alone."""
    settings = {"hidden": [4], "environments": 2, "batch": 2, "unroll": 4, "replay_fraction": 0.0}

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
            np.testing.assert_array_equal(column, alone.metrics[name], err_msg=name)
    first = discorl.runs.Run.open(results.path / next(iter(results.sweep)).folder, read_only=True)
    assert not np.array_equal(first.metrics()["loss"], alone.metrics["loss"])


def test_a_suite_that_comes_later(tmp_path, monkeypatch):
    """An environment that could not be made runs, and counts, once its suite is there."""
    settings = {"hidden": [4], "environments": 2, "batch": 2, "unroll": 4, "replay_fraction": 0.0}
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
    assert not exit.value.code
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
    config = {"preset": "laptop", "envs": ["bandit"]}
    with discorl.runs.Run.create(path, config, "discover") as run:
        for update in range(1, 401):
            steps = [update * 12 % 120, update * 12 % 360]
            rows = [
                {"update": update, "agent": i, "group": 0, "return": rng.random(), "steps": n}
                for i, n in enumerate(steps)
            ]
            run.log(rows, "agents")
            run.log([{"update": update, "return": rng.random(), "steps": sum(steps) / 2}])
    trained = tmp_path / "trained"
    with discorl.runs.Run.create(trained, {"rule": "ppo", "env": "catch"}, "train") as run:
        run.log([{"update": i, "seed": 0, "return": 1.0, "steps": 20 * i} for i in (1, 2)])
    text = run_report.write([path, trained], tmp_path / "index.html").read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    charts = {(chart["title"], chart["x_label"]): chart["lines"] for chart in data["charts"]}
    assert {name for name in charts if charts[name][0]["series"] == 0} == {
        ("return", "meta-steps"),
        ("return (agents)", "meta-steps"),
    }
    for title in ("return", "return (agents)"):
        (line,) = charts[title, "meta-steps"]
        assert (np.diff(line["x"]) > 0).all()
        assert line["x"][-1] == 400
    (line,) = charts["return", "environment steps"]
    assert line["x"] == [20, 40]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>.*?</tr>", text)]
    assert [row[4:7] for row in cells[1:3]] == [
        ["&ndash;", "&ndash;", "400"],
        ["2", "40", "&ndash;"],
    ]


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
    assert {"return", "loss", "entropy"} <= set(charts)
    metrics = discorl.runs.Run.open(runs[0], read_only=True).metrics()
    last = metrics["update"] == metrics["update"].max()
    line = charts["entropy"]["lines"][0]
    values = metrics["entropy"][last]
    shown = (line["y"][-1], line["low"][-1], line["high"][-1])
    assert shown == pytest.approx((values.mean(), values.min(), values.max()), rel=1e-5)
    assert "data:image/gif;base64,R0lGODlh" in text
    # A comparison has a page of its own, and stands for itself.
    for arguments, status in (([results.path], 0), ([results.path, runs[0]], 2), ([tmp_path], 2)):
        with pytest.raises(SystemExit) as exit:
            cli.main(["report", *map(str, arguments)])
        assert (exit.value.code or 0) == status
    assert "give it alone" in capsys.readouterr().err
