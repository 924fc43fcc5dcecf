"""The layout of the package, and the recipes of CONTRIBUTING.md that are for inside the package."""

import ast
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import pytest

import discorl
from discorl import NetworkConfig, envs, rules
from discorl.cli import envs as envs_command
from discorl.cli import rules as rules_command
from discorl.envs import suites
from discorl.training import configure, make_trainer
from discorl.types import UserError

standard = importlib.import_module("discorl.networks.standard")  # the package exports a function
ROOT = Path(discorl.__file__).parent
MODULES = {file.relative_to(ROOT).as_posix(): file for file in ROOT.rglob("*.py")}

# Where trainers, or groups of agents of a population, are made or refused.
MAKERS = {
    "discovery/lives.py",
    "discovery/population.py",
    "discovery/scoring.py",
    "reports/inspection/subject.py",
    "training/assembly.py",
}
KINDS = {"Environment", "HostEnvironment", "CompiledTrainer", "HostTrainer"}


def test_the_root_has_at_most_a_dozen_entries():
    assert len([path for path in ROOT.iterdir() if (path / "__init__.py").exists()]) <= 12
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py"}


def test_no_module_is_longer_than_350_lines():
    assert {n: f for n, f in MODULES.items() if len(f.read_text().splitlines()) > 350} == {}


def test_only_makers_ask_where_an_environment_runs():
    asking = {
        name
        for name, file in MODULES.items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and KINDS & {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
    }
    assert {name for name in asking if not name.startswith("envs/")} == MAKERS


class Bold(rules.ActorCritic):
    """An actor-critic without an entropy bonus."""

    name = "bold"
    entropy_cost = 0.0


def test_a_rule_inside_the_package(monkeypatch):
    """Its class and its entry are all it takes."""
    with pytest.raises(UserError, match="no rule 'bold'"):
        rules.load("bold")
    monkeypatch.setitem(rules.REGISTRY, "bold", Bold)
    rule, eta = rules.load("bold:lambda_=0.5")
    assert (type(rule), rule.lambda_, eta) == (Bold, 0.5, ())
    assert rules_command.check("bold").ok
    rows = {row["name"]: row for row in rules_command.list_rules().data["rules"]}
    assert rows["bold"]["description"] == "An actor-critic without an entropy bonus."
    assert configure("bold").agent.optimiser.learning_rate == 3e-3  # the recipe is inherited


def test_an_environment_suite_inside_the_package(monkeypatch):
    """Its adapter and its entry are all it takes, besides the packages it needs."""
    adapter = SimpleNamespace(
        names=lambda: ["narrow", "wide"],
        make=lambda item: envs.Catch(rows=4, columns={"narrow": 2, "wide": 6}[item]),
    )
    monkeypatch.setitem(sys.modules, "discorl.envs.native.boards", adapter)
    suite = suites.Suite("boards", "native", "MIT", "Boards of two widths", packages=("numpy",))
    monkeypatch.setitem(envs.SUITES, "boards", suite)
    assert envs.make("boards:wide") == envs.Catch(rows=4, columns=6)
    assert envs_command.show("boards").data["items"] == ["narrow", "wide"]
    listed = {row["name"]: row for row in envs_command.show().data["suites"]}
    assert listed["boards"]["installed"]
    with pytest.raises(UserError, match="boards has no item 'wid'; for example boards:wide"):
        envs.make("boards:wid")


def test_a_torso_inside_the_package(monkeypatch):
    """A name in two places of one module, and every agent can choose it."""

    def init(key, channels, filters):
        return {"w": jnp.ones(channels)}

    def apply(params, images):
        return images.mean(axis=(1, 2)) * params["w"]

    with pytest.raises(UserError, match="torso is 'pooled'"):
        configure(torso="pooled")
    monkeypatch.setitem(standard.ENCODERS, "pooled", standard.Encoder(init, apply))
    names = Literal[(*get_args(standard.Torso), "pooled")]
    monkeypatch.setitem(NetworkConfig.__annotations__, "torso", names)
    trainer = make_trainer(configure("ppo", "catch", torso="pooled", hidden=(5,)))
    params = jax.eval_shape(trainer.init).learner.params
    assert params["encoder"]["0"]["w"].shape == (1,)
    assert params["torso"]["0"]["w"].shape == (1, 5)
