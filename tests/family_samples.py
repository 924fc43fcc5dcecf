"""One small family of every kind, and members of each, drawn once for all tests of a file."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discorl.envs.families.bandit import Bandit
from discorl.envs.families.base import Family
from discorl.envs.families.chain import Chain
from discorl.envs.families.cliff import Cliff
from discorl.envs.families.deep_sea import DeepSea
from discorl.envs.families.four_rooms import FourRooms
from discorl.envs.families.gambler import Gambler
from discorl.envs.families.grid import Grid
from discorl.envs.families.hill import Hill
from discorl.envs.families.inventory import Inventory
from discorl.envs.families.key_door import KeyDoor
from discorl.envs.families.memory import Memory
from discorl.envs.families.offers import Offers
from discorl.envs.families.queues import Queues
from discorl.envs.families.river_swim import RiverSwim
from discorl.envs.families.tabular import Tabular
from discorl.envs.families.windy_catch import WindyCatch

KEY = jax.random.key(0)
MANY = 200
# Defaults, or small sizes with the settings switched on that need code of their own.
ALL = {
    "bandit": Bandit(contexts=3, arms=3, pulls=2, distractors=2),
    "chain": Chain(),
    "cliff": Cliff(),
    "deep_sea": DeepSea(size=5, actions=3),
    "four_rooms": FourRooms(size=6, limit=20),
    "gambler": Gambler(tables=3, target=8, limit=16),
    "grid": Grid(size=6, objects=2, limit=12),
    "hill": Hill(),
    "inventory": Inventory(capacity=4, orders=3, seasons=3, periods=10),
    "key_door": KeyDoor(rows=3, columns=4, limit=20),
    "memory": Memory(),
    "offers": Offers(kinds=3, tickets=3, levels=3, limit=8),
    "queues": Queues(queues=2, limit=12),
    "river_swim": RiverSwim(),
    "tabular": Tabular(states=5, actions=2, features=3, limit=10),
    "windy_catch": WindyCatch(),
}
every_family = pytest.mark.parametrize("name", ALL)


@functools.cache
def sampled(family: Family, split: str):
    """Parameters of many members, as numpy arrays: [MANY, ...]."""
    keys = jax.random.split(KEY, MANY)
    return jax.tree.map(np.asarray, jax.vmap(lambda key: family.sample(key, split))(keys))


def batched(function):
    return jax.jit(jax.vmap(function))


def pick(tree, index):
    return jax.tree.map(lambda x: x[index], tree)


def same(one, two) -> bool:
    return all(
        np.array_equal(*pair)
        for pair in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    )


def outcomes(family: Family, parameters, state, action: int, samples: int = 4000):
    """States and steps that follow one action, many times."""
    many = batched(lambda key: family.step(parameters, state, jnp.int32(action), key))
    return many(jax.random.split(KEY, samples))


def solve_by_hand(transitions: np.ndarray, rewards: np.ndarray, horizon: int) -> list[np.ndarray]:
    """Values of random and of optimal play, [S] each, by induction over explicit matrices.

    Args:
        transitions: [S, A, S], whose rows sum to the probability that the episode goes on.
        rewards: [S, A], expected.
        horizon: steps of an episode.
    """
    values = []
    for choose in (np.mean, np.max):
        value = np.zeros(len(rewards))
        for _ in range(horizon):
            value = choose(rewards + transitions @ value, axis=1)
        values.append(value)
    return values
