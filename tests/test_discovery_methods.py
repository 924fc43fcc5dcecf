"""Discovery of any rule with parameters, by meta-gradients and by evolution."""

from pathlib import Path

import jax
import numpy as np
import pytest
from timing import untimed

import discorl
from discorl import cli, rules
from discorl.discovery import loop
from discorl.discovery.start import keys_of
from discorl.rules import Lean
from discorl.types import UserError

TESTS = Path(__file__).parent
TINY = {
    "preset": "lean",
    "envs": ("chain:length=4",),
    "evaluate_on": ("chain:length=4,seed=1",),
    "agents": 8,
    "meta_steps": 4,
    "hidden": (8,),
    "num_envs": 2,
    "unroll": 4,
    "batch": 4,
    "replay": 8,
    "shortest_life": 20,
    "longest_life": 40,
    "noise": 1.0,  # and a high learning rate: lives that differ after a few updates
    "learning_rate": 0.05,
    "evaluate_every": 4,
    "evaluate_seeds": 1,
    "evaluate_updates": 6,
    "checkpoint_every": 1,
}


@pytest.fixture(scope="module")
def evolved(tmp_path_factory):
    path = tmp_path_factory.mktemp("evolved") / "run"
    return discorl.discover(**TINY, seed=3, out=path)


def assert_equal(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_evolution_moves_the_parts_that_the_rule_names(evolved):
    start = jax.jit(Lean().init_params)(keys_of(evolved.config).rule)
    assert evolved.finished
    assert isinstance(evolved.rule, Lean)
    np.testing.assert_array_equal(evolved.eta["hidden"], start["hidden"])
    assert np.abs(evolved.eta["coefficients"]).max() > 0
    assert np.abs(evolved.eta["output"]).max() > 0
    metrics = evolved.metrics
    assert metrics["update"].tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(metrics["charts/score"], metrics["charts/score/chain:length=4"])
    lengths = metrics["life/length/chain:length=4"]
    assert lengths.min() >= 20
    assert lengths.max() <= 40


def test_what_evolution_finds_is_a_rule_to_train_with(evolved):
    rule, eta = rules.load(str(evolved.path / "rule.npz"))
    assert isinstance(rule, Lean)
    assert_equal(eta, jax.tree.map(np.asarray, evolved.eta))
    result = discorl.train(
        rule=str(evolved.path / "rule.npz"), env="chain:length=4", updates=3, preset="small"
    )
    assert np.isfinite(result.metrics["losses/total"]).all()


def test_a_killed_evolution_resumes_bit_for_bit(evolved, tmp_path, monkeypatch):
    path = tmp_path / "run"

    def killed(self, done, state):
        save(self, done, state)
        if done == 2:
            raise KeyboardInterrupt

    save = loop._Loop._save
    monkeypatch.setattr(loop._Loop, "_save", killed)
    with pytest.raises(KeyboardInterrupt):
        discorl.discover(**TINY, seed=3, out=path)
    monkeypatch.undo()
    resumed = discorl.discover(resume=path)
    assert_equal(resumed.eta, evolved.eta)
    for name, column in untimed(evolved.metrics).items():
        np.testing.assert_array_equal(resumed.metrics[name], column)


def test_named_parts_alone_evolve():
    result = discorl.discover(**TINY | {"meta_steps": 1, "parts": ("coefficients",)})
    assert np.abs(result.eta["coefficients"]).max() > 0
    assert np.abs(result.eta["output"]).max() == 0
    with pytest.raises(UserError, match=r"no part of the rule 'hiden'; did you mean 'hidden'\?"):
        discorl.discover(**TINY | {"parts": ("hiden",)})


def test_evolution_in_a_single_environment():
    tiny = TINY | {"envs": ("catch:rows=3,columns=3",), "meta_steps": 2}
    result = discorl.discover(**tiny | {"evaluate_on": ("catch:rows=3,columns=3",)})
    scores = result.metrics["charts/score/catch:rows=3,columns=3"]
    assert (np.abs(scores) <= 1.1).all()
    assert np.abs(result.eta["coefficients"]).max() > 0


@pytest.mark.parametrize("method", ["meta_gradient", "es"])
def test_a_rule_of_the_users_own(method):
    """`examples/own_rule.py` has four parameters; each method moves all of them."""
    tiny = TINY | {"rule": "own_rule:Tunable", "method": method, "meta_steps": 2, "window": 2}
    tiny |= {"validation_envs": 2, "validation_unroll": 4, "value_hidden": (8,)}
    result = discorl.discover(**tiny | {"lifetimes": (10_000,), "meta_learning_rate": 0.1})
    start = result.rule.init_params(jax.random.key(0))
    assert sorted(result.eta) == ["entropy", "policy", "trace", "value"]
    moved = {name: abs(float(result.eta[name]) - float(start[name])) for name in start}
    assert min(moved.values()) > 1e-3, moved


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(TESTS.parent / "examples"))


def test_an_odd_number_of_agents_is_refused():
    with pytest.raises(UserError, match="chain:length=4 has 3 agents; expected an even number"):
        discorl.discover(**TINY | {"agents": 3})


def test_evolution_from_the_command_line(tmp_path, capsys):
    names = {"envs": "chain:length=4", "evaluate-on": "chain:length=4,seed=1"}
    flat = {k: v for k, v in TINY.items() if k not in ("preset", "envs", "evaluate_on", "hidden")}
    options = names | {k.replace("_", "-"): v for k, v in flat.items()}
    arguments = [str(x) for k, v in options.items() for x in (f"--{k}", v)]
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as stopped:
        cli.main(["discover", "--preset", "lean", *arguments, "--out", str(out)])
    assert stopped.value.code == 0
    assert "mean score of the agents, last tenth" in capsys.readouterr().out
    assert (out / "curve.png").exists()
