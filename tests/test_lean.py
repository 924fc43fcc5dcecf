"""The lean rule: equal to Muesli at the start, and what its coefficients and network change."""

import dataclasses

import jax
import jax.numpy as jnp
import learners
import numpy as np
import optax
import pytest
from test_hand_made_rules import ACTIONS, BATCH, STEPS, experience
from test_off_policy_rules import gradient_of

from discorl.agent.learner import Learner
from discorl.rules.lean import FEATURES, GAINS, NUM_INPUTS, Lean, LeanState
from discorl.rules.muesli import Muesli
from discorl.rules.returns import Moments
from discorl.types import UserError
from discorl.verification.cases import cast

LEAN = Lean(discount=0.9, lambda_=0.8, clip=0.6)
MUESLI = Muesli(discount=0.9, lambda_=0.8, clip=0.6, model_cost=0.0)
TAKEN, ONE = 4, 0  # places of inputs of the network

pytestmark = pytest.mark.usefixtures("float64")


def outputs_of(seed):
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(rng.normal(size=(STEPS + 1, BATCH, ACTIONS))) for name in ("logits", "q")
    }


def summaries(rule, eta, outputs):
    return {name: rule.summarise(eta, name, x) for name, x in outputs.items()}


def fresh_eta(rule=LEAN):
    return cast(rule.init_params(jax.random.key(0)), "float64")


def random_eta(seed=0, size=0.3):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + size * jnp.asarray(rng.normal(size=x.shape)), fresh_eta())


def state_at(updates, lifetime):
    """A state in the middle of a life, with a sigma of 0.5."""
    moments = Moments(*(jnp.asarray(x, jnp.float64) for x in (0.0, 0.125, 0.5)))
    return LeanState(moments, jnp.int32(updates), jnp.int32(lifetime))


def coefficient(name, **slopes):
    """A new rule with one row of coefficients set, by the names of the features."""
    eta = fresh_eta()
    for feature, slope in slopes.items():
        place = list(GAINS).index(name), FEATURES.index(feature)
        eta = eta | {"coefficients": eta["coefficients"].at[place].set(slope)}
    return eta


def residual(entry, output, weight):
    """A new rule with one weight of the network's output set."""
    eta = fresh_eta()
    return eta | {"output": eta["output"].at[entry, output].set(weight)}


def targets_of(eta, state=None):
    trajectory, online, target = experience()[0], outputs_of(10), outputs_of(20)
    state = state_at(10, 40) if state is None else state
    return jax.jit(LEAN.targets)(
        eta, state, trajectory, summaries(LEAN, eta, online), summaries(LEAN, eta, target)
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_new_rule_has_the_gradient_of_muesli(seed):
    """Over two updates: the moving averages agree, too."""
    eta = fresh_eta()
    lean_state = cast(LEAN.init_state(jnp.int32(100)), "float64")
    muesli_state = cast(MUESLI.init_state(jnp.int32(100)), "float64")
    for update in range(2):
        trajectory = experience(seed + 50 * update)[0]
        online, target = outputs_of(seed + 10 + update), outputs_of(seed + 20 + update)
        said = summaries(LEAN, eta, online), summaries(LEAN, eta, target)
        targets, lean_state, _ = LEAN.targets(eta, lean_state, trajectory, *said)
        expected, muesli_state, _ = MUESLI.targets((), muesli_state, trajectory, *said)
        gradient = gradient_of(LEAN, online, targets, trajectory)
        aux_pi = jnp.zeros((STEPS, BATCH, ACTIONS))
        of_muesli = gradient_of(MUESLI, online | {"aux_pi": aux_pi}, expected, trajectory)
        for name in ("logits", "q"):
            np.testing.assert_allclose(gradient[name], of_muesli[name], rtol=1e-12, atol=1e-15)
    assert np.abs(gradient["logits"]).max() > 1e-3
    np.testing.assert_allclose(lean_state.moments.moment2, muesli_state.moment2, rtol=1e-14)


def test_a_new_rule_leaves_the_learning_rate_alone():
    assert LEAN.step_size(fresh_eta(), state_at(3, 10)) == 1


@pytest.mark.parametrize(("updates", "share"), [(0, 0.0), (3, 0.3), (10, 1.0), (25, 1.0)])
def test_schedules_follow_the_share_of_life_and_stop_at_its_end(updates, share):
    eta = coefficient("learning_rate", one=0.7, life=2.0)
    np.testing.assert_allclose(
        LEAN.step_size(eta, state_at(updates, 10)), np.exp(0.7 + 2 * (share - 0.5)), rtol=1e-12
    )


def test_schedules_know_the_end_the_length_and_sigma():
    eta = coefficient("learning_rate", cooldown=1.0)
    np.testing.assert_allclose(LEAN.step_size(eta, state_at(70, 100)), 1)
    np.testing.assert_allclose(LEAN.step_size(eta, state_at(90, 100)), np.exp(0.6))
    eta = coefficient("learning_rate", length=1.0)
    middle, longer, longest, beyond = (
        LEAN.step_size(eta, state_at(0, n)) for n in (450, 1012, 2000, 10**6)
    )
    np.testing.assert_allclose(middle, 1)
    np.testing.assert_allclose(longer, np.exp(0.5), rtol=1e-3)
    assert longest == beyond == np.exp(0.75)
    eta = coefficient("learning_rate", sigma=1.0)
    expected = np.exp(0.5 * np.tanh(np.log10(0.5 + 1e-6) + 1.5))
    np.testing.assert_allclose(LEAN.step_size(eta, state_at(0, 9)), expected)


def test_the_rule_counts_its_updates():
    state = targets_of(fresh_eta(), LEAN.init_state(jnp.int32(40)))[1]
    assert (int(state.updates), int(state.lifetime)) == (1, 40)


def test_coefficients_of_the_loss():
    plain = targets_of(fresh_eta())[0]
    for name in ("policy_cost", "q_cost"):
        targets = targets_of(coefficient(name, one=0.5))[0]
        np.testing.assert_allclose(targets[name], np.exp(0.5) * plain[name])
        others = [n for n in plain if n != name]
        for other in others:
            np.testing.assert_array_equal(targets[other], plain[other])


@pytest.mark.parametrize(
    ("name", "setting", "value"), [("trace", "lambda_", 1 - 0.2 * np.e), ("clip", "clip", 0.6)]
)
def test_coefficients_equal_settings(name, setting, value):
    """A lambda of 1 - 0.2 exp(2 x 1/2); a clip of 0.6 exp(1/2)."""
    value = value if setting == "lambda_" else value * np.exp(0.5)
    rule = dataclasses.replace(LEAN, **{setting: value})
    trajectory, online, target = experience()[0], outputs_of(10), outputs_of(20)
    said = summaries(LEAN, (), online), summaries(LEAN, (), target)
    expected = rule.targets(fresh_eta(), state_at(10, 40), trajectory, *said)[0]
    found = targets_of(coefficient(name, one=0.5))[0]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-10), found, expected)


def test_the_network_changes_policy_return_and_emphasis():
    eta, trajectory = fresh_eta(), experience()[0]
    plain, state, _ = targets_of(eta)
    moments = state.moments
    sigma = np.sqrt(moments.moment2 / (1 - moments.decay_product) + 1e-12)
    bonus = targets_of(residual(TAKEN, 1, 0.5))[0]
    np.testing.assert_allclose(bonus["q"], plain["q"] + sigma * 0.2 * 0.5, rtol=1e-10)
    np.testing.assert_array_equal(bonus["pi"], plain["pi"])
    # Without the policy gradient, the improved policy is left of the target.
    silent = coefficient("advantage", one=-60.0)
    weights = residual(TAKEN, 0, 0.5)["output"]
    before, after = (targets_of(silent | {"output": w})[0]["pi"] for w in (eta["output"], weights))
    taken = jax.nn.one_hot(trajectory.action, ACTIONS, dtype=bool)
    ratio = np.log(after / before)
    shift = ratio - np.min(ratio, axis=-1, keepdims=True)
    np.testing.assert_allclose(shift, np.where(taken, 0.5, 0), atol=1e-9)
    emphasised = targets_of(residual(ONE, 2, 0.5))[0]
    step = np.asarray(plain["pi"]) - np.asarray(before)
    np.testing.assert_allclose(emphasised["pi"] - before, np.exp(0.5) * step, atol=1e-9)


def test_the_gradient_of_an_update_with_respect_to_eta_by_finite_differences():
    learner = Learner(LEAN, learners.network_for(LEAN), optax.sgd(0.5), learners.ACTIONS)
    state = dataclasses.replace(learners.fresh(learner), rule=state_at(10, 40))
    trajectory = learners.random_trajectory(3, steps=5, batch=2)
    eta, rng = random_eta(1, size=0.1), np.random.default_rng(0)
    direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), state.params)

    @jax.jit
    def moved(eta):
        params = learner.update(state, eta, trajectory)[0].params
        return optax.tree.vdot(direction, params)

    gradient = jax.jit(jax.grad(moved))(eta)
    for name in eta:
        along = jnp.asarray(rng.normal(size=eta[name].shape))
        low, high = (moved(eta | {name: eta[name] + sign * 1e-6 * along}) for sign in (-1, 1))
        expected = (high - low) / 2e-6
        assert abs(expected) > 1e-6
        np.testing.assert_allclose(jnp.vdot(gradient[name], along), expected, rtol=1e-6)


def test_targets_are_constant_where_values_are():
    """Values of the agent steer targets, but no gradient flows back into them; policies do both."""
    eta, trajectory = random_eta(2), experience()[0]
    online, target = outputs_of(10), outputs_of(20)

    def total(online, target):
        targets = LEAN.targets(eta, state_at(10, 40), trajectory, online, target)[0]
        return jnp.sum(targets["pi"] ** 2) + jnp.sum(targets["q"] ** 2)

    of_online, of_target = jax.grad(total, argnums=(0, 1))(online, target)
    assert not of_online["q"].any()
    assert not of_target["q"].any()
    assert np.abs(of_online["logits"]).max() > 0
    assert total(online | {"q": online["q"] + 1}, target) != total(online, target)


def test_the_penalty_is_the_weighted_mean_square_of_the_network():
    assert LEAN.penalty(targets_of(fresh_eta())[0], experience()[0], {}, {}) == 0
    targets = targets_of(residual(ONE, 0, 0.5))[0]
    penalty = LEAN.penalty(targets, experience()[0], {}, {})
    np.testing.assert_allclose(penalty, 0.01 * 0.25 / 3)


def test_the_learner_multiplies_the_learning_rate():
    learner = Learner(LEAN, learners.network_for(LEAN), optax.sgd(0.1), learners.ACTIONS)
    state = learners.fresh(learner)
    trajectory = learners.random_trajectory(0, steps=5, batch=2)
    plain, scaled = (
        jax.jit(learner.update)(state, eta, trajectory)[0].params
        for eta in (fresh_eta(), coefficient("learning_rate", one=1.0))
    )
    jax.tree.map(
        lambda old, x, y: np.testing.assert_allclose(y - old, np.e * (x - old), atol=1e-12),
        state.params,
        plain,
        scaled,
    )


def test_settings_are_checked():
    for settings in ({"lambda_": 1.5}, {"clip": 0.0}, {"hidden": 0}):
        with pytest.raises(UserError, match=next(iter(settings))):
            Lean(**settings)
    assert Lean(hidden=5).init_params(jax.random.key(0))["hidden"].shape == (NUM_INPUTS, 5)
