"""Each family by hand: what its steps do, how episodes begin and end, and how a grid is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_samples import ALL, KEY, MANY, batched, sampled

from discorl.envs.families import board
from discorl.envs.families.bandit import Bandit, BanditParameters
from discorl.envs.families.base import Family, PlaceState
from discorl.envs.families.chain import Chain, ChainParameters
from discorl.envs.families.cliff import Cliff, CliffParameters
from discorl.envs.families.grid import Grid, GridParameters, GridState
from discorl.envs.families.memory import Memory, MemoryParameters
from discorl.envs.families.tabular import Tabular, TabularParameters
from discorl.envs.families.windy_catch import WindyCatch, WindyCatchParameters, WindyCatchState
from discorl.types.specs import Range

pytestmark = pytest.mark.usefixtures("quick_compilation")
STAY, UP, DOWN, LEFT, RIGHT = range(5)
step_once = jax.jit(lambda family, *arguments: family.step(*arguments), static_argnums=0)
begin_episode = jax.jit(lambda family, *arguments: family.reset(*arguments), static_argnums=0)


def play(family: Family, parameters, state, actions: list[int], key=KEY):
    """Steps by hand; returns the states after each step and what each step gave."""
    states, steps = [], []
    for action, step_key in zip(actions, jax.random.split(key, len(actions)), strict=True):
        state, result = step_once(family, parameters, state, jnp.int32(action), step_key)
        states.append(state)
        steps.append(result)
    return states, steps


def rewards(steps) -> list[float]:
    return [float(step.reward) for step in steps]


def test_bandit_by_hand() -> None:
    family = Bandit(contexts=2, arms=2, pulls=2)
    parameters = BanditParameters(jnp.array([[0.1, 0.9], [0.7, -0.5]]), jnp.float32(0))
    begin = PlaceState(jnp.int32(0), jnp.int32(0))
    states, steps = play(family, parameters, begin, [1, 0])
    second = int(states[0].place)
    np.testing.assert_allclose(rewards(steps), [0.9, [0.1, 0.7][second]])
    assert [bool(step.terminated) for step in steps] == [False, True]
    np.testing.assert_array_equal(steps[0].observation, np.eye(2)[second])
    noisy = BanditParameters(parameters.means, jnp.float32(0.5))
    many = batched(lambda key: family.step(noisy, begin, jnp.int32(1), key)[1].reward)
    drawn = many(jax.random.split(KEY, 4000))
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [0.9, 0.5], atol=0.04)


@pytest.mark.parametrize("fatal", [False, True])
def test_chain_by_hand(fatal: bool) -> None:
    family = Chain(length=4, actions=3)
    parameters = ChainParameters(
        correct=jnp.array([2, 0, 1, 1]),
        places=jnp.int32(3),
        goal=jnp.float32(1),
        cost=jnp.float32(0.0625),
        temptations=jnp.array([0.125, 0.25, 0.5, 0]),
        fatal=jnp.array(fatal),
        setback=jnp.int32(1),
    )
    begin, observation = begin_episode(family, parameters, KEY)
    np.testing.assert_array_equal(observation, [1, 0, 0, 0])
    # The third and fourth steps are wrong: what follows them is only for the chain that goes on.
    states, steps = play(family, parameters, begin, [2, 0, 2, 1, 2, 0, 1])
    assert [int(state.place) for state in states] == [1, 2, 1, 0, 1, 2, 3]
    expected = np.array([0, 0, 0.5, 0.25, 0, 0, 1]) - 0.0625
    np.testing.assert_allclose(rewards(steps), expected)
    wrong = [False, False, fatal, fatal, False, False, True]
    assert [bool(step.terminated) for step in steps] == wrong
    np.testing.assert_array_equal(steps[1].observation, [0, 0, 1, 0])


def test_chain_is_truncated_at_its_limit() -> None:
    family = Chain(length=2, actions=2)
    parameters = family.member(0).parameters
    wrong = 1 - int(parameters.correct[0])
    begin, _ = begin_episode(family, parameters, KEY)
    _, steps = play(family, parameters, begin, [wrong] * 8)
    assert [bool(step.truncated) for step in steps] == [False] * 7 + [True]


def test_tabular_by_hand() -> None:
    family = Tabular(states=3, actions=2, branches=2, limit=3)
    # Action 0 leads on to the next state; action 1 leads to state 0 or 1, which is a hazard.
    parameters = TabularParameters(
        successors=jnp.array([[[1, 1], [0, 1]], [[2, 2], [0, 1]], [[0, 0], [0, 1]]]),
        probabilities=jnp.tile(jnp.array([0.25, 0.75]), (3, 2, 1)),
        rewards=jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        hazards=jnp.array([0.0, 0.4, 0.0]),
        appearance=jnp.eye(3),
    )
    states, steps = play(family, parameters, PlaceState(jnp.int32(1), jnp.int32(0)), [0, 0, 1])
    assert [int(state.place) for state in states[:2]] == [2, 0]
    assert rewards(steps) == [3, 5, 2]
    assert [bool(step.truncated) for step in steps] == [False, False, True]
    np.testing.assert_array_equal(steps[0].observation, [0, 0, 1])
    begin = PlaceState(jnp.int32(2), jnp.int32(0))
    many = batched(lambda key: family.step(parameters, begin, jnp.int32(1), key))
    after, step = many(jax.random.split(KEY, 4000))
    np.testing.assert_allclose((after.place == 1).mean(), 0.75, atol=0.03)
    np.testing.assert_allclose(step.terminated.mean(), 0.75 * 0.4, atol=0.03)
    assert not step.terminated[after.place == 0].any()


def grid_by_hand() -> tuple[Grid, GridParameters]:
    """A wall in the middle; +1 above right, which respawns; -0.5 below left, which is terminal."""
    parameters = GridParameters(
        walls=jnp.zeros(9, bool).at[4].set(True),
        squares=jnp.array([2, 6]),
        rewards=jnp.array([1.0, -0.5]),
        terminal=jnp.array([False, True]),
        respawn=jnp.array([1.0, 0.0]),
        meanings=jnp.arange(5),
    )
    return Grid(size=3, objects=2, limit=6), parameters


def test_grid_by_hand() -> None:
    family, parameters = grid_by_hand()
    begin = GridState(jnp.int32(0), jnp.ones(2, bool), jnp.int32(0))
    moves = [UP, RIGHT, DOWN, RIGHT, STAY, LEFT]
    states, steps = play(family, parameters, begin, moves)
    assert [int(state.square) for state in states] == [0, 1, 1, 2, 2, 1]
    assert rewards(steps) == [0, 0, 0, 1, 1, 0]  # respawned at once under the agent
    assert [bool(step.truncated) for step in steps] == [False] * 5 + [True]
    assert not any(bool(step.terminated) for step in steps)
    picture = np.zeros((3, 3, 4), np.float32)
    picture[0, 1, 0] = picture[1, 1, 1] = picture[0, 2, 2] = 1
    picture[2, 0, 3] = 0.5
    np.testing.assert_array_equal(steps[1].observation, picture)
    flat = Grid(size=3, objects=2, flat=True).reset(parameters, KEY)[1]
    np.testing.assert_array_equal(flat, begin_episode(family, parameters, KEY)[1].ravel())

    states, steps = play(family, parameters, begin, [DOWN, DOWN])
    assert rewards(steps) == [0, -0.5]
    assert bool(steps[1].terminated)
    np.testing.assert_array_equal(states[1].present, [True, False])


def test_grid_actions_mean_what_the_member_says() -> None:
    family, parameters = grid_by_hand()
    shuffled = parameters._replace(meanings=jnp.array([4, 0, 1, 2, 3]))
    begin = GridState(jnp.int32(0), jnp.ones(2, bool), jnp.int32(0))
    states, _ = play(family, shuffled, begin, [0, 4])
    assert [int(state.square) for state in states] == [1, 0]
    plain = Grid(permuted=False).member(1).parameters.meanings
    np.testing.assert_array_equal(plain, np.arange(5))
    drawn = sampled(ALL["grid"], "train").meanings
    np.testing.assert_array_equal(np.sort(drawn), np.tile(np.arange(5), (MANY, 1)))
    assert len({tuple(each) for each in np.asarray(drawn)}) > 10


def test_grid_begins_on_any_empty_square() -> None:
    family, parameters = grid_by_hand()
    states, _ = batched(lambda key: family.reset(parameters, key))(jax.random.split(KEY, 3000))
    counts = np.bincount(states.square, minlength=9)
    assert (counts[[2, 4, 6]] == 0).all()
    chi_square = ((counts[[0, 1, 3, 5, 7, 8]] - 500) ** 2 / 500).sum()
    assert chi_square < 20.5  # 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("family", [ALL["grid"], Grid(size=5, objects=7)])
def test_grid_walls_enclose_nothing_and_objects_stand_apart(family: Grid) -> None:
    size, objects = family.size, family.objects
    members = sampled(family, "held_out")
    for walls, squares in zip(np.asarray(members.walls), np.asarray(members.squares), strict=True):
        free = ~walls
        assert free[squares].all()
        assert len(set(squares)) == objects
        reached = {int(np.flatnonzero(free)[0])}
        frontier = list(reached)
        while frontier:
            row, column = divmod(frontier.pop(), size)
            for ahead in (
                (row - 1, column),
                (row + 1, column),
                (row, column - 1),
                (row, column + 1),
            ):
                square = ahead[0] * size + ahead[1]
                if min(ahead) >= 0 and max(ahead) < size and free[square] and square not in reached:
                    reached.add(square)
                    frontier.append(square)
        assert len(reached) == free.sum()
    assert np.asarray(members.walls).any(axis=1).mean() > 0.3


def test_windy_catch_by_hand() -> None:
    family = WindyCatch(rows=4, columns=5)
    calm = WindyCatchParameters(jnp.int32(0), jnp.int32(0), jnp.int32(2), jnp.array(False))
    begin, observation = begin_episode(family, calm, KEY)
    assert int(begin.paddle) == 1
    np.testing.assert_array_equal(observation[3], [0, 1, 1, 0, 0])
    begin = WindyCatchState(jnp.int32(4), jnp.int32(1), jnp.int32(0))
    states, steps = play(family, calm, begin, [2, 2, 2])
    assert [int(state.paddle) for state in states] == [2, 3, 3]
    assert rewards(steps) == [0, 0, 1]
    assert [bool(step.terminated) for step in steps] == [False, False, True]
    picture = np.zeros((4, 5), np.float32)
    picture[2, 4] = picture[3, 3] = picture[3, 4] = 1
    np.testing.assert_array_equal(steps[1].observation, picture)
    mirrored = WindyCatchParameters(calm.wind, calm.slipperiness, calm.width, jnp.array(True))
    states, steps = play(family, mirrored, begin, [2, 2, 1])
    assert [int(state.paddle) for state in states] == [0, 0, 0]
    assert rewards(steps) == [0, 0, -1]


def test_wind_blows_and_paddles_slip_as_often_as_said() -> None:
    family = WindyCatch(rows=4, columns=5)
    begin = WindyCatchState(jnp.int32(2), jnp.int32(2), jnp.int32(0))
    parameters = WindyCatchParameters(jnp.int32(-3), jnp.int32(2), jnp.int32(1), jnp.array(False))
    many = batched(lambda key: family.step(parameters, begin, jnp.int32(2), key)[0])
    states = many(jax.random.split(KEY, 4000))
    np.testing.assert_allclose((states.ball == 1).mean(), 0.6, atol=0.035)
    assert ((states.ball == 1) | (states.ball == 2)).all()
    np.testing.assert_allclose((states.paddle == 2).mean(), 0.2, atol=0.03)


@pytest.mark.parametrize("visible", [False, True])
def test_memory_by_hand(visible: bool) -> None:
    family = Memory(cues=3, visible=visible, delay=Range(1, 4))
    parameters = MemoryParameters(jnp.array([2, 0, 1]), jnp.int32(2))
    state, observation = begin_episode(family, parameters, KEY)
    np.testing.assert_array_equal(observation[:3], np.eye(3)[int(state.place)])
    begin = PlaceState(jnp.int32(1), jnp.int32(0))
    _, steps = play(family, parameters, begin, [2, 2, 0])
    np.testing.assert_array_equal(steps[0].observation, [0, visible, 0, 0])
    np.testing.assert_array_equal(steps[1].observation, [0, visible, 0, 1])
    assert rewards(steps) == [0, 0, 1]
    assert [bool(step.terminated) for step in steps] == [False, False, True]
    _, steps = play(family, parameters, begin, [0, 0, 1])
    assert rewards(steps) == [0, 0, -1]


def test_cliff_by_hand() -> None:
    family = Cliff(rows=3, columns=4)
    parameters = CliffParameters(
        heights=jnp.array([0, 2, 1, 0]),
        gust=jnp.float32(0),
        penalty=jnp.float32(0.5),
        meanings=jnp.arange(5),
    )
    begin, observation = begin_episode(family, parameters, KEY)
    picture = np.zeros((3, 4, 2), np.float32)
    picture[2, 0, 0] = picture[2, 1, 1] = picture[1, 1, 1] = picture[2, 2, 1] = 1
    np.testing.assert_array_equal(observation, picture)
    over = [UP, UP, RIGHT, RIGHT, RIGHT, DOWN, DOWN]
    states, steps = play(family, parameters, begin, over)
    assert [int(state.place) for state in states] == [4, 0, 1, 2, 3, 7, 11]
    np.testing.assert_allclose(rewards(steps), [-0.01] * 6 + [0.99], rtol=1e-6)
    assert [bool(step.terminated) for step in steps] == [False] * 6 + [True]
    np.testing.assert_allclose(family.reference(parameters).optimal, 0.93, rtol=1e-5)
    _, steps = play(family, parameters, begin, [UP, RIGHT])
    np.testing.assert_allclose(rewards(steps), [-0.01, -0.51], rtol=1e-6)
    assert bool(steps[1].terminated)
    stormy = parameters._replace(gust=jnp.float32(1))
    states, _ = play(family, stormy, begin, [UP, RIGHT])
    assert [int(state.place) for state in states] == [8, 8]


def test_grid_is_drawn_where_things_are() -> None:
    family, parameters = grid_by_hand()
    state = GridState(jnp.int32(3), jnp.array([True, False]), jnp.int32(0))
    picture = family.render(parameters, state)
    middles = picture[picture.shape[0] // 6 :: picture.shape[0] // 3]
    middles = middles[:, picture.shape[1] // 6 :: picture.shape[1] // 3].reshape(9, 3)
    expected = {2: board.GOOD, 3: board.AGENT, 4: board.WALL}
    for square in range(9):
        assert tuple(middles[square]) == expected.get(square, board.BACKGROUND)
