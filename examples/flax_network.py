"""Train a network written with Flax.

A rule says which outputs it needs: `spec.state` once an observation, `spec.action` once an action.
A module that yields all of them works with every rule, hand-designed or discovered.
"""

import argparse
import math

from flax import linen as nn

import discorl


class Agent(nn.Module):
    """An MLP with one linear head for every output."""

    spec: discorl.OutputSpec

    @nn.compact
    def __call__(self, observation):
        """Observations [N, ...] to a dict of outputs [N, *shape] and [N, A, *shape]."""
        x = observation.reshape(observation.shape[0], -1)
        x = nn.relu(nn.Dense(128)(x))
        x = nn.relu(nn.Dense(128)(x))
        shapes = dict(self.spec.state)
        shapes |= {name: (self.spec.num_actions, *s) for name, s in self.spec.action.items()}
        small = nn.initializers.normal(1e-2)
        return {
            name: nn.Dense(math.prod(shape), kernel_init=small, name=name)(x).reshape(-1, *shape)
            for name, shape in shapes.items()
        }


def network(spec, observation):
    """What discorl asks for: a pure init and a pure apply."""
    module = Agent(spec)
    return discorl.Network(init=module.init, apply=module.apply)


arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--rule", default="actor_critic", help="name or npz file of a rule")
arguments.add_argument("--updates", type=int, default=500)
options = arguments.parse_args()

result = discorl.train(network=network, rule=options.rule, env="catch", updates=options.updates)
print(f"mean return of the last tenth of the updates: {result.recent_return()[0]:.2f}")
