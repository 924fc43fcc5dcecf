"""Families with sparse rewards by hand: transition probabilities, and returns by other means."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_samples import KEY, outcomes, pick, sampled, solve_by_hand

from discorl.envs.families.base import Family, PlaceState
from discorl.envs.families.deep_sea import DeepSea, DeepSeaParameters
from discorl.envs.families.four_rooms import (
    FourRooms,
    FourRoomsParameters,
)
from discorl.envs.families.key_door import KeyDoor, KeyDoorParameters, KeyDoorState
from discorl.envs.families.river_swim import RiverSwim, RiverSwimParameters

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
        state = PlaceState(jnp.int32(place), jnp.int32(5))
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
        _, step = family.step(parameters, PlaceState(jnp.int32(0), jnp.int32(time)), 0, KEY)
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
        assert int(np.argmax(observation)) == row * family.size + int(state.place)
        state, step = family.step(parameters, state, jnp.int32(action), KEY)
        columns.append(int(state.place))
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
    state = PlaceState(jnp.int32(1), jnp.int32(1))
    after, step = outcomes(family, parameters, state, 0)
    np.testing.assert_allclose(np.mean(after.place == 2), 0.75, atol=0.03)
    assert set(np.unique(after.place).tolist()) == {0, 2}
    assert (step.reward == -0.125).all()  # the attempt costs
    after, step = outcomes(family, parameters, state, 1, samples=8)
    assert (after.place == 0).all()
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


# --- key and door ---------------------------------------------------------------------------------


def rooms_by_hand() -> tuple[KeyDoor, KeyDoorParameters]:
    """Start s, key k, door d and goal g on three rows: `s#.`, `.d.` and `k#g`."""
    parameters = KeyDoorParameters(
        walls=jnp.zeros(9, bool).at[jnp.array([1, 7])].set(True),
        start=jnp.int32(0),
        key=jnp.int32(6),
        door=jnp.int32(4),
        goal=jnp.int32(8),
        reward=jnp.float32(1.0),
        hint=jnp.float32(0.125),
        meanings=jnp.arange(5),
    )
    return KeyDoor(rows=3, columns=3, limit=8), parameters


def walk(family: Family, parameters, moves: str):
    """States and steps of moves given by their initials, from the start."""
    state, _ = family.reset(parameters, KEY)
    states, steps = [], []
    for move in moves:
        action = jnp.int32("SUDLR".index(move))
        state, step = family.step(parameters, state, action, KEY)
        states.append(state)
        steps.append(step)
    return states, steps


def test_the_door_opens_to_those_who_hold_the_key() -> None:
    family, parameters = rooms_by_hand()
    states, steps = walk(family, parameters, "RDRDURRD")
    assert [int(state.square) for state in states] == [0, 3, 3, 6, 3, 4, 5, 8]
    assert [bool(state.has_key) for state in states] == [False] * 3 + [True] * 5
    assert [float(step.reward) for step in steps] == [0, 0, 0, 0.125, 0, 0, 0, 1]
    assert [bool(step.terminated) for step in steps] == [False] * 7 + [True]
    assert bool(steps[-1].truncated)
    np.testing.assert_array_equal(np.flatnonzero(steps[1].observation), [3, 9 + 6])
    np.testing.assert_array_equal(np.flatnonzero(steps[4].observation), [3])
    # There is no second key.
    again = KeyDoorState(jnp.int32(3), jnp.array(True), jnp.int32(0))
    assert float(family.step(parameters, again, jnp.int32(2), KEY)[1].reward) == 0


def test_returns_with_key_and_door_agree_with_an_enumeration() -> None:
    """All states are listed by following all moves, so nothing of the table is used."""
    family, parameters = rooms_by_hand()
    index: dict[tuple[int, bool], int] = {}
    table: dict[tuple[int, bool], list[tuple[tuple[int, bool] | None, float]]] = {}
    frontier = [(0, False)]
    ahead = {"S": (0, 0), "U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
    while frontier:
        square, has_key = here = frontier.pop()
        if here in index:
            continue
        index[here], table[here] = len(index), []
        for down, right in ahead.values():
            row, column = square // 3 + down, square % 3 + right
            entered = 3 * row + column if 0 <= row < 3 and 0 <= column < 3 else square
            if entered in (1, 7) or (entered == 4 and not has_key):
                entered = square
            reward = 0.125 * (entered == 6 and not has_key) + 1.0 * (entered == 8)
            after = None if entered == 8 else (entered, has_key or entered == 6)
            table[here].append((after, reward))
            frontier += [after] if after else []
    transitions = np.zeros((len(index), 5, len(index)))
    for here, moves in table.items():
        for action, (after, _) in enumerate(moves):
            if after:
                transitions[index[here], action, index[after]] = 1
    rewards = np.array([[reward for _, reward in table[here]] for here in index])
    assert len(index) == 3 + 5  # squares without the key, and with it, of which one is the door
    random, optimal = solve_by_hand(transitions, rewards, 8)
    np.testing.assert_allclose(family.reference(parameters), [random[0], optimal[0]], rtol=1e-5)
    assert optimal[0] == 1.125
    # The way takes six steps.
    for limit, expected in ((5, 0.125), (6, 1.125)):
        shorter = KeyDoor(rows=3, columns=3, limit=limit)
        np.testing.assert_allclose(shorter.reference(parameters).optimal, expected)


def test_rooms_are_drawn_so_that_the_goal_can_be_reached() -> None:
    family = KeyDoor()
    members = sampled(family, "train")
    column = lambda square: square % family.columns  # noqa: E731
    for thing in (members.start, members.key):
        assert (column(thing) < column(members.door)).all()
    assert (column(members.goal) > column(members.door)).all()
    assert (members.start != members.key).all()
    assert (members.walls.sum(axis=1) == family.rows - 1).all()
    assert 0.35 < np.mean(members.hint > 0) < 0.65
    optimal = jax.vmap(family.reference)(members).optimal
    np.testing.assert_allclose(optimal, members.reward + members.hint, rtol=1e-5)


# --- four rooms -----------------------------------------------------------------------------------


def floor_plan(slip: float) -> tuple[FourRooms, FourRoomsParameters]:
    """Rooms of two by two: doors at the top, at the bottom, on the left and on the right."""
    parameters = FourRoomsParameters(
        doors=jnp.array([2, 22, 10, 14]),
        start=jnp.int32(0),
        goal=jnp.int32(24),
        reward=jnp.float32(1.0),
        slip=jnp.float32(slip),
        meanings=jnp.arange(1, 5),
    )
    return FourRooms(size=5, limit=40), parameters


PLAN = ("..d..", "..#..", "d###d", "..#..", "..d..")


def test_walls_of_the_four_rooms_stop_and_doors_do_not() -> None:
    family, parameters = floor_plan(0.0)
    state, observation = family.reset(parameters, KEY)
    np.testing.assert_array_equal(np.flatnonzero(observation), [0])
    squares, steps = [], []
    for direction in "ULRDRURRRDDDD":
        action = jnp.int32("UDLR".index(direction))
        state, step = family.step(parameters, state, action, KEY)
        squares.append(int(state.place))
        steps.append(step)
    assert squares == [0, 0, 1, 6, 6, 1, 2, 3, 4, 9, 14, 19, 24]
    assert [float(step.reward) for step in steps] == [0] * 12 + [1]
    assert [bool(step.terminated) for step in steps] == [False] * 12 + [True]
    late = PlaceState(jnp.int32(0), jnp.int32(39))
    assert bool(family.step(parameters, late, jnp.int32(0), KEY)[1].truncated)


@pytest.mark.parametrize("slip", [0.0, 0.4])
def test_slips_go_in_any_direction_alike(slip: float) -> None:
    family, parameters = floor_plan(slip)
    # From the square below right of the corner, up and left are free, down and right are walls.
    state = PlaceState(jnp.int32(6), jnp.int32(0))
    after, _ = outcomes(family, parameters, state, 0)
    found = [np.mean(after.place == square) for square in (1, 5, 6)]
    np.testing.assert_allclose(found, [1 - 0.75 * slip, slip / 4, slip / 2], atol=0.035)


def test_returns_in_four_rooms_agree_with_matrices() -> None:
    family, parameters = floor_plan(0.4)
    step_to = np.zeros((25, 4, 25))
    for square, (action, (down, right)) in itertools.product(
        range(25), enumerate(((-1, 0), (1, 0), (0, -1), (0, 1)))
    ):
        row, column = square // 5 + down, square % 5 + right
        inside = 0 <= row < 5 and 0 <= column < 5 and PLAN[row][column] != "#"
        step_to[square, action, 5 * row + column if inside else square] = 1
    transitions = 0.6 * step_to + 0.4 * step_to.mean(axis=1, keepdims=True)
    rewards = transitions[:, :, 24].copy()
    transitions[:, :, 24] = 0
    random, optimal = solve_by_hand(transitions, rewards, 40)
    np.testing.assert_allclose(family.reference(parameters), [random[0], optimal[0]], rtol=1e-5)


def test_floor_plans_have_a_door_in_each_wall_and_the_goal_in_another_room() -> None:
    family = FourRooms(size=6)
    members = sampled(family, "held_out")
    rows, columns = members.doors // 6, members.doors % 6
    assert (columns[:, :2] == 3).all()
    assert (rows[:, 2:] == 3).all()
    for along, walls in ((rows[:, 0], 0), (columns[:, 2], 0), (rows[:, 1], 4), (columns[:, 3], 4)):
        assert set(along.tolist()) == set(range(walls, walls + (3 if walls == 0 else 2)))
    rooms = [(thing // 6 > 3) * 2 + (thing % 6 > 3) for thing in (members.start, members.goal)]
    assert (rooms[0] != rooms[1]).all()
    for thing in (members.start, members.goal):
        assert (thing // 6 != 3).all()
        assert (thing % 6 != 3).all()
    np.testing.assert_array_equal(np.sort(members.meanings), np.tile([1, 2, 3, 4], (200, 1)))
