"""Small environments whose values are known exactly, to test whoever acts or learns.

Each docstring gives the value V of the observations under discount gamma. Observations are vectors,
so any network can read them. All are frozen dataclasses: hashable, and comparable by settings.
"""

import dataclasses

import jax
import jax.numpy as jnp

from discorl.envs.base import Environment, Step
from discorl.types import Array, Key, PyTree


def _vector(size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), jnp.float32)


def _step(
    observation: PyTree,
    reward: Array | float,
    terminated: Array | bool = False,
    truncated: Array | bool = False,
) -> Step:
    return Step(observation, jnp.float32(reward), jnp.asarray(terminated), jnp.asarray(truncated))


@dataclasses.dataclass(frozen=True)
class ConstantReward(Environment[Array]):
    """One step, reward 1. V = 1: does a value learn at all?"""

    num_actions = 2
    observation = _vector(1)

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.int32(0), jnp.ones(1)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        return state, _step(jnp.ones(1), 1.0, terminated=True)


@dataclasses.dataclass(frozen=True)
class ObservationReward(Environment[Array]):
    """One step, reward equal to the observation, -1 or 1. V(o) = o: does a network see?"""

    num_actions = 2
    observation = _vector(1)

    def reset(self, key: Key) -> tuple[Array, Array]:
        sign = jax.random.rademacher(key, (), jnp.float32)
        return sign, sign[None]

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        return state, _step(state[None], state, terminated=True)


@dataclasses.dataclass(frozen=True)
class ActionReward(Environment[Array]):
    """One step, reward 1 for the last action and -1 for others. Best V = 1: does a policy learn?"""

    num_actions = 2
    observation = _vector(1)

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.int32(0), jnp.ones(1)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        reward = jnp.where(action == self.num_actions - 1, 1.0, -1.0)
        return state, _step(jnp.ones(1), reward, terminated=True)


@dataclasses.dataclass(frozen=True)
class DelayedReward(Environment[Array]):
    """Two steps, the second with reward 1; observations [1, 0], [0, 1].

    V = (gamma, 1): is the discount applied once a step?
    """

    num_actions = 2
    observation = _vector(2)

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.int32(0), jax.nn.one_hot(0, 2)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        return state + 1, _step(jax.nn.one_hot(1, 2), state, terminated=state == 1)


@dataclasses.dataclass(frozen=True)
class Truncated(Environment[Array]):
    """Reward 1 forever, but cut after `limit` steps; the observation is the time, one-hot.

    V = 1 / (1 - gamma) at all `limit + 1` observations that exist, the last included. Only who
    bootstraps there from the true last observation finds it.
    """

    limit: int = 4

    num_actions = 2

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return _vector(self.limit + 1)

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.int32(0), jax.nn.one_hot(0, self.limit + 1)

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        time = state + 1
        observation = jax.nn.one_hot(time, self.limit + 1)
        return time, _step(observation, 1.0, truncated=time == self.limit)


@dataclasses.dataclass(frozen=True)
class Mortal(Environment[tuple[Array, Array]]):
    """Reward 1 a step; an episode is mortal or immortal by the toss of a coin, and shows which.

    A mortal one terminates after `lifetime` steps: V(time) = (1 - gamma^(lifetime - time)) /
    (1 - gamma). An immortal one is cut after `limit` steps: V = 1 / (1 - gamma). The observation is
    the time, one-hot, in the first half of the vector for mortals and in the second for immortals.
    """

    lifetime: int = 3
    limit: int = 5

    num_actions = 2

    @property
    def observation(self) -> jax.ShapeDtypeStruct:
        return _vector(2 * (max(self.lifetime, self.limit) + 1))

    def _observe(self, immortal: Array, time: Array) -> Array:
        size = self.observation.shape[0]
        return jax.nn.one_hot(time + immortal * (size // 2), size)

    def reset(self, key: Key) -> tuple[tuple[Array, Array], Array]:
        state = (jax.random.bernoulli(key), jnp.int32(0))
        return state, self._observe(*state)

    def step(
        self, state: tuple[Array, Array], action: Array, key: Key
    ) -> tuple[tuple[Array, Array], Step]:
        immortal, time = state[0], state[1] + 1
        return (immortal, time), _step(
            self._observe(immortal, time),
            1.0,
            terminated=~immortal & (time == self.lifetime),
            truncated=immortal & (time == self.limit),
        )


@dataclasses.dataclass(frozen=True)
class Obedient(Environment[dict[str, Array]]):
    """Ends as it is told: action 0 goes on, 1 terminates, 2 truncates, 3 says both at once.

    The observation is a dictionary of mixed dtypes: `episode`, a random name drawn at the reset,
    `time`, the steps since, and `luck`, random bits drawn at the latest step. The reward of a step
    is 1 + time / 8. The state equals the observation, so anyone can follow along by hand.
    """

    num_actions = 4
    observation = {  # noqa: RUF012, never written to
        "episode": jax.ShapeDtypeStruct((2,), jnp.uint32),
        "time": jax.ShapeDtypeStruct((), jnp.uint8),
        "luck": jax.ShapeDtypeStruct((), jnp.uint32),
    }

    def reset(self, key: Key) -> tuple[dict[str, Array], dict[str, Array]]:
        state = {
            "episode": jax.random.bits(key, (2,)),
            "time": jnp.uint8(0),
            "luck": jnp.uint32(0),
        }
        return state, state

    def step(
        self, state: dict[str, Array], action: Array, key: Key
    ) -> tuple[dict[str, Array], Step]:
        following = {
            "episode": state["episode"],
            "time": state["time"] + jnp.uint8(1),
            "luck": jax.random.bits(key),
        }
        return following, _step(
            following,
            1 + state["time"] / 8,
            terminated=(action == 1) | (action == 3),
            truncated=(action == 2) | (action == 3),
        )


@dataclasses.dataclass(frozen=True)
class Forbidden(Environment[Array]):
    """Three steps whose best action is illegal: 3 always, 2 at every other step.

    Actions pay 0, 1, 2 and 10, and an illegal one NaN. Action 2 is illegal at step 1, and action 0
    is the only other choice than 1 there. The best return is 2 + 1 + 2 = 5, and that of random
    legal play 1 + 0.5 + 1 = 2.5. The last step terminates the episode or, with `cut`, truncates it;
    nothing is legal afterwards. The observation is the time, one-hot.
    """

    cut: bool = False

    num_actions = 4
    observation = _vector(4)

    def reset(self, key: Key) -> tuple[Array, Array]:
        return jnp.int32(0), jax.nn.one_hot(0, 4)

    def action_mask(self, state: Array) -> Array:
        table = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
        return jnp.array(table, bool)[jnp.minimum(state, 3)]

    def step(self, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
        legal = self.action_mask(state) | (state >= 3)
        reward = jnp.where(legal, jnp.array([0.0, 1, 2, 10]), jnp.nan)[action]
        time = state + 1
        over = time == 3
        return time, _step(jax.nn.one_hot(time, 4), reward, over & (not self.cut), over & self.cut)
