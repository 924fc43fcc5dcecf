"""The parts of a population: how meta-gradients move the rule, lengths of lives, scores."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discoveries import CONFIG, ETA, assert_same

from discorl.discovery import blocks
from discorl.discovery.agents import draw_lifetime
from discorl.discovery.combination import Combination
from discorl.discovery.scoring import Score, _last_return
from discorl.runs.metrics import EPISODES, RETURN

# --- how the rule moves ---------------------------------------------------------------------------


def adam_by_hand(gradients, learning_rate):
    """The update that the last of several gradients leads to."""
    m = v = 0.0
    for g in gradients:
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
    n = len(gradients)
    step = (m / (1 - 0.9**n)) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)
    return -learning_rate * np.clip(step, -1, 1)


def some_gradients(rng, scales=(1.0, 1e-3)):
    """Two agents' meta-gradients, on scales of their own."""
    one, two = (
        jax.tree.map(lambda x, s=s: s * rng.normal(size=x.shape).astype(np.float32), ETA)
        for s in scales
    )
    return jax.tree.map(lambda x, y: jnp.stack([x, y]), one, two)


def adams(config=CONFIG):
    """How a population's meta-gradients move the rule, and what that starts with."""
    (block,) = blocks.split([2], 0)
    devices = jax.devices()[:1]
    combination = Combination(config, blocks.OrderedSum([block], devices, devices))

    def combine(eta, optimizers, dropped, gradients):
        eta, optimizers, whole, norms = combination(
            eta, jax.tree.map(jnp.copy, optimizers), {0: gradients}
        )
        return eta, optimizers, dropped + ~combination.is_kept(norms[0]), whole, norms[0]

    return combine, combination.init(ETA, [2]), jnp.zeros(2, jnp.int32)


@pytest.mark.parametrize("per_agent", [True, False])
def test_the_rule_moves_by_the_mean_of_the_adams(per_agent):
    combine, optimizers, dropped = adams(
        dataclasses.replace(CONFIG, per_agent_adam=per_agent, meta_learning_rate=0.01)
    )
    rng = np.random.default_rng(0)
    history = [some_gradients(rng), some_gradients(rng)]
    eta = ETA
    for gradients in history:
        before = eta
        eta, optimizers, dropped, _, norms = combine(eta, optimizers, dropped, gradients)
    w = [np.asarray(g["y_hat"]["w"], np.float64) for g in history]
    if per_agent:
        update = np.mean([adam_by_hand([g[i] for g in w], 0.01) for i in range(2)], axis=0)
    else:
        update = adam_by_hand([g.mean(axis=0) for g in w], 0.01)
    moved = np.asarray(eta["y_hat"]["w"], np.float64) - before["y_hat"]["w"]
    np.testing.assert_allclose(moved, update, rtol=2e-3, atol=1e-7)
    expected = np.sqrt(sum(np.sum(np.square(x[0])) for x in jax.tree.leaves(history[-1])))
    assert norms[0] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_bad_meta_gradient_is_left_out(bad):
    combine, optimizers, dropped = adams()
    rng = np.random.default_rng(0)
    eta, optimizers, dropped, _, _ = combine(ETA, optimizers, dropped, some_gradients(rng))
    good = some_gradients(rng)
    gradients = dict(good)
    gradients["gate"] = {
        "w": good["gate"]["w"].at[1, 0, 0].set(bad),
        "b": good["gate"]["b"],
    }
    moved, after, dropped, whole, _ = combine(eta, optimizers, dropped, gradients)
    assert dropped.tolist() == [0, 1]
    assert int(whole["meta/kept"]) == 1
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(moved))
    assert_same(*(jax.tree.map(lambda x: x[1], tree) for tree in (after, optimizers)))
    # The other agent moves the rule as if it were alone.
    alone = jax.tree.map(lambda x: jnp.stack([x[0], x[0]]), (optimizers, good))
    expected, others, _, _, _ = combine(eta, alone[0], dropped, alone[1])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), moved, expected)
    assert_same(*(jax.tree.map(lambda x: x[0], tree) for tree in (after, others)))
    # If none is left, the rule stays where it is.
    nothing = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), good)
    still, _, dropped, _, _ = combine(eta, optimizers, dropped, nothing)
    assert_same(still, eta)
    assert dropped.tolist() == [1, 2]


# --- lives and scores -----------------------------------------------------------------------------


def test_short_lives_are_likelier():
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(jax.vmap(lambda key: draw_lifetime(key, (20, 50, 100, 200)))(keys))
    lengths, counts = np.unique(drawn, return_counts=True)
    assert lengths.tolist() == [20, 50, 100, 200]
    weight = 1 / lengths
    np.testing.assert_allclose(counts / counts.sum(), weight / weight.sum(), atol=0.01)


def test_agents_that_ended_no_episode_have_no_say():
    nan = np.nan
    returns = np.array([[9, 9, 9, 9, 9, 9, 1.0, 4.0], [nan] * 8, [0, 0, 0, 0, 0, 0, nan, 8.0]])
    episodes = np.array([[1, 1, 1, 1, 1, 1, 2, 1], [0] * 8, [1, 1, 1, 1, 1, 1, 0, 5]])
    # Of the last two updates: two agents, with 2 and 8 an episode.
    assert _last_return({RETURN: returns, EPISODES: episodes}) == pytest.approx(5)
    only = {RETURN: returns[1:2], EPISODES: episodes[1:2]}
    assert np.isnan(_last_return(only))
    assert np.isnan(Score({"a": 1.0, "b": nan}, {"a": 1.0, "b": nan}).mean)
