"""The meta-critic: exact returns, gradients of its features, and what it learns from lives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discoveries import TINY

import discorl
from discorl.discovery import meta_critic
from discorl.discovery.meta_critic import PRIOR, STAGES
from discorl.discovery.population import Population
from discorl.envs import families
from discorl.rules import PolicyGradient

EXACT = (
    "chain",
    "cliff",
    "deep_sea:size=4",
    "four_rooms",
    "grid:size=3,objects=2",
    "hill",
    "key_door",
    "river_swim",
    "tabular",
    "windy_catch:rows=4,columns=4",
)


# --- exact returns --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_what_is_seen_in_a_situation_is_what_an_agent_sees_there(name):
    family = families.make(name)
    task = family.sample(jax.random.key(0), "train")

    @jax.jit
    def walk(key):
        def step(state, key):
            key, action_key = jax.random.split(key)
            action = jax.random.randint(action_key, (), 0, family.num_actions)
            after, step = family.step(task, state, action, key)
            return after, (after, step.observation, step.terminated | step.truncated)

        state, first = family.reset(task, key)
        _, (states, seen, ended) = jax.lax.scan(step, state, jax.random.split(key, 3))
        states = jax.tree.map(lambda x, y: jnp.append(x[None], y, axis=0), state, states)
        return states, jnp.append(first[None], seen, axis=0), ended, family.observations(task)

    states, seen, ended, table = jax.device_get(walk(jax.random.key(1)))
    timed = table.ndim > len(family.sizes.situations) + len(family.sizes.observation)
    steps = 1 + (int(np.argmax(ended)) if ended.any() else len(ended))  # before the end
    assert steps >= 2
    for i in range(steps):
        state = jax.tree.map(lambda x, i=i: x[i], states)
        place = tuple(int(x) for x in family.situation(state))
        expected = table[(int(state.time), *place) if timed else place]
        np.testing.assert_array_equal(seen[i], expected)


@pytest.mark.parametrize("name", ["chain", "deep_sea:size=4", "grid:size=3,objects=2"])
def test_returns_of_random_and_of_optimal_play(name):
    family = families.make(name)
    task = family.sample(jax.random.key(0), "train")

    @jax.jit
    def returns(task):
        plan = family.solve(task)
        best = jnp.argmax(plan.action_values, axis=-1)
        optimal = jax.nn.one_hot(best, family.num_actions)  # [horizon, *situations, A]
        uniform = jnp.full(optimal.shape[1:], 1 / family.num_actions)
        return plan.reference, family.evaluate(task, uniform), family.evaluate(task, optimal)

    reference, random, optimal = returns(task)
    assert float(random) == pytest.approx(float(reference.random), abs=1e-5)
    assert float(optimal) == pytest.approx(float(reference.optimal), abs=1e-5)


# --- features and their gradients -----------------------------------------------------------------


def test_gradients_of_exact_returns_agree_with_finite_differences():
    with jax.enable_x64(True):
        family = families.make("chain")
        task = family.sample(jax.random.key(3), "train")
        rng = np.random.default_rng(0)
        shape = (*family.observation.shape, family.num_actions)
        params, direction = (jnp.asarray(rng.normal(size=shape)) for _ in range(2))
        earned = meta_critic.exact_returns(family, task, lambda w, seen: seen @ w)
        slopes = jax.jit(jax.jacobian(earned))(params)
        size = 1e-5
        earned = jax.jit(earned)
        differences = (earned(params + size * direction) - earned(params - size * direction)) / (
            2 * size
        )
        found = jnp.sum(slopes * direction, axis=(1, 2))
        np.testing.assert_allclose(found, differences, rtol=1e-6)
        assert np.all(np.abs(differences) > 1e-4)
        # A sharp policy that does the right thing is worth 1.
        right = 50.0 * jax.nn.one_hot(task.correct, family.num_actions)
        right = right[: params.shape[0]]
        assert float(earned(right)[1]) == pytest.approx(1.0, abs=1e-3)


def test_estimated_returns_have_the_gradient_of_the_policy_gradient():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        shape = (4, 3)
        logits = jnp.asarray(rng.normal(size=(*shape, 2)))
        action = jnp.asarray(rng.integers(2, size=shape))
        value, adv = (jnp.asarray(rng.normal(size=shape)) for _ in range(2))
        weight = jnp.ones(shape).at[0, 0].set(0)

        def earned(logits):
            return meta_critic.estimated_returns(logits, action, value, adv, weight)

        slopes = np.asarray(jax.jacobian(earned)(logits))
        taken = np.eye(2)[np.asarray(action)]
        pi = np.asarray(jax.nn.softmax(logits))
        sharp = np.asarray(jax.nn.softmax(4 * logits))
        scale = np.asarray(weight * adv / weight.sum())[..., None]
        np.testing.assert_allclose(slopes[0], scale * (taken - pi), atol=1e-12)
        ratio = ((sharp * taken).sum(-1) / (pi * taken).sum(-1))[..., None]
        np.testing.assert_allclose(slopes[1], scale * ratio * 4 * (taken - sharp), atol=1e-12)
        mean = np.average(value, weights=weight)
        gain = np.average((ratio[..., 0] - 1) * adv, weights=weight)
        np.testing.assert_allclose(earned(logits), [mean, mean + gain], rtol=1e-12)


# --- what it learns -------------------------------------------------------------------------------

GROUP_OF = np.repeat([0, 1], 16)
# What decides how a life ends, by group and stage: noise is all that is left.
TRUTH = np.array(
    [
        [[0.0, 0.9, 0.2], [0.2, 0.6, 0.1], [0.6, 0.3, 0.0], [1.0, 0.0, 0.0]],
        [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.8, 0.1, 0.0], [1.0, 0.0, 0.0]],
    ]
)


def live(state, lives, rng, sound=True):
    """Lives of one window in each stage, whose ends the truth says of each window."""
    learn = jax.jit(lambda *data: meta_critic.learn(GROUP_OF, *data))
    agents = len(GROUP_OF)
    for life in range(lives):
        stage = life % STAGES  # the one whose window decides how this life ends
        x = rng.normal(size=(STAGES, agents, 3))
        decides = np.einsum("af,af->a", x[stage], TRUTH[GROUP_OF, stage])
        for i in range(STAGES):
            share = np.full(agents, (i + 1) / STAGES - 0.01, np.float32)
            outcome = np.where(i == STAGES - 1, decides, 7.0).astype(np.float32)
            over = np.full(agents, i == STAGES - 1)
            state = learn(
                state, x[i].astype(np.float32), outcome, share, over, np.full(agents, sound)
            )
    return state


def test_the_critic_finds_what_decides_how_lives_end():
    """One stage in four decides a life, so a quarter of each truth is what a regression finds."""
    state = live(meta_critic.init(GROUP_OF), 400, np.random.default_rng(0))
    np.testing.assert_allclose(state.coefficients, TRUTH / 4, atol=0.15)


def test_before_lives_have_ended_the_prior_decides():
    state = meta_critic.init(GROUP_OF)
    np.testing.assert_array_equal(state.coefficients, np.array([PRIOR, PRIOR], np.float32))
    np.testing.assert_allclose(meta_critic.regress(state.ended), state.coefficients, atol=1e-6)
    unsound = live(state, 2, np.random.default_rng(0), sound=False)
    np.testing.assert_allclose(unsound.coefficients, state.coefficients, atol=1e-6)
    assert not unsound.count.any() and not unsound.outcome.any()  # new lives have begun


def test_worth_stays_within_bounds():
    ended = meta_critic.init(GROUP_OF).ended
    count = jnp.full_like(ended.count, 1000.0)
    opposed = dataclasses.replace(
        ended,
        count=count,
        xx=ended.xx + 1000 * jnp.eye(3),
        xy=ended.xy + jnp.array([-1000.0, 5000.0, 3000.0]),
    )
    expected = np.broadcast_to([0.0, 2.0, 0.5], (2, STAGES, 3))
    np.testing.assert_allclose(meta_critic.regress(opposed), expected)


# --- in a population ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted(PolicyGradient):
    """A policy gradient with a learned weight."""

    def init_params(self, key):
        return {"weight": jnp.ones(())}

    def targets(self, eta, state, trajectory, online, target):
        targets, state, metrics = super().targets((), state, trajectory, online, target)
        return targets | {"advantage": eta["weight"] * targets["advantage"]}, state, metrics


@pytest.mark.parametrize(
    ("env", "exact"),
    [("chain:length=3", True), pytest.param("bandit", False, marks=pytest.mark.long)],
)
def test_agents_are_judged_by_the_critic_and_the_critic_learns_from_them(env, exact):
    config = discorl.configure_discovery(
        **TINY | {"population": (env,), "objective": "meta_critic"}
    )
    eta = Weighted().init_params(jax.random.key(0))
    population = Population(config, Weighted())
    state = population.init(eta, jax.random.key(0))

    def judged_by(coefficients):
        """The meta-gradient under such coefficients of the critic."""
        agents = jax.tree.map(jnp.copy, state.blocks[0])  # which are used up
        agents = population.groups[0].with_critic(agents, jnp.array(coefficients))
        gradient, _, _ = population.groups[0].meta_step(eta, agents)
        return np.concatenate([x.ravel() for x in jax.tree.leaves(gradient)])

    plain, twice = (judged_by(np.multiply(by, PRIOR)) for by in (1.0, 2.0))
    largest = np.abs(plain).max()
    assert largest > 0
    np.testing.assert_allclose(twice, 2 * plain, rtol=1e-3, atol=1e-6 * largest)
    assert not judged_by(np.zeros_like(PRIOR)).any()
    for _ in range(6):  # in which lives of 30 and 60 steps end
        state, _, by_agent = population.meta_step(state)
    assert state.critic.ended.count.sum() > 2
    (coefficients,) = state.critic.coefficients
    assert not np.allclose(coefficients, PRIOR, atol=1e-4)
    np.testing.assert_array_equal(state.blocks[0].critic, [coefficients, coefficients])
    is_return = by_agent["meta/outcome"] == by_agent["meta/policy_return"]
    assert is_return.tolist() == [exact, exact]
