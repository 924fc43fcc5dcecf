"""Rules of one's own: by name, as objects, from other packages, and in discovery."""

import sys
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest
from own_rule_samples import OWN

import discorl
from discorl import envs, rules
from discorl.cli import envs as envs_command
from discorl.cli import rules as rules_command
from discorl.discovery.start import keys_of
from discorl.rules import PPO, searched
from discorl.runs.metrics import TOTAL_LOSS
from discorl.types import UserError


def refusal(name):
    with pytest.raises(UserError) as error:
        rules.load(name)
    return str(error.value)


def test_a_rule_by_its_class_or_by_a_function(write):
    write("my_rules.py", OWN)
    rule, eta = rules.load("my_rules:Mine,scale=3", discount=0.9)
    assert (type(rule).__name__, rule.scale, rule.discount) == ("Mine", 3.0, 0.9)
    assert (rule.name, rules.text_of(rule)) == ("policy_gradient", "my_rules:Mine,scale=3.0")
    assert float(eta["weight"]) == 1
    other, again = rules.load("my_rules:small,scale=2")
    assert other == type(rule)(scale=2)
    np.testing.assert_array_equal(eta["net"][0], again["net"][0])
    assert rules.load("my_rules:Mine,discount=0.5", discount=0.9)[0].discount == 0.5
    assert rules.find("my_rules:Mine,scale=3") is None
    for name in ("my_rules:Mine", "my_rules:small", rule, (rule, eta)):
        assert rules.recipe(name)["learning_rate"] == 0.25


def test_a_rule_as_an_object():
    rule, eta = rules.load(PPO(epochs=2), discount=0.5)
    assert (rule, eta) == (PPO(epochs=2, discount=0.5), ())
    assert rules.load((rule, "given")) == (rule, "given")
    assert rules.text_of(PPO(epochs=2, value_clip=0.2)) == "ppo:epochs=2,value_clip=0.2"
    assert rules.text_of(PPO()) == "ppo"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_rules:Min", "my_rules has no function or class 'Min'; did you mean 'Mine'?"),
        ("my_rules:wrong", "my_rules:wrong returned a builtins.dict; expected a discorl.Rule"),
        ("my_rules:Mine,scales=3", "has no parameter 'scales', did you mean 'scale'?"),
        ("my_rules:Mine,discount=2", "discount is 2.0; expected from 0 to 1"),
        ("my_rules:unlicensed", "my_rules:unlicensed raised OSError: no licence"),
        ("my.rules:Mine", "no rule 'my.rules:Mine': there is no module 'my.rules'"),
        ("muesly", "no rule 'muesly'; did you mean 'muesli'? known: "),
        ("muesly", "or package.module:Class for a rule of your own"),
        ("ppo:epochs", "ppo takes parameters only, got 'epochs'"),
    ],
)
def test_mistakes_are_told(write, name, message):
    write("my_rules.py", OWN)
    assert message in refusal(name)


def test_without_a_name_a_rule_is_called_like_its_class():
    class Nameless(rules.Rule):
        outputs = targets = loss = None

    assert Nameless.name == "Nameless"


# --- training -------------------------------------------------------------------------------------

FEW = {
    "env": "catch:rows=3,columns=2",
    "preset": "small",
    "hidden": (8,),
    "updates": 4,
    "checkpoint_every": 2,
}


def test_training_with_a_rule_by_name_is_remembered(write, tmp_path):
    write("my_rules.py", OWN)
    whole = discorl.train(rule="my_rules:Mine,scale=3", out=tmp_path / "run", **FEW)
    assert whole.config.rule == "my_rules:Mine,scale=3"
    assert whole.config.agent.optimiser.learning_rate == 0.25
    kept, eta = rules.load(str(tmp_path / "run" / "rule.npz"))
    assert kept.scale == 3
    np.testing.assert_array_equal(eta["net"][0], rules.load("my_rules:Mine")[1]["net"][0])
    again = discorl.train(resume=tmp_path / "run")
    assert again.finished
    np.testing.assert_array_equal(again.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])


def test_training_with_an_object_needs_it_again(write, tmp_path):
    write("my_rules.py", OWN)
    rule, eta = rules.load("my_rules:Mine,scale=3")
    other = jax.tree.map(lambda x: x + 1, eta)
    whole = discorl.train(rule=(rule, other), **FEW)
    run = tmp_path / "run"
    half = discorl.train(rule=(rule, other), out=run, **FEW)
    assert half.config.rule == "my_rules:Mine,scale=3.0"
    np.testing.assert_array_equal(half.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])
    plain = discorl.train(rule=rule, **FEW)
    assert not np.array_equal(plain.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])
    for checkpoint in sorted((run / "checkpoints").iterdir())[1:]:
        checkpoint.unlink()
    with pytest.raises(UserError, match=r"with its own rule: give it again, as `rule=...`"):
        discorl.train(resume=run, accept_changes=True)
    with pytest.raises(UserError, match=r"with its own rule: give it again, as `rule=...`"):
        discorl.evaluate(run)
    resumed = discorl.train(resume=run, rule=rule)  # its parameters are in the run
    assert resumed.finished
    np.testing.assert_array_equal(resumed.metrics[TOTAL_LOSS], whole.metrics[TOTAL_LOSS])
    assert discorl.evaluate(run, rule=rule, episodes=2).update == 4


def test_an_object_brings_its_discount_and_recipe():
    config = discorl.configure(PPO(discount=0.5, epochs=2), env="catch")
    assert (config.rule, config.agent.discount, config.agent.num_envs) == ("ppo:epochs=2", 0.5, 32)
    given = discorl.configure(PPO(discount=0.5), env="catch", discount=0.9)
    assert given.agent.discount == 0.9


def test_recipes_for_the_tasks_of_a_preset():
    def configure(rule, **given):
        return discorl.configure(rule, "atari:Pong", "atari_small", **given)

    config = configure("ppo")
    assert config.rule == "ppo:entropy_cost=0.01"
    agent = config.agent
    assert (agent.unroll, agent.num_envs, agent.batch, agent.discount) == (128, 8, 8, 0.99)
    assert (agent.optimiser.learning_rate, agent.optimiser.max_gradient_norm) == (5e-4, 0.5)
    assert rules.load(config.rule)[0].entropy_cost == 0.01
    given = configure("ppo:clip=0.3", learning_rate=1e-3)  # what is given wins
    assert given.rule == "ppo:clip=0.3,entropy_cost=0.01"
    assert configure("ppo:entropy_cost=0.1").rule == "ppo:entropy_cost=0.1"
    assert given.agent.optimiser.learning_rate == 1e-3
    assert configure(PPO(clip=0.3)).rule == "ppo:clip=0.3"  # an object is what it is
    assert configure("actor_critic").rule == "actor_critic"
    assert discorl.configure("ppo", "catch").rule == "ppo"


def test_environments_bring_the_searched_recipes():
    for rule, rate in {"lean2": 3.4e-3, "ppo": 2.3e-3, "muesli": 3.3e-3}.items():
        config = discorl.configure(rule, "gymnax:CartPole-v1")
        assert (config.preset, config.agent.optimiser.learning_rate) == ("classic", rate)
        assert config.agent.network.hidden == (64, 64)
    assert discorl.configure("ppo", "gymnax:Acrobot-v1").rule == "ppo:entropy_cost=0.01,epochs=8"


@pytest.mark.parametrize("preset", ["minatar", "minigrid"])
def test_the_reward_scale_of_a_recipe_follows_the_bins_of_a_rule(preset):
    scale = searched.DISCO[preset]["reward_scale"]
    spacing = discorl.load_rule("discorl5")[0].bin_spacing
    assert spacing < 1
    for rule, expected in {
        "disco": scale,
        "disco:bin_spacing=0.25": 0.25 * scale,
        "discorl5": spacing * scale,
    }.items():
        assert discorl.configure(rule, "catch", preset).agent.reward_scale == expected


def test_a_recipe_may_leave_the_reward_scale_open():
    class Unscaled(PPO):
        recipe: ClassVar = {"reward_scale": None}

    assert discorl.configure(Unscaled(), "catch").agent.reward_scale is None


def test_settings_are_added_to_the_text_of_a_rule():
    for text, expected in {
        "ppo": "ppo:epochs=2",
        "ppo:epochs=4": "ppo:epochs=4",
        "ppo:clip=0.1": "ppo:clip=0.1,epochs=2",
        "my_rules:Mine": "my_rules:Mine,epochs=2",
        "runs/a:b.npz": "runs/a:b.npz:epochs=2",
    }.items():
        assert rules.with_defaults(text, {"epochs": 2}) == expected


# --- other packages -------------------------------------------------------------------------------


def offer(write, package, group, **entries):
    """Installs a package, as far as entry points are concerned."""
    sys.path.append(str(Path.cwd()))
    lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
    folder = f"{package}-1.0.dist-info"
    write(f"{folder}/METADATA", f"Metadata-Version: 2.4\nName: {package}\nVersion: 1.0\n")
    write(f"{folder}/entry_points.txt", f"[{group}]\n{lines}\n")


def test_rules_of_other_packages(write):
    write("my_rules.py", OWN)
    write("broken_rules.py", "raise RuntimeError('no luck')")
    offer(write, "theirs", "discorl.rules", their_rule="my_rules:Mine", ppo="my_rules:Mine")
    offer(write, "wreck", "discorl.rules", wrecked="broken_rules:Mine")
    rule, _ = rules.load("their_rule:scale=2")
    assert rule.scale == 2
    assert rules.find("their_rule") is None
    assert isinstance(rules.load("ppo")[0], PPO)  # discorl's own come first
    message = refusal("wrecked")
    assert message.startswith("'wrecked' of the package wreck cannot be loaded from broken_rules:")
    assert message.endswith("it raised RuntimeError: no luck")
    assert "their_rule" in refusal("their_rul")
    listed = rules_command.list_rules()
    rows = {(row["name"], row["kind"]): row for row in listed.data["rules"]}
    assert rows["their_rule", "plugin"]["state"] == "installed"
    assert "A policy gradient with a learned weight." in rows["their_rule", "plugin"]["description"]
    assert rows["ppo", "plugin"]["state"] == "name taken"
    assert rows["wrecked", "plugin"]["state"] == "broken"
    assert "no luck" in listed.text


SUITE = """
    "Boards of theirs."
    from discorl.envs import Catch

    def names():
        return ["narrow", "wide"]

    def make(item: str, *, rows: int = 4):
        return Catch(rows=rows, columns=2 if item == "narrow" else 6)
"""


def test_suites_of_other_packages(write):
    write("my_suite.py", SUITE)
    write("no_suite.py", "def names(): ...")
    offer(write, "theirs", "discorl.envs", boards="my_suite", catch="my_suite", half="no_suite")
    assert envs.make("boards:wide,rows=3") == envs.Catch(rows=3, columns=6)
    assert envs.make("catch") == envs.Catch()  # discorl's own come first
    for name, message in (
        ("boards:tall", "boards has no item 'tall'; for example boards:narrow"),
        ("boards", "boards needs an item"),
        ("boards:wide,columns=3", "has no parameter 'columns'"),
        (
            "half:wide",
            "'half' of the package theirs is not a suite of environments: no_suite has no ",
        ),
        ("bords:wide", "did you mean 'boards'?"),
    ):
        with pytest.raises(UserError) as error:
            envs.make(name)
        assert message in str(error.value)
    listed = envs_command.show()
    states = {row["name"]: row["state"] for row in listed.data["plugins"]}
    assert states == {"boards": "installed", "catch": "name taken", "half": "broken"}
    assert "expected names() and make()" in listed.text
    assert envs_command.show("boards").data["items"] == ["narrow", "wide"]


# --- discovery ------------------------------------------------------------------------------------

TINY = {
    "envs": ("catch:rows=3,columns=2",),
    "evaluate_on": ("catch:rows=3,columns=2",),
    "agents": 2,
    "meta_steps": 4,
    "checkpoint_every": 2,
    "evaluate_every": 2,
    "evaluate_updates": 3,
    "window": 2,
    "hidden": (4,),
    "value_hidden": (4,),
    "num_envs": 4,
    "batch": 4,
    "unroll": 3,
    "validation_envs": 2,
    "validation_unroll": 3,
}


def test_discovery_over_a_rule_of_ones_own(write, tmp_path):
    write("my_rules.py", OWN)
    run = tmp_path / "run"
    whole = discorl.discover(rule="my_rules:Mine,scale=3", out=run, **TINY)
    assert whole.rule.scale == 3
    start = type(whole.rule)().init_params(keys_of(whole.config).rule)
    moved = jax.tree.map(lambda x, y: bool(np.any(x != y)), whole.eta, start)
    assert all(jax.tree.leaves(moved))
    kept, eta = rules.load(str(run / "rule.npz"))
    assert kept.scale == 3
    np.testing.assert_array_equal(eta["weight"], whole.eta["weight"])
    for checkpoint in sorted((run / "checkpoints").iterdir())[1:]:
        checkpoint.unlink()
    resumed = discorl.discover(resume=run, accept_changes=True)
    np.testing.assert_array_equal(resumed.eta["weight"], whole.eta["weight"])
    further = discorl.discover(start=str(run / "rule.npz"), **TINY | {"meta_steps": 1})
    assert further.rule == kept
    given = discorl.discover(rule=(kept, eta), **TINY | {"meta_steps": 1})
    np.testing.assert_array_equal(given.eta["weight"], further.eta["weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "ppo"}, "rule is 'ppo', a rule without parameters to discover; expected"),
        ({"start": "ppo"}, "start is 'ppo', a rule without parameters to discover; expected"),
        ({"rule": "lean", "start": "muesli"}, "start is 'muesli', which is for the rule 'disco'"),
        ({"rule": "lean", "without": "q"}, "without is 'q', which is for the rule 'disco'"),
        ({"rule": "leen"}, "no rule 'leen'; did you mean 'lean'?"),
    ],
)
def test_rules_that_cannot_be_discovered_are_refused(settings, message):
    with pytest.raises(UserError) as error:
        discorl.discover(**TINY | settings)
    assert message in str(error.value)
