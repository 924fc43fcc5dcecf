"""Families with sparse rewards by hand: transition probabilities, and returns by other means."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_samples import KEY, batched, pick, sampled

from discorl.envs.families.base import Family
from discorl.envs.families.deep_sea import DeepSea, DeepSeaParameters, DeepSeaState
from discorl.envs.families.river_swim import RiverSwim, RiverSwimParameters, RiverSwimState

pytestmark = pytest.mark.usefixtures("quick_compilation")


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


# --- river swim -----------------------------------------------------------------------------------


def river(mirrored: bool = False) -> tuple[RiverSwim, RiverSwimParameters]:
    """Three places of four, with rapids at the second."""
    parameters = RiverSwimParameters(
        places=jnp.int32(3),
        rapids=jnp.array([False, True, False, False]),
        current=jnp.float32(0.4),
        source=jnp.float32(1.0),
        mouth=jnp.float32(0.125),
        mirrored=jnp.array(mirrored),
    )
    return RiverSwim(length=4), parameters


@pytest.mark.parametrize("mirrored", [False, True])
def test_strokes_upstream_succeed_as_often_as_said(mirrored: bool) -> None:
    family, parameters = river(mirrored)
    upstream, downstream = (0, 1) if mirrored else (1, 0)
    # Of strokes upstream: carried down, in place, up. Failures carry down a quarter of the time.
    expected = {0: (0.0, 0.4, 0.6), 1: (0.175, 0.525, 0.3), 2: (0.1, 0.9, 0.0)}
    for place, probabilities in expected.items():
        state = RiverSwimState(jnp.int32(place), jnp.int32(5))
        after, step = outcomes(family, parameters, state, upstream)
        found = [np.mean(after.place == place + change) for change in (-1, 0, 1)]
        np.testing.assert_allclose(found, probabilities, atol=0.035)
        assert (step.reward == (1.0 if place == 2 else 0.0)).all()
        after, step = outcomes(family, parameters, state, downstream, samples=8)
        assert (after.place == max(place - 1, 0)).all()
        assert (step.reward == (0.125 if place == 0 else 0.0)).all()
        assert not step.terminated.any()


def test_a_river_begins_at_its_mouth_and_is_truncated() -> None:
    family, parameters = river()
    state, observation = family.reset(parameters, KEY)
    assert (int(state.place), family.horizon) == (0, 32)
    np.testing.assert_array_equal(observation, [1, 0, 0, 0])
    for time, over in ((30, False), (31, True)):
        _, step = family.step(parameters, RiverSwimState(jnp.int32(0), jnp.int32(time)), 0, KEY)
        assert bool(step.truncated) is over


@pytest.mark.parametrize("mirrored", [False, True])
def test_returns_of_a_river_agree_with_its_matrices(mirrored: bool) -> None:
    family, parameters = river(mirrored)
    down = np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    up = np.array([[0.4, 0.6, 0], [0.175, 0.525, 0.3], [0, 0.1, 0.9]])
    transitions = np.stack([down, up], axis=1)
    rewards = np.array([[0.125, 0], [0, 0], [0, 1.0]])
    random, optimal = solve_by_hand(transitions, rewards, 32)
    np.testing.assert_allclose(family.reference(parameters), [random[0], optimal[0]], rtol=1e-5)
    plan = family.solve(parameters)
    last = rewards[:, ::-1] if mirrored else rewards
    np.testing.assert_allclose(plan.action_values[-1, :3], last)


# --- deep sea -------------------------------------------------------------------------------------


def sea(slip: float = 0.0) -> tuple[DeepSea, DeepSeaParameters]:
    """Three rows of four. The way to the treasure is action 1, then 0, then 1."""
    parameters = DeepSeaParameters(
        right=jnp.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]),
        depth=jnp.int32(3),
        goal=jnp.float32(1.0),
        cost=jnp.float32(0.125),
        slip=jnp.float32(slip),
    )
    return DeepSea(size=4), parameters


def dive(family: DeepSea, parameters: DeepSeaParameters, actions) -> tuple[list[int], float]:
    """The columns that a sequence of actions passes, and its return."""
    state, observation = family.reset(parameters, KEY)
    columns, total = [], 0.0
    for row, action in enumerate(actions):
        assert int(np.argmax(observation)) == row * family.size + int(state.column)
        state, step = family.step(parameters, state, jnp.int32(action), KEY)
        columns.append(int(state.column))
        total += float(step.reward)
        observation = step.observation
        assert bool(step.terminated) is (row == int(parameters.depth) - 1)
        assert not bool(step.truncated)
    return columns, total


def test_only_moving_right_all_the_way_finds_the_treasure() -> None:
    family, parameters = sea()
    assert dive(family, parameters, [1, 0, 1]) == ([1, 2, 3], 1 - 3 * 0.125)
    assert dive(family, parameters, [1, 0, 0]) == ([1, 2, 1], -2 * 0.125)
    assert dive(family, parameters, [0, 1, 0]) == ([0, 1, 0], -0.125)
    assert dive(family, parameters, [0, 0, 1]) == ([0, 0, 0], 0)
    # Every sequence of actions is equally likely in random play.
    returns = [dive(family, parameters, way)[1] for way in itertools.product((0, 1), repeat=3)]
    expected = [np.mean(returns), np.max(returns)]
    np.testing.assert_allclose(family.reference(parameters), expected, rtol=1e-5)


def test_moves_right_slip_and_moves_left_do_not() -> None:
    family, parameters = sea(slip=0.25)
    state = DeepSeaState(jnp.int32(1), jnp.int32(1))
    after, step = outcomes(family, parameters, state, 0)
    np.testing.assert_allclose(np.mean(after.column == 2), 0.75, atol=0.03)
    assert set(np.unique(after.column).tolist()) == {0, 2}
    assert (step.reward == -0.125).all()  # the attempt costs
    after, step = outcomes(family, parameters, state, 1, samples=8)
    assert (after.column == 0).all()
    assert (step.reward == 0).all()
    # Three attempts, of which the second and third are made only while all goes well.
    optimal = 0.75**3 - 0.125 * (1 + 0.75 + 0.75**2)
    np.testing.assert_allclose(family.reference(parameters).optimal, optimal, rtol=1e-5)


def test_random_play_in_a_sea_of_three_actions() -> None:
    family = DeepSea(size=5, actions=3, cost=0.0, slippery=0.0)
    members = sampled(family, "train")
    reference = jax.vmap(family.reference)(members)
    np.testing.assert_allclose(reference.optimal, members.goal, rtol=1e-5)
    np.testing.assert_allclose(reference.random, members.goal / 3.0**members.depth, rtol=1e-4)
    assert set(members.depth.tolist()) == {3, 4, 5}
    way = np.diagonal(pick(members, 0).right)[: members.depth[0]]
    assert dive(family, pick(members, 0), way)[1] == members.goal[0]
