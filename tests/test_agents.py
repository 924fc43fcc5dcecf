"""One description of an agent: what a learner is assembled from, in training and in discovery."""

import dataclasses

import discoveries
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import discorl
from discorl.agent import frames
from discorl.agent.config import AgentConfig, NetworkConfig, OptimiserConfig
from discorl.agent.optimiser import with_schedule_steps
from discorl.discovery.agents import Agents, updates_within
from discorl.discovery.config import GroupConfig
from discorl.networks import Network, standard
from discorl.rules import PPO, ActorCritic
from discorl.types import UserError, settings

SEEN = jax.ShapeDtypeStruct((3,), jnp.float32)
PLAIN = AgentConfig(network=NetworkConfig(hidden=(4,)), num_envs=2, unroll=5, batch=2)


def linear(outputs, observation, width=7):
    """A network of the user's own: one hidden layer, unlike that of any setting here."""
    return standard(outputs, observation, hidden=(width,))


def learner_of(agent, rule=None, **options):
    return discorl.make_learner(agent, rule or ActorCritic(), 2, SEEN, **options)


# --- the learner ----------------------------------------------------------------------------------


def test_an_agent_has_its_discount_and_its_stack():
    agent = dataclasses.replace(PLAIN, discount=0.5, frame_stack=4)
    learner = learner_of(agent)
    assert learner.rule.discount == 0.5
    state = learner.init(jax.random.key(0), frames.stacked(SEEN, 4), 10)
    assert state.params["torso"]["0"]["w"].shape == (12, 4)


def test_warm_up_and_schedule_count_gradient_steps():
    """PPO makes 3 x 2 gradient steps per update, and an update has 2 x 5 environment steps."""
    optimiser = OptimiserConfig(learning_rate=1.0, schedule="cosine", warmup_steps=20)
    agent = dataclasses.replace(PLAIN, optimiser=optimiser)
    learner = learner_of(agent, PPO(epochs=3, minibatches=2))
    state = learner.init(jax.random.key(0), SEEN, lifetime=10).optimizer
    params, gradient = jnp.ones(()), jnp.ones(())
    scale = discorl.make_optimiser(optimiser, steps=60, warmup=12)
    assert int(optax.tree.get(state, "schedule_steps")) == 60
    ours = learner.optimizer.init(params)
    ours = optax.tree.set(ours, schedule_steps=optax.tree.get(state, "schedule_steps"))
    theirs = scale.init(params)
    for _ in range(20):
        step, ours = learner.optimizer.update(gradient, ours, params)
        expected, theirs = scale.update(gradient, theirs, params)
        np.testing.assert_array_equal(step, expected)


def test_prepared_observations_are_what_the_network_is_made_for():
    learner = learner_of(PLAIN, prepare=lambda x: jnp.concatenate([x, x], axis=-1))
    state = learner.init(jax.random.key(0), SEEN, 1)
    assert state.params["torso"]["0"]["w"].shape == (6, 4)


@pytest.mark.parametrize(("text", "width"), [("linear", 7), ("linear,width=9", 9)])
def test_a_network_by_name(text, width):
    agent = settings.replace(PLAIN, network_factory=f"{__name__}:{text}")
    params = learner_of(agent).init(jax.random.key(0), SEEN, 1).params
    assert params["torso"]["0"]["w"].shape == (3, width)
    # A network that is given in Python comes first.
    params = learner_of(agent, network=lambda *like: linear(*like, width=2))
    assert params.init(jax.random.key(0), SEEN, 1).params["torso"]["0"]["w"].shape == (3, 2)


def not_a_network(outputs, observation):
    return 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linear", "network_factory is 'linear'; expected a function, as package.module:function"),
        (3, "network_factory is 3; expected a text"),
        ("no.such:thing", "network_factory is 'no.such:thing'; expected package.module:function"),
        (f"{__name__}:liner", "did you mean 'linear'"),
        (f"{__name__}:linear,depth=3", "no parameter 'depth'"),
        (f"{__name__}:not_a_network", "made a int; expected a discorl.Network"),
    ],
)
def test_networks_that_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        learner_of(settings.replace(PLAIN, network_factory=text))


def test_the_batch_must_fit_the_minibatches():
    with pytest.raises(UserError, match="batch is 2; expected a multiple of the 3 minibatches"):
        learner_of(PLAIN, PPO(minibatches=3))


# --- agents of a population -----------------------------------------------------------------------


def agents_of(env="bandit", **agent):
    group = GroupConfig(env, agent, agents=1)
    config = dataclasses.replace(discoveries.CONFIG, population=(group,))
    return Agents(config.groups()[0], config, discoveries.RULE), config


def steps_of(optimizer, state, params, gradient, count):
    """Steps that an optimiser makes of the same gradient again and again."""
    steps = []
    for _ in range(count):
        step, state = optimizer.update(gradient, state, params)
        steps.append(np.asarray(step))
    return steps


def test_a_schedule_is_laid_over_each_life():
    agents, config = agents_of(schedule="cosine", warmup_steps=12)  # of two updates
    state = jax.jit(agents.begin)(jax.random.key(0), jnp.int32(0))
    lifetime = updates_within(config.groups()[0].agent, state.budget)
    length = optax.tree.get(state.training.learner.optimizer, "schedule_steps")
    assert int(length) == int(lifetime)
    optimizer = agents.learner.optimizer
    start = with_schedule_steps(optimizer.init(jnp.ones(1)), 4)
    rate = config.agent.optimiser.learning_rate
    # A rising half, then half a cosine, of the constant gradient's normalised steps.
    steps = steps_of(optimizer, start, jnp.ones(1), jnp.ones(1), 5)
    np.testing.assert_allclose(np.ravel(steps), [0, -rate / 2, -rate, -rate / 2, 0], atol=1e-6)


def test_weight_decay_and_clips_reach_agents_of_a_population():
    agents, config = agents_of(weight_decay=0.5, max_abs_update=0.1, max_gradient_norm=1e-3)
    optimizer, rate = agents.learner.optimizer, config.agent.optimiser.learning_rate
    params = jnp.array([2.0])
    (step,) = steps_of(optimizer, optimizer.init(params), params, jnp.ones(1), 1)
    np.testing.assert_allclose(step, [-rate * (0.1 + 0.5 * 2.0)], rtol=1e-6)
    state = optimizer.init(params)
    _, state = optimizer.update(jnp.ones(1), state, params)
    np.testing.assert_allclose(optax.tree.get(state, "mu"), [0.1 * 1e-3], rtol=1e-6)


class Observer:
    """In place of a meta-gradient: agents learn nothing, and rewards are what it hands back."""

    def update(self, learner, meta_value, eta, batch):
        return learner, meta_value, {}

    def differentiate(self, eta, records, learner, meta_value, validation, kept, critic):
        return (records.batch.reward, validation.reward), meta_value, {}


def test_rewards_are_scaled_in_training_and_validation():
    def rewards(**agent):
        agents, _ = agents_of(**agent)
        state = jax.jit(agents.begin)(jax.random.key(0), jnp.int32(0))
        agents.meta_gradient = Observer()
        seen, _, metrics = jax.jit(agents.meta_step)(discoveries.ETA, state)
        return seen, metrics["charts/episodic_return"]

    (seen, earned), (scaled, same) = rewards(), rewards(reward_scale=4.0)
    for plain, large in zip(seen, scaled, strict=True):
        assert np.any(plain)
        np.testing.assert_array_equal(large, 4.0 * plain)
    assert earned == same, "returns are those of the environment"


def test_agents_of_a_population_may_have_a_network_of_the_users_own():
    agents, _ = agents_of(network_factory=f"{__name__}:linear,width=9")
    state = jax.eval_shape(agents.begin, jax.random.key(0), jnp.int32(0))
    assert state.training.learner.params["torso"]["0"]["w"].shape[1] == 9
    assert isinstance(agents.learner.network, Network)
