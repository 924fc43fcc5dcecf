"""The learner: gradients, pieces, episode ends, target network."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import ACTIONS, OBSERVATION, fresh, network_for, random_trajectory

from discorl.agent import learner as learner_module
from discorl.agent.learner import Learner
from discorl.networks import Network
from discorl.rules import PPO, ActorCritic, Disco, PolicyGradient, Sizes
from discorl.rules.returns import take_action
from discorl.runs.metrics import TOTAL_LOSS
from discorl.types import Trajectory
from discorl.verification.cases import cast

pytestmark = pytest.mark.usefixtures("float64")
SIZES = Sizes(
    prediction=4,
    trajectory_lstm=5,
    embedding_net=(3, 1),
    policy_net=(4, 2),
    pi_hat_blocks=(3,),
    meta_lstm=3,
    meta_input=(3,),
    meta_embedding_net=(3, 1),
    meta_policy_net=(3, 2),
)
DISCO = Disco(sizes=SIZES, num_bins=5)
RULES = {
    "disco": DISCO,
    "actor_critic": ActorCritic(),
    "policy_gradient": PolicyGradient(),
    "ppo": PPO(epochs=1, minibatches=1),
}


def gradient_learner(rule, network=None):
    """A learner that moves its parameters by minus the gradient, which so can be read off."""
    return Learner(rule, network or network_for(rule), optax.sgd(1.0), ACTIONS)


def eta_of(rule):
    with jax.enable_x64(False):
        eta = rule.init_params(jax.random.key(5))
    return cast(eta, "float64")


@functools.cache
def prepared(name):
    """A learner of a rule, compiled once for all tests: learner, state, eta, update."""
    learner = gradient_learner(RULES[name])
    return learner, fresh(learner), eta_of(RULES[name]), jax.jit(learner.update_in_detail)


def assert_close(computed, expected, tolerance=1e-9):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance),
        computed,
        expected,
    )


def moved(before, after):
    """Whether any leaf changed noticeably."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return any(np.max(np.abs(x - y)) > 1e-6 for x, y in pairs)


# --- the gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["disco", "ppo"])
def test_gradient_agrees_with_finite_differences(name):
    learner, state, eta, update = prepared(name)
    trajectory = random_trajectory(1, steps=4, batch=2)
    mask = np.ones((4, 2))
    mask[1, 0] = 0
    trajectory = dataclasses.replace(trajectory, mask=jnp.asarray(mask))
    after, metrics, details = update(state, eta, trajectory)
    gradient = jax.tree.map(lambda x, y: x - y, state.params, after.params)

    def outputs_of(params):
        rows = trajectory.observation.reshape(-1, 2)
        outputs = learner.network.apply(params, rows)
        outputs = {n: x.reshape(5, 2, *x.shape[1:]) for n, x in outputs.items()}
        taken = {n: take_action(outputs[n][:-1], trajectory.action) for n in learner.spec.action}
        return outputs | taken

    constant = outputs_of(state.params)

    @jax.jit
    def loss(params):
        outputs = outputs_of(params)
        terms = learner.rule.loss(outputs, details.targets, trajectory)
        if "aux_pi" in terms:  # the next policy, which it aims at, is a constant
            frozen = outputs | {"logits": constant["logits"]}
            terms["aux_pi"] = learner.rule.loss(frozen, details.targets, trajectory)["aux_pi"]
        return jnp.sum(sum(terms.values()) * mask) / (mask.sum() + 1e-8)

    np.testing.assert_allclose(metrics[TOTAL_LOSS], loss(state.params), rtol=1e-9)
    rng = np.random.default_rng(0)
    leaves, tree = jax.tree.flatten(state.params)
    for i, (leaf, slope) in enumerate(zip(leaves, jax.tree.leaves(gradient), strict=True)):
        direction = rng.normal(size=leaf.shape)
        step = 1e-6

        def shifted(sign, i=i, direction=direction, step=step):
            changed = [x + sign * step * direction if j == i else x for j, x in enumerate(leaves)]
            return loss(jax.tree.unflatten(tree, changed))

        difference = (shifted(1) - shifted(-1)) / (2 * step)
        np.testing.assert_allclose(
            np.sum(slope * direction), difference, rtol=1e-5, atol=1e-8, err_msg=str(leaf.shape)
        )


# --- the same update, computed in another way -----------------------------------------------------


def test_a_plain_network_learns_like_one_in_parts():
    _, state, eta, update = prepared("disco")
    network = network_for(DISCO)
    plain = gradient_learner(DISCO, Network(network.init, network.apply))
    trajectory = random_trajectory(2, steps=4, batch=2)
    expected, metrics, _ = update(state, eta, trajectory)
    computed, plain_metrics = jax.jit(plain.update)(state, eta, trajectory)
    assert moved(state.params, computed.params)
    assert_close(computed.params, expected.params)
    assert_close(computed.rule, expected.rule)
    assert_close(plain_metrics, metrics)


def test_cutting_into_pieces_changes_nothing(monkeypatch):
    learner, state, eta, update = prepared("disco")
    trajectory = random_trajectory(2, steps=4, batch=2)
    expected, metrics, _ = update(state, eta, trajectory)
    row_bytes = ACTIONS * 5 * 8
    # 10 rows in pieces of 4, 4 and 2.
    monkeypatch.setattr(learner_module, "PIECE_BYTES", 3 * row_bytes)
    assert learner._pieces((jnp.zeros((10, 3)),)) == 3
    computed, piece_metrics = jax.jit(lambda *given: learner.update(*given))(state, eta, trajectory)
    assert_close(computed.params, expected.params)
    assert_close(computed.rule, expected.rule)
    assert_close(piece_metrics, metrics)


# --- the ends of episodes -------------------------------------------------------------------------


def joined_and_apart(seed, half):
    """Two episodes cut by time limits: in one trajectory, with a filler between, and in two."""
    apart = random_trajectory(seed, steps=half, batch=2)
    cut = np.zeros((half, 2), bool)
    cut[-1, 0] = True
    ended = apart.terminated.at[-1, 0].set(False)
    apart = dataclasses.replace(apart, truncated=jnp.asarray(cut), terminated=ended)

    def join(x, filler):
        pieces = [x[:, :1], *filler, x[:, 1:]]
        return jnp.concatenate(pieces)

    def with_filler(x):
        return join(x, [x[:1, 1:]])  # anything will do in a filler

    together = Trajectory(
        observation=join(apart.observation, []),  # the last of the first one is the filler's
        action=with_filler(apart.action),
        reward=with_filler(apart.reward),
        terminated=with_filler(apart.terminated),
        behaviour_logits=with_filler(apart.behaviour_logits),
        truncated=join(apart.truncated, [jnp.zeros((1, 1), bool)]),
        mask=with_filler(apart.mask),
    )
    return together, apart


@pytest.mark.parametrize("name", RULES)
def test_a_truncation_inside_a_trajectory_is_like_two_trajectories(name):
    _, state, eta, update = prepared(name)
    together, apart = joined_and_apart(seed=3, half=3)
    assert together.action.shape == (7, 1)
    one, _, one_details = update(state, eta, together)
    two, _, two_details = update(state, eta, apart)
    assert moved(state.params, one.params)
    assert_close(one.params, two.params)
    assert_close(one.rule, two.rule)

    def compare(x, y):
        np.testing.assert_allclose(x[:3, 0], y[:, 0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(x[4:, 0], y[:, 1], rtol=1e-9, atol=1e-9)

    jax.tree.map(compare, one_details.targets, two_details.targets)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), name=st.sampled_from(["disco", "ppo", "actor_critic"]))
def test_nothing_in_a_filler_matters(seed, name):
    with jax.enable_x64(True):
        _, state, eta, update = prepared(name)
        trajectory, _ = joined_and_apart(seed=3, half=3)
        rng = np.random.default_rng(seed)
        changed = dataclasses.replace(
            trajectory,
            action=trajectory.action.at[3].set(int(rng.integers(ACTIONS))),
            reward=trajectory.reward.at[3].set(100 * rng.normal()),
            terminated=trajectory.terminated.at[3].set(bool(rng.integers(2))),
            mask=trajectory.mask.at[3].set(float(rng.integers(2))),
            behaviour_logits=trajectory.behaviour_logits.at[3].set(rng.normal(size=ACTIONS)),
        )
        expected, _, details = update(state, eta, trajectory)
        computed, _, changed_details = update(state, eta, changed)
        assert_close(computed.params, expected.params)
        assert_close(computed.rule, expected.rule)
        real = np.array([0, 1, 2, 4, 5, 6])
        assert_close(
            jax.tree.map(lambda x: x[real], changed_details.targets),
            jax.tree.map(lambda x: x[real], details.targets),
        )


@pytest.mark.parametrize("name", ["actor_critic", "policy_gradient"])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_targets_know_nothing_of_the_next_episode(name, end):
    _, state, eta, update = prepared(name)
    no = jnp.zeros((4, 2), bool)
    trajectory = dataclasses.replace(
        random_trajectory(4, 4, 2),
        **{"terminated": no, "truncated": no, end: no.at[1].set(True)},
    )
    other = random_trajectory(5, 4, 2)
    # What a truncated episode is bootstrapped from is its own.
    first = 3 if end == "truncated" else 2
    changed = dataclasses.replace(
        trajectory,
        observation=trajectory.observation.at[first:].set(other.observation[first:]),
        reward=trajectory.reward.at[2:].set(other.reward[2:]),
        action=trajectory.action.at[2:].set(other.action[2:]),
    )
    targets = update(state, eta, trajectory)[2].targets
    new_targets = update(state, eta, changed)[2].targets
    before = jax.tree.map(lambda x: x[:2], (targets, new_targets))
    assert_close(*before)
    assert moved(targets, new_targets)
    # Without the end they do know.
    whole = dataclasses.replace(trajectory, **{end: no})
    whole_changed = dataclasses.replace(changed, **{end: no})
    assert moved(
        update(state, eta, whole)[2].targets["value"][:2],
        update(state, eta, whole_changed)[2].targets["value"][:2],
    )


@pytest.mark.parametrize("name", ["actor_critic", "policy_gradient", "ppo"])
def test_masked_steps_have_no_gradient(name):
    _, state, eta, update = prepared(name)
    trajectory = random_trajectory(6, 4, 2)
    masked = dataclasses.replace(trajectory, mask=trajectory.mask.at[:, 1].set(0))
    alone = jax.tree.map(lambda x: x[:, :1], trajectory)
    expected = update(state, eta, alone)[0].params
    assert_close(update(state, eta, masked)[0].params, expected, 1e-7)
    assert moved(update(state, eta, trajectory)[0].params, expected)


def test_a_batch_without_a_step_to_learn_from_moves_nothing():
    _, state, eta, update = prepared("disco")
    trajectory = random_trajectory(6, 4, 2)
    masked = dataclasses.replace(trajectory, mask=jnp.zeros((4, 2)))
    after = update(state, eta, masked)[0]
    assert_close(after.params, state.params)


# --- the target network ---------------------------------------------------------------------------


def test_target_network_averages_the_parameters_from_before_the_update():
    _, state, eta, update = prepared("disco")
    after = update(state, eta, random_trajectory(2, 4, 2))[0]
    expected = jax.tree.map(lambda t, p: 0.9 * t + 0.1 * p, state.target_params, state.params)
    assert_close(after.target_params, expected, 1e-12)
    assert moved(state.params, after.params)


def test_rules_without_a_target_network_keep_none():
    learner = gradient_learner(ActorCritic())
    state = learner.init(jax.random.key(0), OBSERVATION, 1)
    assert state.target_params is None
