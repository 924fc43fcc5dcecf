"""From cells to results: their order, the choice of learning rates, failures, curves and work."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparisons import fabricate, record, write

import discorl
from discorl import cli
from discorl.comparison import configure_comparison, load
from discorl.comparison.cells import curve
from discorl.comparison.results import final_cells, sweep_cells
from discorl.comparison.scales import Scale
from discorl.reports import comparison, marl_eval
from discorl.runs import statistics
from discorl.runs.metrics import EPISODES, RETURN, STEP
from discorl.training.flops import flops


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


def test_a_rule_with_fewer_seeds(tmp_path):
    results = fabricate(
        tmp_path / "runs", rules=["actor_critic", {"rule": "ppo", "seeds": 3}], seeds_at_once=2
    )
    assert [cell.seeds for cell in results.final if cell.rule.label == "ppo"] == [2, 2, 1, 1]
    assert results.scores("actor_critic").shape == (5, 2)
    assert results.scores("ppo").shape == (3, 2)
    assert results.config.runs_text == "5 (3 of ppo)"
    assert 0 <= results.improvement("ppo", "actor_critic").value <= 1
    exported = json.loads(marl_eval.as_json(results))["comparison"]["catch"]
    assert list(exported) == results.rules
    assert all(list(runs) == ["seed_0", "seed_1", "seed_2"] for runs in exported.values())


def test_on_the_host_a_cell_is_one_agent():
    settings = {"rules": ["ppo"], "environments": ["catch", "atari:Pong"], "seeds": 2}
    config = configure_comparison(**settings, learning_rates=[0.1, 0.2])
    final = [(c.environment.label, c.seed, c.seeds) for c in final_cells(config, {})]
    assert final == [("catch", 0, 2), ("atari:Pong", 0, 1), ("atari:Pong", 1, 1)]
    assert [c.seeds for c in sweep_cells(config)] == [2, 2, 1, 1, 1, 1]
    own = {"env": "clocks:Clocks", "random": 0, "optimal": 1}
    config = configure_comparison(**settings | {"environments": [own]})
    assert [c.seeds for c in final_cells(config, {})] == [1, 1]


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
        rules=[{"rule": "ppo", "settings": {"batch": 10, "num_envs": 10}}],
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
    assert "learning rate of ppo: none, because all failed" in lines
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


def test_a_statistic_of_ones_own_is_computed_tabled_and_drawn(tmp_path, monkeypatch, capsys):
    worst = statistics.Aggregate(lambda x: x.min(axis=(-2, -1)), "worst run", "The worst of all")
    monkeypatch.setitem(statistics.AGGREGATES, "worst", worst)
    path = tmp_path / "run"
    results = fabricate(path)
    for rule in results.rules:
        assert results.aggregates[rule]["worst"].value == results.scores(rule).min()
    assert "The worst of all" in comparison.write(results).read_text()
    with pytest.raises(SystemExit):
        cli.main(["compare", "--resume", str(path)])
    assert "worst run" in capsys.readouterr().out


def test_returns_as_they_are(tmp_path, capsys):
    """One environment without a scale: nothing is called normalised, and there is no gap."""
    path = tmp_path / "run"
    results = fabricate(path, environments=["probes:ConstantReward"])
    assert not results.normalised
    assert list(results.aggregates["ppo"]) == ["iqm", "median", "mean"]
    text = comparison.write(results).read_text()
    assert "returns as they are" in text
    assert "IQM of return per episode" in text
    with pytest.raises(SystemExit):
        cli.main(["compare", "--resume", str(path)])
    told = capsys.readouterr().out
    assert "returns as they are, 95% intervals" in told
    # A hundred updates of 2e9; 10 s for five runs, and twice 10 s for the sweep.
    _, line = (line for line in told.splitlines() if line.startswith("ppo "))
    assert line.split()[-4:] == ["100", "2e+11", "2.0", "20.0"]
    for word in ("normalised", "ptimality gap"):
        assert word not in told
        assert word not in text
    results = fabricate(tmp_path / "other")
    text = comparison.write(results).read_text()
    assert "normalised score" in text
    assert "Optimality gap" in text
    assert "returns as they are" not in text
    assert "<th>seeds</th>" in text
    assert "<td>1000000 to 1000001</td>" in text


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("sha256", 0.5, "sha256 is 0.5; expected an object"),
        ("scales", {"catch": {"random": "x", "optimal": 1, "known": True}}, "random is 'x'"),
        ("unavailable", {"catch": None}, "unavailable.catch is None; expected a text"),
    ],
)
def test_a_damaged_description_is_refused_by_name(tmp_path, part, value, words):
    fabricate(tmp_path / "it")
    file = tmp_path / "it" / "config.json"
    described = json.loads(file.read_text())
    described["config"][part] = value
    file.write_text(json.dumps(described))
    with pytest.raises(discorl.UserError, match=f"config.json: .*{words}"):
        load(tmp_path / "it")


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
    assert "out of memory" in comparison.write(results).read_text()


def test_curve_by_hand():
    metrics = {
        "seed": np.array([0, 0, 1, 0, 0]),
        STEP: np.array([10, 20, 20, 30, 40]),
        EPISODES: np.array([0, 1, 9, 3, 0]),
        RETURN: np.array([np.nan, 1.0, 50.0, 5.0, np.nan]),
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

    assert flops(loop, a, b) == 7 * 2 * 4 * 8 * 8
    # With the gradient: the product again, and one for each factor.
    gradient = jax.grad(lambda b: jnp.sum(jax.jit(jnp.matmul)(a, b) ** 2))
    assert flops(gradient, b) == 2 * (2 * 4 * 8 * 8)

    def convolve(image, kernel):
        return jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID")

    shapes = jnp.ones((2, 3, 9, 9)), jnp.ones((5, 3, 3, 3))
    theirs = jax.jit(convolve).lower(*shapes).compile().cost_analysis()["flops"]
    assert flops(convolve, *shapes) == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_tables_of_a_comparison_fit_the_terminal(tmp_path, monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    fabricate(tmp_path / "run", seeds=2)
    with pytest.raises(SystemExit):
        cli.main(["compare", "--resume", str(tmp_path / "run")])
    text, _, after = capsys.readouterr().out.partition("normalised scores, 95% intervals")
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    # Nothing is cut off: every number of the tables is there.
    found = load(tmp_path / "run")
    for row in found.aggregates.values():
        for e in row.values():
            assert f"{e.value:.3f}" in text
            assert f"[{e.low:.3f}, {e.high:.3f}]" in text
    assert "With fewer than 5 runs, bootstrap intervals are too narrow" in after
