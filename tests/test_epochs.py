"""Several passes of the learner over a batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import ACTIONS, OBSERVATION, fresh, network_for, random_trajectory

from discorl.agent.config import OptimiserConfig
from discorl.agent.learner import Learner, LearnerState
from discorl.agent.optimiser import make_optimiser
from discorl.networks import Network
from discorl.rules import PPO, Rule
from discorl.types import OutputSpec

pytestmark = pytest.mark.usefixtures("float64")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumOfRewards(Rule):
    """The gradient tells which trajectories it was made from: the mean of their rewards."""

    def outputs(self, num_actions):
        return OutputSpec(num_actions, state={"logits": (num_actions,)})

    def targets(self, eta, state, trajectory, online, target):
        return {"reward": trajectory.reward}, state, {}

    def loss(self, outputs, targets, trajectory):
        return {"sum": outputs["logits"][:-1, ..., 0] * targets["reward"]}


def recorder(length):
    """An optimiser that moves nothing and notes all gradients."""

    def init(params):
        return jnp.zeros((), jnp.int32), jnp.zeros((length, ACTIONS))

    def update(gradients, state, params=None):
        count, seen = state
        zeros = jnp.zeros_like(gradients)
        return zeros, (count + 1, seen.at[count].set(gradients))

    return optax.GradientTransformation(init, update)


def test_every_trajectory_is_seen_once_in_every_epoch():
    epochs, minibatches, batch = 5, 3, 12
    rule = SumOfRewards(epochs=epochs, minibatches=minibatches)
    network = Network(
        lambda key, observation: jnp.zeros(ACTIONS),
        lambda params, observation: {"logits": params + jnp.zeros((len(observation), 1))},
    )
    learner = Learner(rule, network, recorder(epochs * minibatches), ACTIONS)
    state = learner.init(jax.random.key(0), OBSERVATION, 1)
    trajectory = random_trajectory(0, 2, batch)
    bits = 2.0 ** np.arange(batch)
    trajectory = dataclasses.replace(
        trajectory, reward=jnp.broadcast_to(bits, (2, batch)), truncated=None
    )
    update = jax.jit(learner.update)
    orders = []
    for _ in range(2):
        state, _ = update(
            dataclasses.replace(state, optimizer=learner.optimizer.init(None)), (), trajectory
        )
        count, gradients = state.optimizer
        assert int(count) == epochs * minibatches
        size = batch // minibatches
        sums = np.round(np.asarray(gradients[:, 0]) * size).astype(int).reshape(epochs, minibatches)
        orders.append(sums)
        for epoch in sums:
            seen = [[b for b in range(batch) if number >> b & 1] for number in epoch]
            assert [len(part) for part in seen] == [size] * minibatches
            assert sorted(b for part in seen for b in part) == list(range(batch))
    # Every epoch of every update has an order of its own.
    assert len({tuple(epoch) for epochs_ in orders for epoch in epochs_}) == 2 * epochs


def test_ppo_makes_as_many_gradient_steps_as_it_says():
    rule = PPO(epochs=3, minibatches=2)
    learner = Learner(rule, network_for(rule), make_optimiser(OptimiserConfig()), ACTIONS)
    state = fresh(learner)
    after, metrics = jax.jit(learner.update)(state, (), random_trajectory(0, 3, 4))
    assert int(optax.tree.get(after.optimizer, "steps")) == 6
    assert int(after.updates) == 1
    assert all(np.isfinite(value) for value in metrics.values())
    assert isinstance(after, LearnerState)
