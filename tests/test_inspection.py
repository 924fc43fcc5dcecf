"""Analyses find what is known of rules whose answers are known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import TINY_SIZES, fresh, network_for, random_trajectory

from discorl.agent.learner import Learner
from discorl.reports.inspection import (
    ablations,
    bootstrapping,
    coefficients,
    future,
    gradient,
    lifetime,
    readings,
    response,
    sensitivity,
)
from discorl.reports.inspection.findings import DoesNotApplyError
from discorl.reports.inspection.readings import Asked
from discorl.reports.inspection.subject import Life, Reading
from discorl.rules import PPO, ActorCritic, Disco, Lean, Muesli, QLambda, Rule
from discorl.rules.disco import ABLATIONS
from discorl.rules.returns import take_action
from discorl.types import OutputSpec, Trajectory

STEPS, BATCH, ACTIONS = 12, 16, 3
LIFE = Life(0, ())


@pytest.fixture(scope="module")
def data():
    """A batch of an agent with values: logits [T+1, B, A] and values of its own."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(STEPS + 1, BATCH, ACTIONS)), jnp.float32)
    trajectory = Trajectory(
        observation=jnp.zeros((STEPS + 1, BATCH, 1)),
        action=jnp.asarray(rng.integers(ACTIONS, size=(STEPS, BATCH))),
        reward=jnp.asarray(rng.normal(size=(STEPS, BATCH)), jnp.float32),
        terminated=jnp.asarray(rng.random((STEPS, BATCH)) < 0.1),
        behaviour_logits=logits[:-1],
        truncated=jnp.zeros((STEPS, BATCH), bool),
    )
    value = jnp.asarray(rng.normal(size=(STEPS + 1, BATCH)), jnp.float32)
    q = value[..., None] + jnp.asarray(rng.normal(size=logits.shape), jnp.float32)
    return trajectory, logits, value, q


def asked(rule, data):
    trajectory, logits, value, q = data
    spec = rule.outputs(ACTIONS)
    known = {"logits": logits, "value": value, "q": q, "z": q}
    online = {name: known[name] for name in spec.state}
    outputs = online | {
        name: jnp.zeros((STEPS, BATCH, *shape)) for name, shape in spec.action.items()
    }
    target = {} if rule.target_decay is None else online
    reading = Reading(trajectory, outputs, online, target, logits)
    return Asked(rule.name, rule, (), rule.init_state(jnp.int32(10)), reading)


# --- response -------------------------------------------------------------------------------------


def test_actor_critic_responds_linearly_and_only_up_to_a_ratio_of_one(data):
    found = response.responses(asked(ActorCritic(entropy_cost=0.0), data), LIFE)
    on_policy = found[:, response.NEUTRAL]
    slope = on_policy[-1] / response.ADVANTAGES[-1]
    assert slope > 0
    np.testing.assert_allclose(on_policy, slope * response.ADVANTAGES, atol=1e-5)
    assert response.linearity(found[None]) > 1 - 1e-8
    assert response.share_of_advantage(found[None]) == pytest.approx(1)
    lifted = found[None] + 3 * on_policy.std()  # as straight, and follows the advantage less
    assert response.share_of_advantage(lifted) == pytest.approx(10**-0.5)
    # min(1, pi / mu): no more of it far off policy, and in proportion below.
    np.testing.assert_allclose(found[:, -1], on_policy, atol=1e-5)


def test_ppo_is_flat_beyond_the_clip(data):
    found = response.responses(asked(PPO(entropy_cost=0.0), data), LIFE)
    beyond = response.RATIOS > 1.2
    below = response.RATIOS < 0.8
    gains, losses = found[response.ADVANTAGES > 1], found[response.ADVANTAGES < -1]
    assert np.abs(gains[:, beyond]).max() == 0
    assert np.abs(losses[:, below]).max() == 0
    assert gains[:, ~beyond].min() > 0
    assert losses[:, ~below].max() < 0


def test_muesli_weighs_large_advantages_by_its_moving_average(data):
    found = response.responses(asked(Muesli(cmpo_cost=0.0), data), LIFE)
    assert (np.diff(found[:, response.NEUTRAL]) > 0).all()


def test_a_rule_without_a_policy_of_its_own_is_told_so(data):
    with pytest.raises(DoesNotApplyError, match="not an output of its own"):
        readings.push(asked(QLambda(), data))


def test_an_advantage_moves_with_its_reward_one_to_one(data):
    for rule in (ActorCritic(), Muesli()):
        case = asked(rule, data)
        before = readings.advantages(rule, case.reading)
        changed = dataclasses.replace(
            case.reading.trajectory, reward=case.reading.trajectory.reward.at[4].add(0.7)
        )
        after = readings.advantages(rule, dataclasses.replace(case.reading, trajectory=changed))
        np.testing.assert_allclose(after[4] - before[4], 0.7, rtol=1e-5)
        np.testing.assert_allclose(after[5:], before[5:], rtol=1e-6)


def test_a_rule_beside_is_told_the_same_advantages(data):
    case = asked(Muesli(), data)
    told = readings._translate(ActorCritic(), case.reading)
    v = jnp.sum(jax.nn.softmax(case.reading.logits) * data[3], axis=-1)
    np.testing.assert_allclose(told.online["value"], v, rtol=1e-5)
    assert told.target == {}


# --- sensitivity and bootstrapping ----------------------------------------------------------------


def disco(data, without):
    """A random Disco rule, and summaries of an agent with random predictions."""
    trajectory, logits, _, q = data
    rule = Disco(sizes=TINY_SIZES, num_bins=5, without=without)
    eta = jax.jit(rule.init_params)(jax.random.key(3))
    keys = iter(jax.random.split(jax.random.key(4), 8))
    shape = (STEPS + 1, BATCH)

    def summaries(logits):
        return {
            "logits": logits,
            "q": q,
            "y": jax.random.normal(next(keys), (*shape, 2)),
            "z": jax.random.normal(next(keys), (*shape, ACTIONS, 2)),
        }

    state = rule.init_state(jnp.int32(10))
    meta_rnn = jax.tree.map(lambda x: x + 0.5, state.meta_rnn)  # the gate is shut at zero
    reading = Reading(trajectory, {}, summaries(logits), summaries(logits + 0.3), logits)
    return Asked("disco", rule, eta, dataclasses.replace(state, meta_rnn=meta_rnn), reading)


def test_a_rule_without_y_and_z_is_insensitive_to_them(data):
    key = jax.random.key(0)
    whole = sensitivity.measure(disco(data, "none"), key)
    blind = sensitivity.measure(disco(data, "bootstrapping"), key)
    predictions = {"y", "z", "target network's y", "target network's z"}
    for target in ("pi", "y", "z"):
        read, unread = whole[target][0], blind[target][0]
        assert all(read[name] > 1e-3 for name in predictions)
        assert all(unread[name] == 0 for name in predictions)
        # Policies are behind a stop-gradient, and read all the same.
        assert min(unread[name] for name in ("policy", "reward", "advantage", "termination")) > 0


def test_one_program_leaves_out_what_the_settings_of_a_rule_do(data):
    whole = disco(data, "none")
    keys = iter(jax.random.split(jax.random.key(5), 8))
    spec = whole.rule.outputs(ACTIONS)
    outputs = {"logits": data[1]} | {
        name: jax.random.normal(next(keys), (STEPS + (name in spec.state), BATCH, *shape))
        for name, shape in (spec.state | spec.action).items()
        if name != "logits"
    }

    def answers(rule, eta):
        reading = whole.reading
        targets, state, _ = rule.targets(
            eta, whole.state, reading.trajectory, reading.online, reading.target
        )
        terms = rule.loss(outputs, targets, reading.trajectory)
        hats = targets[0] if isinstance(targets, tuple) else targets
        return (hats, state), {name: float(jnp.mean(x)) for name, x in terms.items()}

    full, _ = answers(whole.rule, whole.eta)
    for parts in [(), *((part,) for part in ABLATIONS)]:
        static = dataclasses.replace(whole.rule, without="+".join(parts) or "none")
        expected, terms = answers(static, whole.eta)
        found, found_terms = answers(*ablations.switched(whole.rule, whole.eta, *parts))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), found, expected)
        assert found_terms == pytest.approx(dict.fromkeys(found_terms, 0.0) | terms, abs=1e-5)
        moved = jax.tree.map(lambda x, y: np.abs(x - y).max() > 1e-4, found, full)
        assert any(jax.tree.leaves(moved)) == (parts not in ((), ("aux_pi",)))


@dataclasses.dataclass(frozen=True)
class Copies(Rule):
    """The target of z is what was predicted three steps later, and nothing else."""

    def outputs(self, num_actions):
        return OutputSpec(num_actions, state={"logits": (num_actions,), "z": (num_actions,)})

    def targets(self, eta, state, trajectory, online, target):
        z = online["z"]
        ahead = jnp.concatenate([z[3:], jnp.zeros_like(z[:3])])[:-1]
        return {"z": ahead}, state, {}

    def loss(self, outputs, targets, trajectory):
        return {"z": jnp.sum(jnp.square(outputs["z"][:-1] - targets["z"]), axis=-1)}


def test_a_rule_that_copies_from_three_steps_ahead_bootstraps_from_there(data):
    found = bootstrapping.horizons(asked(Copies(), data), jax.random.key(0))["z"]["z"]
    assert np.argmax(found) == 3
    assert found[3] > 0.3
    np.testing.assert_array_equal(np.delete(found, 3), 0)


@dataclasses.dataclass(frozen=True)
class Sums(Copies):
    """The targets are thrice the reward plus the first number of z, and whether an episode ends."""

    def targets(self, eta, state, trajectory, online, target):
        ends = jnp.asarray(trajectory.terminated, jnp.float32)
        return {"sum": 3 * trajectory.reward + online["z"][:-1, :, 0], "ends": ends}, state, {}


def test_sensitivities_are_shares_of_the_way_between_trajectories(data):
    case = asked(Sums(), data)
    z = case.reading.online["z"]
    # Where z moves as the reward does, the reward moves the target by 3 of 4 parts, and z by 1.
    z = z.at[:-1, :, 0].set(case.reading.trajectory.reward)
    reading = dataclasses.replace(case.reading, online=case.reading.online | {"z": z})
    found = sensitivity.measure(dataclasses.replace(case, reading=reading), jax.random.key(0))
    (shares, _), (only, _) = found["sum"], found["ends"]
    parts = {"reward": 0.75, "agent's z": 0.25}
    assert shares == pytest.approx(dict.fromkeys(shares, 0.0) | parts, abs=1e-4)
    assert only == pytest.approx(dict.fromkeys(only, 0.0) | {"termination": 1.0}, abs=1e-6)


def test_values_reach_back_by_the_trace(data):
    trajectory, *others = data
    unbroken = dataclasses.replace(trajectory, terminated=jnp.zeros((STEPS, BATCH), bool))
    rule = ActorCritic(discount=0.9, lambda_=0.8)
    found = bootstrapping.horizons(asked(rule, (unbroken, *others)), jax.random.key(0))
    reach = found["value"]["advantage"]
    # On policy, d A_t / d v_{t+k} = gamma (gamma lambda)^(k-1) (1 - lambda) but for the last value,
    # which reaches back as gamma (gamma lambda)^(k-1).
    np.testing.assert_allclose(reach[2:6] / reach[1:5], 0.72, rtol=0.25)


# --- the gradient of anything ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Regression(Rule):
    """Values move toward the reward of their step: the gradient of a squared error."""

    def outputs(self, num_actions):
        return OutputSpec(num_actions, state={"logits": (num_actions,), "value": ()})

    def targets(self, eta, state, trajectory, online, target):
        return self._target(trajectory, online), state, {}

    def _target(self, trajectory, online):
        return trajectory.reward

    def loss(self, outputs, targets, trajectory):
        log_pi = take_action(jax.nn.log_softmax(outputs["logits"][:-1]), trajectory.action)
        return {"value": 0.5 * jnp.square(outputs["value"][:-1] - targets), "policy": -log_pi}


@dataclasses.dataclass(frozen=True)
class Bootstrapped(Regression):
    """Values move toward the next value: no gradient of anything."""

    def _target(self, trajectory, online):
        return trajectory.reward + 0.9 * jax.lax.stop_gradient(online["value"][1:])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("rule", "symmetric"), [(Regression(), True), (Bootstrapped(), False)])
def test_a_loss_has_a_symmetric_jacobian(rule, symmetric):
    learner = Learner(rule, network_for(rule), optax.sgd(1.0), ACTIONS)
    batch = random_trajectory(5, steps=6, batch=4)
    found = gradient.asymmetries(learner, fresh(learner), (), batch, jax.random.key(0))
    assert found["policy"] < 1e-5
    assert (found["value"] < 1e-5) is symmetric
    assert (found[gradient.TOTAL] < 1e-5) is symmetric
    if not symmetric:
        assert found["value"] > 0.05


def test_asymmetry_of_known_matrices():
    rotation = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert gradient.asymmetry(rotation) == 1
    assert gradient.asymmetry(rotation @ rotation.T + np.ones((2, 2))) == 0
    random = np.random.default_rng(0).normal(size=(200, 200))
    assert gradient.asymmetry(random) == pytest.approx(0.5**0.5, abs=0.01)


# --- probes ---------------------------------------------------------------------------------------


def test_probes_find_what_is_there_and_nothing_else(data):
    """Rewards and entropies that one feature foretells by two steps."""
    rng = np.random.default_rng(1)
    steps, batch = 60, 20
    hidden = rng.random((steps + 3, batch)) < 0.3
    sharp = 4.0 * hidden[:-2, :, None] * np.array([1.0, 0.0, 0.0])
    trajectory = Trajectory(
        observation=(),
        action=jnp.zeros((steps, batch), jnp.int32),
        reward=jnp.asarray(hidden[:steps], jnp.float32),
        terminated=jnp.zeros((steps, batch), bool),
        behaviour_logits=jnp.zeros((steps, batch, ACTIONS)),
    )
    reading = Reading(trajectory, {}, {}, {}, jnp.asarray(sharp, jnp.float32))
    futures = future.futures_of(reading)
    assert futures.known[:, 0].all()
    assert futures.known[:, 4].sum() == (steps - 4) * batch
    foretells = np.stack([hidden[2 : steps + 2], rng.normal(size=(steps, batch))], axis=-1)
    x, key = future.components(foretells.reshape(-1, 2)), jax.random.key(0)
    real, shuffled = (future.probe(x, f, key) for f in (futures, future.shuffled(futures)))
    assert real.entropy[2] > 0.95
    assert real.large[2] > 0.95
    others = [k for k in range(future.MOST_STEPS + 1) if k != 2]
    assert real.entropy[others].max() < 0.1
    assert np.abs(real.large[others] - 0.5).max() < 0.15
    assert shuffled.entropy.max() < 0.1
    assert np.abs(shuffled.large - 0.5).max() < 0.15


# --- lives ----------------------------------------------------------------------------------------


def test_the_memory_of_another_moment_is_all_that_is_swapped(data):
    case = disco(data, "none")
    first = dataclasses.replace(case, state=case.rule.init_state(jnp.int32(10)))
    moment = type("Moment", (), {"state": type("State", (), {"rule": first.state})})
    swapped = lifetime.with_first_memory(case, Life(0, (moment,)))
    assert not np.asarray(swapped.state.meta_rnn.hidden).any()
    assert swapped.state.adv_moments is case.state.adv_moments
    assert lifetime.with_first_memory(asked(ActorCritic(), data), Life(0, (moment,))) is None


def test_coefficients_of_a_lean_rule_over_a_life():
    rule = Lean(hidden=2)
    eta = rule.init_params(jax.random.key(0))
    eta["coefficients"] = eta["coefficients"].at[0, 1].set(2.0)  # of the prior, over the life
    found = coefficients.schedules(rule, eta, rule.init_state(jnp.int32(7)), 450)
    np.testing.assert_allclose(found["prior"], np.exp(0.2 * (coefficients.SHARES - 0.5)), rtol=1e-5)
    np.testing.assert_allclose(found["clip"], 1.0)
