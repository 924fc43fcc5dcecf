"""Train an agent on an environment of your own, written in JAX."""

import argparse
import dataclasses

import jax
import jax.numpy as jnp

import discorl


@dataclasses.dataclass(frozen=True)
class Corridor(discorl.Environment):
    """Walk to the right end of a corridor; every step costs a little, and time is limited.

    The state is the position and the time, both unbatched: discorl batches and resets.
    """

    length: int = 6
    limit: int = 20

    num_actions = 2  # left, right

    @property
    def observation(self):
        """The position, one-hot."""
        return jax.ShapeDtypeStruct((self.length,), jnp.float32)

    def reset(self, key):
        """Starts somewhere in the left half."""
        position = jax.random.randint(key, (), 0, self.length // 2)
        return (position, jnp.int32(0)), jax.nn.one_hot(position, self.length)

    def step(self, state, action, key):
        """Takes one step; running out of time is a truncation, not a termination."""
        position, time = state
        position = jnp.clip(position + 2 * action - 1, 0, self.length - 1)
        arrived = position == self.length - 1
        return (position, time + 1), discorl.Step(
            observation=jax.nn.one_hot(position, self.length),
            reward=jnp.where(arrived, 1.0, -0.02),
            terminated=arrived,
            truncated=time + 1 == self.limit,
        )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rule", default="actor_critic", help="name or npz file of a rule")
    arguments.add_argument("--updates", type=int, default=200)
    options = arguments.parse_args()

    result = discorl.train(
        environment=Corridor(),
        env="corridor",  # a name for messages and titles
        rule=options.rule,
        updates=options.updates,
        hidden=(64,),
    )
    recent = result.recent_return()[0]
    print(f"mean return of the last tenth of the updates: {recent:.2f} (at best about 0.92)")
