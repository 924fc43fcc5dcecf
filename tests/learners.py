"""Learners so small that their numbers can be followed, in float64, and trajectories for them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from discorl.networks import standard
from discorl.rules import Sizes
from discorl.types import Trajectory
from discorl.verification.cases import cast

# Of a Disco rule that compiles quickly.
TINY_SIZES = Sizes(
    prediction=4,
    trajectory_lstm=5,
    embedding_net=(3, 1),
    policy_net=(3, 2),
    pi_hat_blocks=(3,),
    meta_lstm=3,
    meta_input=(3,),
    meta_embedding_net=(3, 1),
    meta_policy_net=(3, 2),
)

ACTIONS = 3
OBSERVATION = jax.ShapeDtypeStruct((2,), jnp.float64)


def network_for(rule):
    spec = rule.outputs(ACTIONS)
    return standard(spec, OBSERVATION, hidden=(4,), action_lstm=3, action_hidden=(4,))


def fresh(learner, seed=0):
    """A state in float64 whose target network differs from the parameters."""
    with jax.enable_x64(False):
        state = learner.init(jax.random.key(seed), jax.ShapeDtypeStruct((2,), jnp.float32), 1)
    state = dataclasses.replace(
        state,
        key=jax.random.key(1),
        **{
            name: cast(getattr(state, name), "float64")
            for name in ("params", "target_params", "optimizer", "rule")
        },
    )
    # Larger than at the start of a life: heads that are nearly zero would hide mistakes.
    params = jax.tree.map(
        lambda p: 3 * p + 0.1 * jnp.cos(jnp.arange(p.size)).reshape(p.shape), state.params
    )
    target = None if state.target_params is None else jax.tree.map(lambda p: p + 0.2, params)
    rule = state.rule
    if hasattr(rule, "meta_rnn"):
        # At the start of a life the meta-RNN is zero, and with it all that the trajectory says.
        meta_rnn = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size) + 1.0), rule.meta_rnn)
        rule = dataclasses.replace(rule, meta_rnn=meta_rnn)
    return dataclasses.replace(state, params=params, target_params=target, rule=rule)


def random_trajectory(seed, steps, batch):
    rng = np.random.default_rng(seed)
    return Trajectory(
        observation=jnp.asarray(rng.normal(size=(steps + 1, batch, 2))),
        action=jnp.asarray(rng.integers(ACTIONS, size=(steps, batch))),
        reward=jnp.asarray(rng.normal(size=(steps, batch))),
        terminated=jnp.asarray(rng.random((steps, batch)) < 0.2),
        behaviour_logits=jnp.asarray(rng.normal(size=(steps, batch, ACTIONS))),
        truncated=jnp.zeros((steps, batch), bool),
        mask=jnp.ones((steps, batch)),
    )
