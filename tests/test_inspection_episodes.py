"""What an inspection draws along an episode, against numbers worked out by hand."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import ACTIONS, fresh, network_for, random_trajectory

from discorl.agent.learner import Learner
from discorl.networks import Network
from discorl.reports.inspection import attention, predictions, response, subject
from discorl.reports.inspection.episodes import Episode
from discorl.reports.inspection.subject import Reading
from discorl.rules import PPO, ActorCritic
from discorl.runs.progress import _displays
from discorl.types import Trajectory


def test_tracks_are_entropies_confidence_values_and_rewards():
    """Two steps with two actions: an even policy, then one of 3 to 1."""
    logits = jnp.log(jnp.array([[[0.5, 0.5]], [[0.75, 0.25]], [[0.5, 0.5]]]))
    y = jnp.array([[[0.0, 0.0, 0.0]], [[50.0, 0.0, 0.0]], [[1.0, 1.0, 1.0]]])
    q = jnp.array([[[2.0, 6.0]], [[8.0, 4.0]], [[0.0, 10.0]]])
    trajectory = Trajectory(
        observation=(),
        action=jnp.array([[1], [0]]),
        reward=jnp.array([[1.0], [-2.0]]),
        terminated=jnp.zeros((2, 1), bool),
        behaviour_logits=logits[:-1],
    )
    reading = Reading(trajectory, {"y": y}, {"q": q}, {}, logits)
    reward = np.array([1.0, -2.0])
    found = predictions.tracks(Episode([], (), reward, reading, reward_scale=2.0))
    log = np.log
    uneven = -0.75 * log(0.75) - 0.25 * log(0.25)
    np.testing.assert_allclose(
        found["policy entropy"]["entropy"], [log(2), uneven, log(2)], rtol=1e-6
    )
    confidence = found["confidence of y"]["-H(y)"]
    np.testing.assert_allclose(confidence, [-log(3), 0, -log(3)], rtol=1e-6, atol=1e-6)
    # In units of the environment's rewards, which are half of those that are learned from.
    np.testing.assert_allclose(found["value"]["V(s)"], [2.0, 3.5, 2.5], rtol=1e-6)
    np.testing.assert_allclose(found["value"]["Q(s, a)"], [3.0, 4.0], rtol=1e-6)
    np.testing.assert_array_equal(found["reward"]["r"], reward)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
def test_attention_of_a_linear_network(shape):
    """For p = softmax(W o) the Fisher information of o_i is the variance of W_ji over j ~ p."""
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    weights = {
        "logits": rng.normal(size=(3, size)),
        "y": rng.normal(size=(4, size)),
        "value": rng.normal(size=(1, size)),
    }

    def apply(params, observation):
        flat = observation.reshape(len(observation), -1)
        found = {name: flat @ w.T for name, w in params.items()}
        return found | {"value": found["value"][:, 0]}

    params = {name: jnp.asarray(w, jnp.float32) for name, w in weights.items()}
    latest = SimpleNamespace(state=SimpleNamespace(params=params))
    told = SimpleNamespace(
        best=SimpleNamespace(latest=latest),
        rule=ActorCritic(),
        learner=SimpleNamespace(network=Network(init=None, apply=apply)),
        eta=(),
    )
    seen = rng.normal(size=(2, *shape)).astype(np.float32)
    found = attention.gradients(told, jnp.asarray(seen))
    assert sorted(found) == ["policy", "value", "y"]
    flat = seen.reshape(2, -1)
    for name, label in (("logits", "policy"), ("y", "y")):
        w = weights[name]
        p = np.asarray(jax.nn.softmax(flat @ w.T, axis=-1))
        variance = p @ np.square(w) - np.square(p @ w)
        np.testing.assert_allclose(found[label], _without_channels(variance, shape), rtol=1e-3)
    squares = np.tile(np.square(weights["value"]), (2, 1))
    np.testing.assert_allclose(found["value"], _without_channels(squares, shape), rtol=1e-4)


def _without_channels(squares, shape):
    """Roots of squares, [2, numbers], which are added up over the channels of an image."""
    squares = squares.reshape(2, *shape)
    return np.sqrt(squares.sum(axis=-1) if len(shape) == 3 else squares)


@pytest.mark.usefixtures("float64")
def test_rules_with_minibatches_are_asked_along_a_single_episode():
    rule = PPO(minibatches=4)
    learner = Learner(rule, network_for(rule), optax.sgd(1.0), ACTIONS)
    state, batch = fresh(learner), random_trajectory(5, steps=6, batch=8)
    *_, details = learner.update_in_detail(state, (), batch)
    one = jax.tree.map(lambda x: x[:, :1], batch)
    reading = subject.read(learner, state, (), one)
    np.testing.assert_allclose(reading.logits, details.policy[:, :1], rtol=1e-9)
    np.testing.assert_allclose(reading.online["value"], details.online["value"][:, :1], rtol=1e-9)


def test_responses_that_are_all_alike_have_no_line():
    alike = np.ones((1, len(response.ADVANTAGES), len(response.RATIOS)))
    assert np.isnan(response.linearity(alike)).all()
    assert response.share_of_advantage(alike) == 0


def test_an_analysis_shows_which_agent_it_is_at():
    told = SimpleNamespace(lives=("first", "second"))

    def measure(life):
        return life, " ".join(_displays[-1]._line(0.0).split()[:3])

    found = subject.by_agent(told, "future", measure)
    assert found == [("first", "future 0/2 0%"), ("second", "future 1/2 50%")]
    assert _displays == []
