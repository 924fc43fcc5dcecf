"""Environments by name: the table of suites, reference scores, and names known elsewhere."""

import importlib.util
import tomllib
from pathlib import Path

import jax
import pytest

from discorl import envs
from discorl.envs import references
from discorl.envs.suites import SUITES, Suite, check_item
from discorl.training.config import configure
from discorl.training.presets import preset_for
from discorl.types import UserError

# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gymnaxx:Breakout-MinAtar", "did you mean 'gymnax'?"),
        ("cach", "did you mean 'catch'?"),
        ("nowhere", "or package.module:factory for one of your own"),
        ("nowhere:factory", "there is no module 'nowhere' either, installed or in the current"),
        ("nowhere.module:factory", "there is no module 'nowhere.module', neither installed nor in"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(text, message):
    with pytest.raises(UserError) as error:
        envs.make(text)
    assert message in str(error.value)


def test_an_unknown_item_names_the_nearest_ones():
    names = ["Breakout-MinAtar", "SpaceInvaders-MinAtar", "CartPole-v1"]
    check_item("gymnax", "CartPole-v1", names)
    with pytest.raises(UserError) as error:
        check_item("gymnax", "breakout", names)
    assert str(error.value) == (
        "gymnax has no item 'breakout'; for example gymnax:Breakout-MinAtar "
        "(all: discorl envs gymnax)"
    )
    with pytest.raises(UserError, match="for example gymnax:SpaceInvaders-MinAtar"):
        check_item("gymnax", "space-invaders", names)


def test_a_missing_package_says_how_to_get_it():
    suite = Suite("atari", "host", "GPL", "games", packages=("json", "ale-py-that-is-not"))
    with pytest.raises(UserError) as error:
        suite.make("Pong")
    assert str(error.value) == (
        "atari needs ale-py-that-is-not, which is not installed: "
        f'pip install "discorl[atari]" jax=={jax.__version__}'
    )


def test_every_suite_has_its_adapter_and_its_extra():
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    for name, suite in SUITES.items():
        assert importlib.util.find_spec(f"discorl.envs.{suite.kind}.{name}"), name
        brought = " ".join(extras[suite.name])
        assert all(package in brought for package in suite.packages or (name,)), name


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("max_steps_in_episode=-1", "max_steps_in_episode is -1; expected at least 1"),
        ("max_steps_in_episode=2.5", "max_steps_in_episode is 2.5; expected a whole number"),
        ("gravity=true", "gravity is True; expected a number"),
    ],
)
def test_settings_of_gymnax_are_of_their_defaults_types(setting, message):
    pytest.importorskip("gymnax", reason="gymnax is not installed")
    with pytest.raises(UserError, match=f"gymnax:CartPole-v1: {message}"):
        envs.make(f"gymnax:CartPole-v1,{setting}")
    gravity = envs.make("gymnax:CartPole-v1,gravity=3").settings.gravity
    assert (gravity, type(gravity)) == (3, float)


# --- reference scores -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "message"),
    [((1.0, 2.0, 3.0), "TypeError"), (7, "TypeError"), ((0.0, "high"), "ValueError")],
)
def test_a_reference_of_no_use_is_refused_before_training(found, message):
    environment = envs.make("catch")
    object.__setattr__(environment, "reference", lambda: found)
    with pytest.raises(
        UserError, match=rf"reference\(\) failed: {message}.*expected discorl.envs.R"
    ):
        references.of(environment)
    object.__setattr__(environment, "reference", lambda: (1.0, 2.0))  # a plain pair will do
    assert references.of(environment).score(1.5) == 0.5


def test_reference_scores_are_the_published_ones():
    pong = references.lookup("atari", "Pong")
    assert pong == (-20.7, 14.6)
    assert pong.score(14.6) == 1
    assert references.lookup("procgen-hard", "starpilot") == (1.5, 35)
    assert references.lookup("procgen-easy", "starpilot") == (2.5, 64)
    assert references.lookup("crafter", "reward") == (2.1, 14.3)
    assert references.lookup("atari", "Adventure") is None
    tables = references._tables()
    assert {name: len(table["scores"]) for name, table in tables.items()} == {
        "atari": 57,
        "procgen-easy": 16,
        "procgen-hard": 16,
        "crafter": 1,
        "craftax": 4,
        "gymnax": 7,
        "minigrid": 23,
    }
    for table in tables.values():
        assert all(low < high for low, high in table["scores"].values())


# --- names known elsewhere ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known_as", "name"),
    [
        ("CartPole-v1", "gymnax:CartPole-v1"),
        ("CartPole-v1:max_steps_in_episode=50", "gymnax:CartPole-v1,max_steps_in_episode=50"),
        ("Breakout-MinAtar", "gymnax:Breakout-MinAtar"),
        ("FrozenLake-v1", "gymnasium:FrozenLake-v1"),
        ("MiniGrid-Empty-5x5-v0", "minigrid:Empty-5x5"),
        ("ALE/Pong-v5", "atari:Pong"),
        ("PongNoFrameskip-v4", "atari:Pong"),
        ("catch:rows=5", "catch:rows=5"),
        ("Nope-v3", "Nope-v3"),
    ],
)
def test_environments_are_found_by_the_names_they_have_elsewhere(known_as, name):
    assert envs.canonical(known_as) == name


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("CartPol-v1", "gymnax:CartPole-v1"),
        ("Frozenlake-v1", "gymnasium:FrozenLake-v1"),
        ("ALE/Pomg-v5", "atari:Pong"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(misspelt, meant):
    with pytest.raises(UserError, match=f"{misspelt}'; did you mean '{meant}'"):
        envs.canonical(misspelt)


def test_a_run_records_the_suite_and_takes_its_preset():
    config = configure(env="CartPole-v1", rule="ppo")
    assert (config.env, config.preset) == ("gymnax:CartPole-v1", preset_for("gymnax:CartPole-v1"))


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("gymnax:Breakout-MinAtar", "minatar"),
        ("pgx:minatar-breakout,sticky=0", "minatar"),
        ("pgx:2048", "small"),
        ("gymnax:Acrobot-v1", "classic"),
        ("gymnax:Catch-bsuite", "small"),
        ("minigrid:Empty-5x5", "minigrid"),
    ],
)
def test_the_preset_of_an_environment(name, preset):
    assert preset_for(name) == preset


def test_a_known_name_of_a_suite_that_is_missing_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(envs.suites.Suite, "missing", lambda suite: (suite.name,))
    with pytest.raises(UserError, match=r"'ALE/Pong-v5'.*discorl\[atari\]"):
        envs.canonical("ALE/Pong-v5")
    with pytest.raises(UserError, match=r"has 'MiniGrid-Empty-5x5-v0'; run `[^`]*`$"):
        envs.canonical("MiniGrid-Empty-5x5-v0")
