"""Q(lambda) and Muesli against loops over their definitions and gradients derived by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
import reference
from test_hand_made_rules import ACTIONS, BATCH, STEPS, experience, learnable_steps

import discorl
from discorl.envs.base import Step
from discorl.rules import Muesli, QLambda
from discorl.types import UserError
from discorl.verification.cases import cast

Q_LAMBDA = QLambda(discount=0.9, lambda_=0.8)
MUESLI = Muesli(discount=0.9, lambda_=0.8, clip=0.6, cmpo_cost=0.7, model_cost=0.4, q_cost=0.3)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


in_float64 = pytest.mark.usefixtures("float64")


def outputs_of(rule, seed):
    """What a network says, of all actions."""
    rng = np.random.default_rng(seed)
    spec = rule.outputs(ACTIONS)
    shapes = spec.state | {name: (ACTIONS, *shape) for name, shape in spec.action.items()}
    return {n: rng.normal(size=(STEPS + 1, BATCH, *shape)) for n, shape in shapes.items()}


def case(rule, seed):
    """A trajectory, and outputs of an agent and of its target network."""
    return experience(seed)[0], outputs_of(rule, seed + 10), outputs_of(rule, seed + 20)


@functools.partial(jax.jit, static_argnums=0)
def targets_of(rule, state, trajectory, online, target):
    def summaries(outputs):
        named = {n: rule.summarise((), n, x) for n, x in outputs.items()}
        return {n: x for n, x in named.items() if x is not None}

    return rule.targets((), state, trajectory, summaries(online), summaries(target))


@functools.partial(jax.jit, static_argnums=0)
def gradient_of(rule, outputs, targets, trajectory):
    """Of the loss as a learner reduces it, with respect to the outputs as a loss reads them."""

    def total(outputs):
        weight = trajectory.learnable(jnp.float64)
        terms = rule.loss(outputs, targets, trajectory)
        assert all(term.shape == weight.shape for term in terms.values())
        return sum(jnp.sum(term * weight) for term in terms.values()) / jnp.sum(weight)

    return jax.grad(total)(outputs)


def loop_retrace(rule, trajectory, v, q, trace):
    """Returns, one step after another from the end.

    Args:
        rule: whose discount it is.
        trajectory: the experience.
        v: values of the observations, [T+1, B].
        q: values of the actions taken, [T, B].
        trace: how far the return is followed through each step, [T, B].
    """
    found = np.zeros((STEPS, BATCH))
    cut = np.asarray(trajectory.terminated) | np.asarray(trajectory.truncated)
    for b in range(BATCH):
        for t in reversed(range(STEPS)):
            later = v[t + 1, b]
            if t < STEPS - 1 and not cut[t, b]:
                later += trace[t + 1, b] * (found[t + 1, b] - q[t + 1, b])
            discount = 0.0 if trajectory.terminated[t, b] else rule.discount
            found[t, b] = trajectory.reward[t, b] + discount * later
    return found


def taken(values, trajectory):
    return reference.at_action(values[:STEPS], np.asarray(trajectory.action))


def chosen(trajectory):
    return np.eye(ACTIONS)[np.asarray(trajectory.action)]


# --- Q(lambda) ------------------------------------------------------------------------------------


def test_q_lambda_acts_epsilon_greedily():
    rule = QLambda(epsilon=0.3)
    q = jnp.array([[[1.0, 3.0, 2.0]], [[-1.0, -3.0, -2.0]]])
    pi = reference.softmax(np.asarray(rule.policy({"q": q})))
    np.testing.assert_allclose(pi, [[[0.1, 0.8, 0.1]], [[0.8, 0.1, 0.1]]], rtol=1e-6)


@in_float64
@pytest.mark.parametrize("seed", range(3))
def test_returns_of_q_lambda_against_a_loop(seed):
    trajectory, online, target = case(Q_LAMBDA, seed)
    targets, state, metrics = targets_of(Q_LAMBDA, (), trajectory, online, target)
    q, target_q = (reference.unsquash(x["q"]) for x in (online, target))
    greedy = np.argmax(q, axis=-1)
    v = np.take_along_axis(target_q, greedy[..., None], axis=-1)[..., 0]
    is_greedy = np.asarray(trajectory.action) == greedy[:-1]
    assert 0 < is_greedy.sum() < is_greedy.size
    expected = loop_retrace(
        Q_LAMBDA, trajectory, v, taken(target_q, trajectory), Q_LAMBDA.lambda_ * is_greedy
    )
    np.testing.assert_allclose(targets["q"], expected, rtol=1e-10)
    assert state == ()
    learned = learnable_steps() == 1
    np.testing.assert_allclose(metrics["value"], q.max(-1)[:-1][learned].mean())
    np.testing.assert_allclose(metrics["greedy"], is_greedy[learned].mean())
    error = np.abs(expected - taken(q, trajectory))
    np.testing.assert_allclose(metrics["q_td"], error[learned].mean())


@in_float64
def test_gradient_of_q_lambda_by_hand():
    trajectory, outputs, _ = case(Q_LAMBDA, 0)
    targets = {"q": 3 * trajectory.reward}
    gradient = gradient_of(Q_LAMBDA, outputs, targets, trajectory)
    weight = learnable_steps() / learnable_steps().sum()
    error = taken(outputs["q"], trajectory) - reference.squash(np.asarray(targets["q"]))
    expected = (error * weight)[..., None] * chosen(trajectory)
    np.testing.assert_allclose(gradient["q"][:-1], expected, rtol=1e-9, atol=1e-12)
    assert not gradient["q"][-1].any()


# --- Muesli ---------------------------------------------------------------------------------------


@in_float64
@pytest.mark.parametrize("seed", range(3))
def test_targets_of_muesli_against_a_loop(seed):
    """Of two updates, for the moving average of the second goes back to the first."""
    state, second_moment = cast(MUESLI.init_state(1), "float64"), 0.0
    for update in range(2):
        trajectory, online, target = case(MUESLI, seed + 100 * update)
        targets, state, metrics = targets_of(MUESLI, state, trajectory, online, target)

        prior = reference.softmax(target["logits"])
        pi = reference.softmax(online["logits"])
        mu = taken(reference.softmax(np.asarray(trajectory.behaviour_logits)), trajectory)
        q = reference.unsquash(target["q"])
        v = (prior * q).sum(-1)
        trace = MUESLI.lambda_ * np.minimum(1, taken(prior, trajectory) / mu)
        expected = loop_retrace(MUESLI, trajectory, v, taken(q, trajectory), trace)
        advantage = expected - v[:-1]
        learned = learnable_steps() == 1
        second_moment = 0.99 * second_moment + 0.01 * np.square(advantage[learned]).mean()
        sigma = np.sqrt(second_moment / (1 - 0.99 ** (update + 1)))
        improvement = (q - v[..., None]) / sigma
        assert 0 < (np.abs(improvement) > MUESLI.clip).mean() < 1
        improved = prior * np.exp(np.clip(improvement, -MUESLI.clip, MUESLI.clip))
        improved /= improved.sum(-1, keepdims=True)
        rho = taken(pi, trajectory) / mu

        close = functools.partial(np.testing.assert_allclose, rtol=1e-9)
        close(targets["q"], expected)
        close(targets["advantage"], np.minimum(1, rho) * advantage / sigma)
        close(reference.softmax(np.asarray(targets["pi"])), improved[:-1])
        close(reference.softmax(np.asarray(targets["next_pi"])), improved[1:])
        close(metrics["value"], v[:-1][learned].mean())
        close(metrics["advantage_size"], np.abs(advantage[learned]).mean())
        close(metrics["importance_ratio"], rho[learned].mean())


def test_the_improved_policy_of_muesli_by_numbers():
    """Two actions of values 3 and 1, a prior of 1/4 and 3/4: V is 1.5, advantages 1.5 and -0.5."""
    rule = Muesli(clip=1.0)
    trajectory = dataclasses.replace(
        experience()[0],
        action=jnp.zeros((1, 1), int),
        reward=jnp.full((1, 1), 2.0),  # the last: G is 2, and G - V half a unit
        terminated=jnp.ones((1, 1), bool),
        truncated=None,
        mask=None,
        behaviour_logits=jnp.zeros((1, 1, 2)),
    )
    logits = jnp.zeros((2, 1, 2)).at[..., 1].set(np.log(3))
    q = jnp.broadcast_to(jnp.array([3.0, 1.0]), (2, 1, 2))
    online, target = {"logits": jnp.zeros((2, 1, 2))}, {"logits": logits, "q": q}
    targets, _, _ = rule.targets((), rule.init_state(1), trajectory, online, target)
    # Divided by sigma = 0.5, both advantages leave the clip: +1 and -1.
    odds = (1 / 4 * np.e) / (3 / 4 / np.e)
    found = reference.softmax(np.asarray(targets["pi"]))[0, 0]
    np.testing.assert_allclose(found, [odds / (1 + odds), 1 / (1 + odds)], rtol=1e-5)
    np.testing.assert_allclose(targets["advantage"], 1.0, rtol=1e-5)


@in_float64
def test_gradient_of_muesli_by_hand():
    rng = np.random.default_rng(0)
    trajectory, outputs, _ = case(MUESLI, 0)
    outputs["aux_pi"] = outputs["aux_pi"][:-1, :, 0]
    targets = {
        "q": 3 * trajectory.reward,
        "advantage": rng.normal(size=(STEPS, BATCH)),
        "pi": rng.normal(size=(STEPS, BATCH, ACTIONS)),
        "next_pi": rng.normal(size=(STEPS, BATCH, ACTIONS)),
    }
    gradient = gradient_of(MUESLI, outputs, targets, trajectory)
    weight = (learnable_steps() / learnable_steps().sum())[..., None]
    pi = reference.softmax(outputs["logits"][:-1])
    along = targets["advantage"][..., None] * (pi - chosen(trajectory))
    toward = MUESLI.cmpo_cost * (pi - reference.softmax(targets["pi"]))
    predicted = reference.softmax(outputs["aux_pi"]) - reference.softmax(targets["next_pi"])
    goes_on = ~np.asarray(trajectory.terminated)[..., None]
    error = taken(outputs["q"], trajectory) - reference.squash(np.asarray(targets["q"]))
    expected = {
        "logits": (along + toward) * weight,
        "aux_pi": MUESLI.model_cost * predicted * goes_on * weight,
        "q": MUESLI.q_cost * error[..., None] * chosen(trajectory) * weight,
    }
    for name, slope in expected.items():
        found, beyond = gradient[name][:STEPS], gradient[name][STEPS:]
        np.testing.assert_allclose(found, slope, rtol=1e-9, atol=1e-12, err_msg=name)
        assert not beyond.any()


# --- both -----------------------------------------------------------------------------------------

both_rules = pytest.mark.parametrize("rule", [Q_LAMBDA, MUESLI], ids=lambda rule: rule.name)


@in_float64
@both_rules
def test_targets_carry_no_gradient(rule):
    trajectory, online, target = case(rule, 0)

    def total(online, target):
        found = targets_of(rule, rule.init_state(1), trajectory, online, target)
        return sum(jnp.sum(x) for x in jax.tree.leaves(found))

    slopes = jax.grad(total, argnums=(0, 1))(online, target)
    assert not any(x.any() for x in jax.tree.leaves(slopes))


@in_float64
@both_rules
def test_steps_that_are_not_learned_from_have_no_influence(rule):
    trajectory, online, target = case(rule, 0)
    other = experience(seed=1)[0]
    learned = jnp.asarray(learnable_steps() == 1)

    def keep(x, y):
        return jnp.where(learned.reshape(learned.shape + (1,) * (x.ndim - 2)), x, y)

    changed = dataclasses.replace(
        trajectory,
        action=keep(trajectory.action, (trajectory.action + 1) % ACTIONS),
        reward=keep(trajectory.reward, 1e3 * other.reward),
        behaviour_logits=keep(trajectory.behaviour_logits, other.behaviour_logits),
    )
    state = rule.init_state(1)
    before, *before_rest = targets_of(rule, state, trajectory, online, target)
    after, *after_rest = targets_of(rule, state, changed, online, target)
    jax.tree.map(np.testing.assert_array_equal, before_rest, after_rest)
    for name in before:
        np.testing.assert_array_equal(before[name][learned], after[name][learned])
    assert not np.allclose(before["q"], after["q"])


@pytest.mark.parametrize(
    ("rule", "settings", "message"),
    [
        (QLambda, {"epsilon": 0}, "q_lambda: epsilon is 0; expected above 0 and at most 1"),
        (QLambda, {"epsilon": 1.1}, "q_lambda: epsilon is 1.1; expected above 0 and at most 1"),
        (QLambda, {"lambda_": 1.1}, "q_lambda: lambda_ is 1.1; expected from 0 to 1"),
        (Muesli, {"lambda_": -0.1}, "muesli: lambda_ is -0.1; expected from 0 to 1"),
        (Muesli, {"clip": 0.0}, "muesli: clip is 0.0; expected a positive number"),
    ],
)
def test_settings_that_make_no_sense(rule, settings, message):
    with pytest.raises(UserError, match=f"^{message}$"):
        rule(**settings)


# --- learning -------------------------------------------------------------------------------------

SETTINGS = {
    "num_envs": 8,
    "unroll": 8,
    "batch": 16,
    "replay": 64,
    "replay_fraction": 0.75,
    "updates": 300,
    "learning_rate": 1e-2,
    "schedule": "cosine",
    "discount": 0.6,
    "hidden": (16,),
    "action_lstm": 8,
    "action_hidden": (),
}


def trained(rule):
    """What the network says at the three observations of `Fork`, and the learner's policy."""
    result = discorl.train(rule=rule, environment=Fork(), **SETTINGS)
    learner = result.trainer.learner
    params = result.state.learner.params
    outputs = learner.network.apply(params, jnp.eye(3))
    return outputs, reference.softmax(np.asarray(learner.policy(params, jnp.eye(3))[0]))


@dataclasses.dataclass(frozen=True)
class Fork(probes.DelayedReward):
    """Two steps; the second is rewarded with 1 if the first action was 1, else with 0.

    With discount gamma, Q = (0, gamma) at the first observation, 0 after action 0, 1 after 1.
    """

    observation = jax.ShapeDtypeStruct((3,), jnp.float32)

    def reset(self, key):
        return jnp.int32(0), jax.nn.one_hot(0, 3)

    def step(self, state, action, key):
        at_start = state == 0
        place = jnp.where(at_start, 1 + action, state).astype(jnp.int32)
        reward = jnp.where(state == 2, 1.0, 0.0)
        step = Step(jax.nn.one_hot(place, 3), reward, ~at_start, jnp.asarray(False))
        return place, step


def test_q_lambda_learns_values_that_are_known():
    outputs, pi = trained("q_lambda:epsilon=0.2")
    q = reference.unsquash(np.asarray(outputs["q"], float))
    np.testing.assert_allclose(q, [[0, 0.6], [0, 0], [1, 1]], atol=0.05)
    np.testing.assert_allclose(pi[0], [0.1, 0.9], rtol=1e-5)


def test_muesli_learns_values_and_a_policy():
    outputs, pi = trained("muesli")
    assert pi[0, 1] > 0.95
    q = reference.unsquash(np.asarray(outputs["q"], float))
    np.testing.assert_allclose([q[0, 1], pi[2] @ q[2]], [0.6, 1.0], atol=0.1)
