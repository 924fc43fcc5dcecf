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
from discorl.types import UserError

# --- what they mean -------------------------------------------------------------------------------


def test_agents_of_an_environment_have_settings_of_their_own():
    config = discorl.configure_discovery(envs=("bandit;agents=3;hidden=8,4;learning_rate=1e-2",))
    (group,) = config.groups()
    assert (group.count, group.config.hidden, group.config.learning_rate) == (3, (8, 4), 1e-2)
    assert group.config.batch == config.batch


def test_a_single_text_or_number_is_one_of_one():
    config = discorl.configure_discovery(envs="grid", evaluate_on="catch", lifetimes=1000, hidden=8)
    several = discorl.configure_discovery(
        envs=["grid"], evaluate_on=("catch",), lifetimes=[np.int64(1000)], hidden=(8,)
    )
    assert config == several
    assert (config.envs, config.lifetimes) == (("grid",), (1000,))
    assert json.loads(json.dumps(several.as_dict()))["lifetimes"] == [1000]


def test_agents_and_their_meta_value_have_the_torso_asked_for():
    own = "torso=residual;filters=2,3"
    config = dataclasses.replace(CONFIG, envs=(f"catch:rows=5,columns=5;{own}", "catch"))
    for group, filters in zip(config.groups(), (("0", "1"), None), strict=True):
        begin = Agents(group, config, RULE).begin
        state = jax.eval_shape(begin, jax.random.key(0), jnp.int32(0))
        for params in (state.training.learner.params, state.meta_value.params):
            assert ("encoder" in params) == (filters is not None)
            if filters:
                widths = {x.shape[-1] for x in jax.tree.leaves(params["encoder"])}
                assert widths == {2, 3}


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "laptp"}, "no preset 'laptp'; did you mean 'laptop'"),
        ({"windo": 3}, "no setting 'windo'; did you mean 'window'"),
        ({"window": 0}, "window is 0; expected at least 1"),
        ({"bins": 6}, "bins is 6; expected an odd number"),
        ({"envs": ()}, "envs is .*; expected at least one environment"),
        ({"evaluate_on": ()}, "evaluate_on is .*; expected at least one environment"),
        ({"lifetimes": (0, 5)}, "lifetimes is .*; expected steps of at least 1"),
        ({"meta_learning_rate": float("inf")}, "meta_learning_rate is inf; expected a positive"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"envs": ("catch;hiden=3",)}, "did you mean 'hidden'"),
        ({"envs": ("catch;hidden=a",)}, "expected a value like"),
        ({"envs": ("catch;agents=0",)}, "agents is 0 in .*; expected at least 1"),
        ({"envs": 3}, "envs is 3; expected a text, or several"),
        ({"lifetimes": 0}, "lifetimes is .*; expected steps of at least 1"),
        ({"lifetimes": "long"}, "lifetimes is 'long'; expected a whole number, or several"),
        ({"hidden": (64, 0.5)}, "hidden is .*; expected a whole number, or several"),
        ({"torso": "resnet"}, "torso is resnet; expected auto, mlp or residual"),
        ({"envs": ("catch;torso=conv",)}, "torso is conv; expected auto, mlp or residual"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        discorl.configure_discovery(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"envs": ("bandt",)}, "no environment 'bandt'; did you mean 'bandit'"),
        ({"evaluate_on": ("cach",)}, "no environment 'cach'; did you mean 'catch'"),
        ({"start": "ppo"}, "start is 'ppo', a rule made by hand"),
        ({"start": None}, "start is None; expected 'scratch', 'muesli', or a learned rule"),
        ({"without": "q", "target_improvement": 1.0}, "the rule is without q"),
        ({"imitation_steps": 0}, "imitation_steps is 0; expected at least 1"),
        ({"start": "nowhere.npz"}, "there is no such rule file"),
    ],
)
def test_runs_that_are_refused_leave_nothing(settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        discorl.discover(**TINY | settings, out=tmp_path / "run")
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
