"""The meta-gradient: against a plain scan, finite differences, and fillers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from discoveries import assert_all_close, assert_same

from discorl.agent.config import OptimiserConfig
from discorl.agent.learner import Learner
from discorl.agent.optimiser import make_optimiser
from discorl.discovery.meta_gradient import MetaGradient, Update
from discorl.discovery.meta_value import MetaValue
from discorl.networks import standard
from discorl.rules import Disco, PolicyGradient, Sizes
from discorl.types import OutputSpec, Trajectory
from discorl.verification.cases import cast

ACTIONS, UPDATES = 2, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaled(PolicyGradient):
    """A policy gradient with a learned weight and step size; it has neither y nor z."""

    name = "scaled"

    def outputs(self, num_actions):
        return OutputSpec(num_actions, state={"preference": (num_actions,), "value": ()})

    def policy(self, outputs):
        return outputs["preference"]

    def init_params(self, key):
        return {"weight": jnp.ones(()), "step_size": jnp.ones(())}

    def init_state(self, lifetime):
        return {"updates": jnp.zeros((), jnp.int32), "lifetime": lifetime}

    def step_size(self, eta, state):
        return jnp.exp(-eta["step_size"] * state["updates"] / state["lifetime"])

    def targets(self, eta, state, trajectory, online, target):
        targets, _, metrics = super().targets((), (), trajectory, online, target)
        targets["advantage"] = eta["weight"] * targets["advantage"]
        return targets, state | {"updates": state["updates"] + 1}, metrics

    def loss(self, outputs, targets, trajectory):
        return super().loss(outputs | {"logits": outputs["preference"]}, targets, trajectory)

    def penalty(self, targets, trajectory, online, target):
        return 0.1 * jnp.mean(targets["advantage"] ** 2)


DISCO = Disco(sizes=Sizes(4, 5, (3, 1), (3, 2), (3,), 4, (3,), (3, 1), (3, 2)), num_bins=5)


def agent(optimizer, mixed_mode, lstm, rule=DISCO):
    """A meta-gradient for a tiny agent."""
    observation = jax.ShapeDtypeStruct((3,), jnp.float64)
    network = standard(
        rule.outputs(ACTIONS),
        observation,
        hidden=(5,),
        action_lstm=3,
        action_hidden=(4,),
        lstm=lstm,
    )
    learner = Learner(rule, network, optimizer, ACTIONS, mixed_mode)
    return MetaGradient(learner, MetaValue(observation, hidden=(4,)))


def experience(rng, *leading, lstm=0):
    """Random trajectories, [*leading, T, B], of another policy than the agent's."""
    shape = (*leading, 3, 2)
    return Trajectory(
        observation=jnp.asarray(rng.normal(size=(*leading, 4, 2, 3))),
        action=jnp.asarray(rng.integers(ACTIONS, size=shape)),
        reward=jnp.asarray(rng.normal(size=shape)),
        terminated=jnp.asarray(rng.random(shape) < 0.2),
        behaviour_logits=jnp.asarray(rng.normal(size=(*shape, ACTIONS))),
        recurrent_state=tuple(
            jnp.asarray(rng.normal(size=(*leading, 1, 2, lstm))) for _ in "hc" if lstm
        ),
    )


def plain_loss(meta_gradient, learner, meta_value, batches, validation):
    """The meta-loss as a function of eta: a scan of updates, and the loss of their result.

    Backward mode differentiates all of it. The meta-value function is given: no gradient flows
    through how it came about.
    """
    agent = dataclasses.replace(meta_gradient.learner, mixed_mode=False)

    def loss(eta):
        def step(state, batch):
            state, _, details = agent.update_in_detail(state, eta, batch)
            penalty = agent.rule.penalty(details.targets, batch, details.online, details.target)
            return state, penalty

        state, penalties = jax.lax.scan(step, learner, batches)
        value, _ = meta_gradient._validation_loss(state.params, meta_value, validation)
        return value + jnp.mean(penalties)

    return loss


def beginning(meta_gradient):
    """A rule, a learner and a meta-value function, in float64."""
    learner, meta_value = meta_gradient.learner, meta_gradient.meta_value

    @jax.jit
    def start(key):
        state = learner.init(key, meta_value.observation, 1)
        state = cast((learner.rule.init_params(key), state, meta_value.init(key)), "float64")
        # The optimiser's own zeros are of the type of the parameters.
        fresh = dataclasses.replace(state[1], optimizer=learner.optimizer.init(state[1].params))
        return state[0], fresh, state[2]

    return start(jax.random.key(1))


def problem(optimizer, mixed_mode=False, lstm=0, rule=DISCO):
    """A tiny agent's window: its meta-gradient, eta, and what the plain loss is made of."""
    rng = np.random.default_rng(0)
    meta_gradient = agent(optimizer, mixed_mode, lstm, rule)
    eta, state, value = beginning(meta_gradient)
    # Away from its small beginnings, so that every part of the rule has a say.
    eta = jax.tree.map(lambda x: x + 0.5 * rng.normal(size=x.shape), eta)
    batches = experience(rng, UPDATES, lstm=lstm)
    validation = experience(rng, lstm=lstm)

    @jax.jit
    def recorded(eta, state, value):
        def step(carry, batch):
            learner, value, _ = meta_gradient.update(*carry, eta, batch)
            return (learner, value), Update(carry[0], batch)

        (learner, value), window = jax.lax.scan(step, (state, value), batches)
        return meta_gradient.differentiate(eta, window, learner, value, validation)[0], value

    gradient, value = recorded(eta, state, value)
    return gradient, eta, plain_loss(meta_gradient, state, value, batches, validation)


@pytest.mark.parametrize("mixed_mode", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_recorded_window_has_the_gradient_of_a_plain_scan(mixed_mode):
    with jax.enable_x64(True):
        optimizer = make_optimiser(OptimiserConfig(learning_rate=0.02))
        gradient, eta, loss = problem(optimizer, mixed_mode)
        expected = jax.jit(jax.grad(loss))(eta)
        assert_all_close(gradient, expected, 1e-9)
        for part in expected.values():
            assert any(np.any(x) for x in jax.tree.leaves(part))
            assert all(x.dtype == jnp.float64 for x in jax.tree.leaves(part))


@pytest.mark.parametrize("mixed_mode", [False, True])
def test_any_rule_with_parameters_has_a_meta_gradient(mixed_mode):
    with jax.enable_x64(True):
        optimizer = make_optimiser(OptimiserConfig(learning_rate=0.02))
        gradient, eta, loss = problem(optimizer, mixed_mode, rule=Scaled())
        expected = jax.jit(jax.grad(loss))(eta)
        assert_all_close(gradient, expected, 1e-9)
        assert all(float(abs(x)) > 1e-6 for x in expected.values())


def test_finite_differences(monkeypatch):
    """With every stop_gradient open, the gradient is that of the loss as it is computed.

    Momentum stands in for Adam, whose second moment has no derivative at zero.
    """
    monkeypatch.setattr(jax.lax, "stop_gradient", lambda x: x)
    with jax.enable_x64(True):
        gradient, eta, loss = problem(optax.chain(optax.ema(0.9), optax.scale(-0.5)))
        loss = jax.jit(loss)
        rng, size = np.random.default_rng(1), 1e-5
        for part in eta:
            direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), eta[part])

            def moved(by, part=part, direction=direction):
                return eta | {part: jax.tree.map(lambda x, d: x + by * d, eta[part], direction)}

            difference = float(loss(moved(size)) - loss(moved(-size))) / (2 * size)
            products = jax.tree.map(lambda g, d: jnp.sum(g * d), gradient[part], direction)
            slope = float(sum(jax.tree.leaves(products)))
            assert difference == pytest.approx(slope, rel=1e-5), part


def with_filler(experience, rng=None):
    """Trajectories of which the second is cut after its first step, and the first at the end.

    The step after a cut is a filler, of which, with an `rng`, all is changed that could be.
    """
    truncated = jnp.zeros(experience.action.shape, bool)
    truncated = truncated.at[..., 0, 1].set(True).at[..., -1, 0].set(True)
    cut = dataclasses.replace(
        experience, truncated=truncated, terminated=experience.terminated & ~truncated
    )
    if rng is None:
        return cut
    place = (..., 1, 1)
    logits = cut.behaviour_logits
    return dataclasses.replace(
        cut,
        action=cut.action.at[place].set(1 - cut.action[place]),
        reward=cut.reward.at[place].add(5.0),
        behaviour_logits=logits.at[..., 1, 1, :].set(rng.normal(size=logits.shape[-1:])),
    )


def test_fillers_have_no_say():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        meta_gradient = agent(make_optimiser(OptimiserConfig(learning_rate=0.02)), False, lstm=0)
        start = beginning(meta_gradient)
        data = experience(rng, 1), experience(rng)
        validation = with_filler(data[1])

        @jax.jit
        def run(eta, learner, value, batches, validation):
            results = meta_gradient(eta, learner, value, batches, validation)
            outputs, _ = meta_gradient.learner.outputs(results[1].params, validation)
            logits = outputs["logits"][:-1]
            estimates, _, _ = meta_gradient.meta_value.estimate(results[2], validation, logits)
            return results, outputs, estimates

        result, outputs, estimates = run(*start, with_filler(data[0]), validation)
        other, _, _ = run(*start, *(with_filler(part, rng) for part in data))
        assert_same(result, other)
        assert any(np.any(x) for x in jax.tree.leaves(result[0]))
        metrics = result[-1]

        def mean_entropy(logits, *left_out):
            p = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            rows = -(p * np.log(p)).sum(axis=-1)
            return np.mean([rows[at] for at in np.ndindex(rows.shape) if at not in left_out])

        filler, after_the_end = (1, 1), (3, 0)
        expected = {
            "entropy": mean_entropy(outputs["logits"][:-1], filler),
            "z_entropy": mean_entropy(outputs["z"], filler),
            "y_entropy": mean_entropy(outputs["y"], filler, after_the_end),
        }
        for name, entropy in expected.items():
            assert float(metrics[f"meta/{name}"]) == pytest.approx(entropy, rel=1e-12), name
        adv = np.delete(estimates.adv.ravel(), 1 * 2 + 1).mean()
        assert float(metrics["meta/adv"]) == pytest.approx(adv, rel=1e-12)
        values = np.delete(estimates.value.ravel(), [1 * 2 + 1, 3 * 2 + 0]).mean()
        assert float(metrics["meta/value"]) == pytest.approx(values, rel=1e-12)
