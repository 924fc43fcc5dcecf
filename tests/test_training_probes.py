"""Trained agents know the values of probe environments, and learn a small Catch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import discorl
from discorl.runs.metrics import EPISODES, RETURN

HAND_MADE = ("actor_critic", "policy_gradient", "ppo")
SMALL = {"hidden": (16,), "action_lstm": 4, "action_hidden": (4,)}


# --- probes ---------------------------------------------------------------------------------------


def learned_values(rule, environment, observations, discount, **more):
    settings = SMALL | {
        "rule": rule,
        "num_envs": 8,
        "batch": 8,
        "unroll": 8,
        "updates": 500,
        "learning_rate": 2e-2,
        "schedule": "cosine",
        "replay_fraction": 0.0,
        "discount": discount,
    }
    result = discorl.train(environment=environment, **settings | more)
    apply = result.trainer.learner.network.apply
    return np.asarray(apply(result.state.learner.params, jnp.asarray(observations))["value"])


@pytest.mark.parametrize("rule", HAND_MADE)
def test_value_of_mortals(rule):
    """Among immortals, whose episodes a time limit cuts: discount and terminations."""
    environment, gamma = probes.Mortal(lifetime=3, limit=5), 0.8
    observations = np.eye(environment.observation.shape[0])[:3]
    expected = [(1 - gamma ** (3 - t)) / (1 - gamma) for t in range(3)]
    values = learned_values(rule, environment, observations, gamma)
    np.testing.assert_allclose(values, expected, atol=0.1)


@pytest.mark.parametrize("rule", HAND_MADE)
def test_value_where_a_time_limit_cuts(rule):
    """With one observation for all moments the last one is learned as well: V = 1 / (1 - gamma)."""
    values = learned_values(rule, Blind(limit=3), np.ones((1, 1)), 0.8)
    np.testing.assert_allclose(values, 5.0, atol=0.15)


@dataclasses.dataclass(frozen=True)
class Blind(probes.Truncated):
    """Reward 1 forever, cut after `limit` steps, and nothing to be seen."""

    observation = jax.ShapeDtypeStruct((1,), jnp.float32)

    def reset(self, key):
        return jnp.int32(0), jnp.ones(1)

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        return state, dataclasses.replace(step, observation=jnp.ones(1))


@pytest.mark.parametrize(
    ("environment", "observations", "expected"),
    [
        (probes.ConstantReward(), [[1]], [1]),
        (probes.ObservationReward(), [[-1], [1]], [-1, 1]),
        (probes.DelayedReward(), [[1, 0], [0, 1]], [0.6, 1]),
    ],
)
def test_values_of_other_probes(environment, observations, expected):
    observations = np.array(observations, np.float32)
    values = learned_values("actor_critic", environment, observations, 0.6, updates=300)
    np.testing.assert_allclose(values, expected, atol=0.05)


# --- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "updates"), list(zip(HAND_MADE, (400, 400, 60), strict=True)))
def test_rules_learn_a_small_catch(rule, updates):
    result = discorl.train(
        rule=rule, env="catch:rows=5,columns=5", updates=updates, hidden=(64,), learning_rate=3e-3
    )
    last = result.metrics["update"] > updates - updates // 5
    returns, episodes = (
        result.metrics[RETURN][last],
        result.metrics[EPISODES][last],
    )
    mean = np.average(returns, weights=episodes)
    assert mean > 0.8, "a random policy has about -0.6"
    first = np.average(result.metrics[RETURN][:5], weights=result.metrics[EPISODES][:5])
    assert first < 0.4


@pytest.mark.long
def test_disco103_learns_catch(disco103):
    result = discorl.train(rule=str(disco103), env="catch", seeds=5, updates=1000)
    returns = result.recent_return()
    assert np.sum(returns >= 0.95) >= 4, returns
