"""Settings of a discovery: what they mean, and what is said of wrong ones."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discoveries import CONFIG, RULE, TINY, outcome

import discorl
from discorl.discovery.agents import Agents
from discorl.types import UserError, settings

# --- what they mean -------------------------------------------------------------------------------


def test_agents_of_an_environment_have_settings_of_their_own():
    own = {"hidden": [8, 4], "optimiser": {"learning_rate": 1e-2, "schedule": "cosine"}}
    config = discorl.configure_discovery(
        population=[discorl.GroupConfig("bandit", own, agents=3), "bandit"], agents=2
    )
    first, second = config.groups()
    assert (first.count, first.agent.network.hidden, first.name) == (3, (8, 4), "bandit")
    assert (first.agent.optimiser.learning_rate, first.agent.optimiser.schedule) == (1e-2, "cosine")
    assert first.agent.batch == config.agent.batch
    assert (second.count, second.agent, second.name) == (2, config.agent, "bandit #2")


def test_a_config_reads_back_from_json():
    population = [{"env": "memory", "agents": 1, "agent": {"lstm": 8, "hidden": [3, 4]}}, "chain"]
    config = discorl.configure_discovery("paper", population=population, ema=0.5, hidden=(7,))
    text = json.dumps(config.as_dict())
    assert settings.build(discorl.DiscoverConfig, json.loads(text)) == config


def test_a_single_text_or_number_is_one_of_one():
    config = discorl.configure_discovery(envs="grid", evaluate_on="catch", lifetimes=1000, hidden=8)
    several = discorl.configure_discovery(
        envs=["grid"], evaluate_on=("catch",), lifetimes=[np.int64(1000)], hidden=(8,)
    )
    assert config == several
    assert config.population == (discorl.GroupConfig("grid"),)
    assert (config.agent.network.hidden, config.lifetimes) == ((8,), (1000,))
    assert json.loads(json.dumps(several.as_dict()))["lifetimes"] == [1000]


def test_agents_and_their_meta_value_have_the_torso_asked_for():
    own = {"torso": "residual", "filters": (2, 3)}
    groups = (discorl.GroupConfig("catch:rows=5,columns=5", own), "catch")
    config = dataclasses.replace(CONFIG, population=groups)
    for group, filters in zip(config.groups(), (("0", "1"), None), strict=True):
        begin = Agents(group, config, RULE).begin
        state = jax.eval_shape(begin, jax.random.key(0), jnp.int32(0))
        for params in (state.training.learner.params, state.meta_value.params):
            assert ("encoder" in params) == (filters is not None)
            if filters:
                widths = {x.shape[-1] for x in jax.tree.leaves(params["encoder"])}
                assert widths == {2, 3}


# --- mistakes -------------------------------------------------------------------------------------


def own(**agent):
    return {"env": "catch", "agent": agent}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "laptp"}, "no preset 'laptp'; did you mean 'laptop'"),
        ({"windo": 3}, "no setting 'windo'; did you mean 'window'"),
        ({"window": 0}, "window is 0; expected at least 1"),
        ({"bins": 6}, "bins is 6; expected an odd number"),
        ({"envs": ()}, "population is .*; expected at least one environment"),
        ({"envs": "catch", "population": "catch"}, "expected one of them"),
        ({"average": 0.5}, "no setting 'average'; did you mean 'ema'"),
        ({"gamma": 0.5}, "no setting 'gamma'; did you mean 'discount'"),
        ({"evaluate_on": ()}, "evaluate_on is .*; expected at least one environment"),
        ({"lifetimes": (0, 5)}, "lifetimes is .*; expected integers of at least 1"),
        ({"meta_learning_rate": float("inf")}, "meta_learning_rate is inf; expected a positive"),
        ({"seed": -1}, "seed is -1; expected from 0 to"),
        ({"population": own(hiden=3)}, "catch: no setting 'hiden'; did you mean 'hidden'"),
        ({"population": own(hidden="a")}, "catch: hidden is 'a'; expected integers"),
        ({"population": own(num_envs=3)}, "catch: batch 32 .* num_envs is 3"),
        ({"population": {"env": "catch", "agents": 0}}, "catch: agents is 0; expected at least 1"),
        ({"population": {"env": "catch", "agnts": 1}}, "tables of env, agent, agents"),
        ({"population": 3}, "population is 3; expected names of environments, or tables"),
        ({"evaluate_on": {"env": "catch", "agents": 1}}, "tables of env, agent"),
        ({"lifetimes": 0}, "lifetimes is .*; expected integers of at least 1"),
        ({"lifetimes": "long"}, "lifetimes is 'long'; expected integers of at least 1"),
        ({"hidden": (64, 0.5)}, "hidden is .*; expected integers of at least 1"),
        ({"torso": "resnet"}, "torso is 'resnet'; expected one of auto, mlp, residual"),
        ({"population": own(torso="cnn")}, "catch: torso is 'cnn'; expected one of auto, mlp"),
    ],
)
def test_settings_that_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        discorl.configure_discovery(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"population": "bandt"}, "no environment 'bandt'; did you mean 'bandit'"),
        ({"evaluate_on": ("cach",)}, "no environment 'cach'; did you mean 'catch'"),
        ({"start": "ppo"}, "start is 'ppo', a rule without parameters"),
        ({"start": None}, "start is None; expected 'scratch', 'muesli'"),
        ({"start": ""}, "start is ''; expected 'scratch', 'muesli'"),
        ({"without": "q", "target_improvement": 1.0}, "the rule is without q"),
        ({"imitation_steps": 0}, "imitation_steps is 0; expected at least 1"),
        ({"start": "nowhere.npz"}, "there is no such rule file"),
    ],
)
def test_runs_that_are_refused_leave_nothing(given, message, tmp_path):
    with pytest.raises(UserError, match=message):
        discorl.discover(**TINY | given, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--preset", "laptp"], "did you mean 'laptop'"),
        (["--windo", "3"], "--window"),
        (["--window", "x"], "window"),
        (["--envs", "bandt"], "did you mean 'bandit'"),
        (["--bins", "4"], "expected an odd number"),
        (["--resume", "nowhere"], "nowhere is not a run directory"),
        (["--resume", "nowhere", "--window", "3"], "takes no others"),
    ],
)
def test_mistakes_on_the_command_line(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, errors = outcome(capsys, *flags)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())
