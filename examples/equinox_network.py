"""Train a network written with Equinox.

A rule says which outputs it needs: `spec.state` once an observation, `spec.action` once an action.
A module that yields all of them works with every rule, hand-designed or discovered.
"""

import argparse
import math

import equinox as eqx
import jax

import discorl


class Agent(eqx.Module):
    """An MLP with one linear head for every output."""

    torso: eqx.nn.MLP
    heads: dict[str, eqx.nn.Linear]
    shapes: dict[str, tuple[int, ...]] = eqx.field(static=True)

    def __init__(self, spec, inputs, key):
        torso_key, *keys = jax.random.split(key, 1 + len(spec.state) + len(spec.action))
        self.shapes = dict(spec.state)
        self.shapes |= {name: (spec.num_actions, *s) for name, s in spec.action.items()}
        self.torso = eqx.nn.MLP(inputs, 128, 128, 2, key=torso_key)
        self.heads = {
            name: eqx.nn.Linear(128, math.prod(shape), key=k)
            for (name, shape), k in zip(self.shapes.items(), keys, strict=True)
        }

    def __call__(self, observation):
        """One observation to a dict of outputs."""
        x = jax.nn.relu(self.torso(observation.ravel()))
        return {name: self.heads[name](x).reshape(shape) for name, shape in self.shapes.items()}


def network(spec, observation):
    """What discorl asks for: a pure init and a pure apply.

    Equinox modules hold functions next to their arrays; discorl trains the arrays.
    """
    inputs = math.prod(observation.shape)
    skeleton = eqx.filter_eval_shape(Agent, spec, inputs, jax.random.key(0))
    _, static = eqx.partition(skeleton, eqx.is_array_like)

    def init(key, observations):
        return eqx.filter(Agent(spec, inputs, key), eqx.is_array)

    def apply(params, observations):
        return jax.vmap(eqx.combine(params, static))(observations)

    return discorl.Network(init, apply)


arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--rule", default="actor_critic", help="name or npz file of a rule")
arguments.add_argument("--updates", type=int, default=500)
options = arguments.parse_args()

result = discorl.train(network=network, rule=options.rule, env="catch", updates=options.updates)
print(f"mean return of the last tenth of the updates: {result.recent_return()[0]:.2f}")
