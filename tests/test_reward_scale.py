"""Rewards on another scale: the same agents as in an environment that gives such rewards."""

import dataclasses

import numpy as np
import pytest
import rule_files
from clocks import Clock, Clocks

import discorl
from discorl.envs.catch import Catch
from discorl.rules.actor_critic import ActorCritic
from discorl.runs.metrics import RETURN, TOTAL_LOSS
from discorl.training.assembly import create_run, load_trainer, make_trainer

SCALE = 8.0  # a power of two, so that products are exact
SMALL = {
    "rule": "q_lambda",
    "updates": 6,
    "num_envs": 2,
    "unroll": 12,
    "batch": 4,
    "replay": 16,
    "replay_fraction": 0.5,
    "hidden": (8,),
    "log_every": 1,
    "checkpoint_every": 6,
}


class LargeCatch(Catch):
    """Catch with rewards of another size."""

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        return state, dataclasses.replace(step, reward=SCALE * step.reward)


@pytest.mark.parametrize("replay_fraction", [0.0, 0.5])
def test_scaled_rewards_make_the_agent_of_an_environment_with_such_rewards(replay_fraction):
    settings = SMALL | {"replay_fraction": replay_fraction}
    if not replay_fraction:
        settings |= {"rule": "actor_critic", "batch": 2}
    scaled = discorl.train(**settings, environment=Catch(5, 5), reward_scale=SCALE)
    large = discorl.train(**settings, environment=LargeCatch(5, 5))
    plain = discorl.train(**settings, environment=Catch(5, 5))
    np.testing.assert_array_equal(scaled.metrics[TOTAL_LOSS], large.metrics[TOTAL_LOSS])
    np.testing.assert_array_equal(SCALE * scaled.metrics[RETURN], large.metrics[RETURN])
    assert not np.array_equal(scaled.metrics[TOTAL_LOSS], plain.metrics[TOTAL_LOSS])
    assert np.nanmax(np.abs(scaled.metrics[RETURN])) <= 1


class LargeClock(Clock):
    """A clock with rewards of another size."""

    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, SCALE * reward, *rest


def test_rewards_of_environments_on_the_host_are_scaled_as_well():
    scaled = discorl.train(**SMALL, environment=Clocks(), reward_scale=SCALE)
    large = discorl.train(**SMALL, environment=Clocks(LargeClock))
    np.testing.assert_array_equal(scaled.metrics[TOTAL_LOSS], large.metrics[TOTAL_LOSS])
    np.testing.assert_array_equal(SCALE * scaled.metrics[RETURN], large.metrics[RETURN])


def test_a_run_records_its_scale_and_a_resume_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(ActorCritic, "reward_scale", lambda self, span: 2.0)
    config = discorl.configure("actor_critic:discount=0.9", "catch:rows=5,columns=5")
    objects = {"environment": None, "network": None, "rule": None}
    with create_run(tmp_path / "run", make_trainer(config), **objects) as run:
        assert run.config["agent"]["reward_scale"] == 2.0
        assert run.config["agent"]["discount"] == 0.9
        monkeypatch.setattr(ActorCritic, "reward_scale", lambda self, span: 3.0)
        assert load_trainer(run).agent.config.reward_scale == 2.0
    assert make_trainer(config).agent.config.reward_scale == 3.0


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_a_scale_that_is_not_positive_is_refused(scale):
    with pytest.raises(discorl.UserError, match=f"reward_scale is {scale}; expected a positive"):
        discorl.configure(reward_scale=scale)


def test_a_published_rule_gets_rewards_of_the_size_that_it_wants():
    def scale(**given):
        config = discorl.configure(env="catch:rows=5,columns=5", preset="small", **given)
        return make_trainer(config).agent.config.reward_scale

    random, optimal = Catch(5, 5).reference()
    published = str(rule_files.SMALL)  # in the published format, without metadata
    assert scale(rule=published) == pytest.approx(30 / (optimal - random))
    assert scale(rule=published, reward_scale=1.0) == 1.0
    assert scale(rule="actor_critic") == 1.0
    assert (
        discorl.configure(rule=published, env="atari:Pong", preset="atari").agent.reward_scale == 1
    )
