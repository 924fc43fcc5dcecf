"""Families of noisy outcomes by hand: transition probabilities, and returns by other means."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from family_samples import KEY, outcomes, sampled, solve_by_hand

from discorl.envs.families.base import PlaceState
from discorl.envs.families.gambler import Gambler, GamblerParameters
from discorl.envs.families.hill import Hill, HillParameters, HillState
from discorl.envs.families.inventory import Inventory, InventoryParameters, InventoryState

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- inventory ------------------------------------------------------------------------------------


def shop(surge: float) -> tuple[Inventory, InventoryParameters]:
    """Demand of no unit and of two in turn; the actions order 2, 0 and 1 units."""
    parameters = InventoryParameters(
        demands=jnp.array([0, 2]),
        surge=jnp.float32(surge),
        price=jnp.float32(1.0),
        cost=jnp.float32(0.5),
        holding=jnp.float32(0.125),
        meanings=jnp.array([2, 0, 1]),
    )
    return Inventory(capacity=3, orders=3, seasons=2, periods=4), parameters


def test_goods_arrive_a_step_late_and_are_sold_or_held() -> None:
    family, parameters = shop(0.0)
    state, observation = family.reset(parameters, KEY)
    np.testing.assert_allclose(observation, [0, 0, 0, 1, 1], atol=1e-6)
    stocks, steps = [], []
    for action in (0, 0, 0, 1):  # orders of 2, 2, 2 and 0 units
        state, step = family.step(parameters, state, jnp.int32(action), KEY)
        stocks.append((int(state.stock), int(state.arriving)))
        steps.append(step)
    # Nothing to sell; two arrive and are sold; two arrive and are held; of four, one has no room,
    # two are sold, one is held.
    assert stocks == [(0, 2), (0, 2), (2, 2), (1, 0)]
    rewards = [-1.0, 2 - 1.0, -1.0 - 2 * 0.125, 2 - 0.125]
    assert [float(step.reward) for step in steps] == rewards
    assert [bool(step.terminated) for step in steps] == [False] * 3 + [True]
    assert not any(bool(step.truncated) for step in steps)
    np.testing.assert_allclose(steps[2].observation, [2 / 3, 1, 0, -1, 0.25], atol=1e-6)


def test_a_quarter_of_the_seasons_turns_the_angle_by_a_quarter() -> None:
    family = Inventory()
    state = InventoryState(jnp.int32(6), jnp.int32(1), jnp.int32(5))
    observed = family.step(family.member().parameters, state, jnp.int32(0), KEY)[1].observation
    np.testing.assert_allclose(observed[2:], [0, -1, 1 - 6 / 32], atol=1e-6)


def test_up_to_two_more_customers_come() -> None:
    family, parameters = shop(0.3)
    state = InventoryState(jnp.int32(3), jnp.int32(0), jnp.int32(0))
    after, step = outcomes(family, parameters, state, 1)
    found = [np.mean(after.stock == 3 - extra) for extra in range(3)]
    np.testing.assert_allclose(found, [0.49, 0.42, 0.09], atol=0.035)
    sold = 3 - after.stock
    np.testing.assert_allclose(step.reward, sold - 0.125 * after.stock, rtol=1e-6)


def test_returns_of_a_shop_agree_with_matrices() -> None:
    """The season is part of the state here, and the steps are those of the description."""
    family, parameters = shop(0.3)
    states = list(itertools.product(range(4), range(3), range(2)))
    transitions, rewards = np.zeros((24, 3, 24)), np.zeros((24, 3))
    for (index, (stock, arriving, season)), (action, order), (extra, chance) in itertools.product(
        enumerate(states), enumerate((2, 0, 1)), enumerate((0.49, 0.42, 0.09))
    ):
        supply = min(stock + arriving, 3)
        sold = min(supply, (0, 2)[season] + extra)
        left = supply - sold
        transitions[index, action, states.index((left, order, 1 - season))] += chance
        rewards[index, action] += chance * (sold - 0.5 * order - 0.125 * left)
    random, optimal = solve_by_hand(transitions, rewards, 4)
    np.testing.assert_allclose(family.reference(parameters), [random[0], optimal[0]], rtol=1e-5)


def test_shops_differ_in_demand_and_in_what_actions_mean() -> None:
    family = Inventory()
    members = sampled(family, "train")
    assert set(np.unique(members.demands).tolist()) == set(range(5))
    np.testing.assert_array_equal(np.sort(members.meanings), np.tile(np.arange(5), (200, 1)))
    assert len({tuple(each) for each in members.meanings.tolist()}) > 50


# --- gambler --------------------------------------------------------------------------------------


def casino(purse: int = 3) -> tuple[Gambler, GamblerParameters]:
    """A table for small stakes and one for large ones."""
    parameters = GamblerParameters(
        stakes=jnp.array([1, 4]), chances=jnp.array([0.6, 0.4]), purse=jnp.int32(purse)
    )
    return Gambler(tables=2, target=6, limit=5), parameters


@pytest.mark.parametrize(
    ("capital", "table", "after_win", "after_loss"),
    [(3, 0, 4, 2), (3, 1, 6, 0), (5, 1, 6, 1), (1, 0, 2, 0), (5, 0, 6, 4)],
)
def test_rounds_are_won_as_often_as_said(capital, table, after_win, after_loss) -> None:
    family, parameters = casino()
    state = PlaceState(jnp.int32(capital), jnp.int32(0))
    after, step = outcomes(family, parameters, state, table)
    assert set(np.unique(after.place).tolist()) == {after_win, after_loss}
    won = after.place == after_win
    np.testing.assert_allclose(won.mean(), (0.6, 0.4)[table], atol=0.035)
    np.testing.assert_array_equal(step.reward, won & (after_win == 6))
    ends = np.isin(after.place, (0, 6))
    np.testing.assert_array_equal(step.terminated, ends)
    assert not step.truncated.any()
    expected = [after.place[0] / 6, 4 / 5]
    np.testing.assert_allclose(step.observation[0], expected, rtol=1e-6)


def test_a_gambler_leaves_after_the_last_round() -> None:
    family, parameters = casino()
    state, observation = family.reset(parameters, KEY)
    np.testing.assert_allclose(observation, [0.5, 1])
    for time, over in ((3, False), (4, True)):
        late = PlaceState(state.place, jnp.int32(time))
        assert bool(family.step(parameters, late, jnp.int32(0), KEY)[1].truncated) is over


def test_returns_of_a_gambler_agree_with_matrices() -> None:
    family, _ = casino()
    transitions, rewards = np.zeros((7, 2, 7)), np.zeros((7, 2))
    for capital, (table, (stake, chance)) in itertools.product(
        range(1, 6), enumerate(((1, 0.6), (4, 0.4)))
    ):
        bet = min(stake, capital)
        for after, probability in ((capital + bet, chance), (capital - bet, 1 - chance)):
            if after >= 6:
                rewards[capital, table] += probability
            elif after > 0:
                transitions[capital, table, after] += probability
    random, optimal = solve_by_hand(transitions, rewards, 5)
    for purse in (1, 3, 5):
        reference = family.reference(casino(purse)[1])
        np.testing.assert_allclose(reference, [random[purse], optimal[purse]], rtol=1e-5)


def test_the_gamblers_ruin_in_closed_form() -> None:
    """With one size of stake and all the time, the classic formula holds."""
    parameters = GamblerParameters(
        stakes=jnp.array([1, 1]), chances=jnp.array([0.45, 0.45]), purse=jnp.int32(3)
    )
    ratio = 0.55 / 0.45
    expected = (ratio**3 - 1) / (ratio**6 - 1)
    reference = Gambler(tables=2, target=6, limit=400).reference(parameters)
    np.testing.assert_allclose(reference, [expected, expected], rtol=1e-4)


def test_one_table_is_good_and_purses_are_a_quarter_to_half_of_the_target() -> None:
    members = sampled(Gambler(), "held_out")
    assert ((members.chances >= 0.5).sum(axis=1) == 1).all()
    assert set(np.argmax(members.chances, axis=1).tolist()) == set(range(4))
    assert set(members.purse.tolist()) == set(range(3, 7))
    assert set(np.unique(members.stakes).tolist()) == set(range(1, 5))
    assert math.isclose(np.mean(members.stakes), 2.5, abs_tol=0.25)


# --- hill -----------------------------------------------------------------------------------------


def valley() -> tuple[Hill, HillParameters]:
    """Seven positions with the bottom in the middle; the actions push right, left and not."""
    parameters = HillParameters(
        bottom=jnp.int32(3),
        power=jnp.float32(0.5),
        gravity=jnp.float32(0.8),
        cost=jnp.float32(3.0),
        meanings=jnp.array([2, 0, 1]),
    )
    return Hill(width=7, top_speed=2, limit=12), parameters


SLOPES = (0.8, 0.8, 0.4, 0.0, 0.4, 0.8)  # probability that the slope of `valley` pulls


@pytest.mark.parametrize(
    ("position", "speed", "action", "expected"),
    [
        # The slope pulls left with probability 0.4, the engine pushes with probability 0.5.
        (4, 0, 0, {(3, -1): 0.2, (4, 0): 0.5, (5, 1): 0.3}),
        (4, 0, 1, {(2, -2): 0.2, (3, -1): 0.5, (4, 0): 0.3}),
        (4, 0, 2, {(3, -1): 0.4, (4, 0): 0.6}),
        # Nothing pulls at the bottom, and no push makes the car faster than its top speed.
        (3, -2, 1, {(1, -2): 1.0}),
        # The left end stops it, the right end is the top.
        (1, -2, 2, {(0, 0): 1.0}),
        (0, 0, 1, {(0, 0): 0.6, (1, 1): 0.4}),
        (5, 2, 0, {(6, 1): 0.4, (6, 2): 0.6}),
    ],
)
def test_cars_are_pushed_and_pulled_as_often_as_said(position, speed, action, expected) -> None:
    family, parameters = valley()
    state = HillState(jnp.int32(position), jnp.int32(speed), jnp.int32(3))
    after, step = outcomes(family, parameters, state, action)
    found = [np.mean((after.position == p) & (after.speed == v)) for p, v in expected]
    np.testing.assert_allclose(found, list(expected.values()), atol=0.035)
    assert math.isclose(sum(found), 1, rel_tol=1e-6)
    np.testing.assert_array_equal(step.terminated, after.position == 6)
    assert (step.reward == -0.25).all()
    seen = np.stack([after.position / 3 - 1, after.speed / 2], axis=1)
    np.testing.assert_allclose(step.observation, seen, atol=1e-6)


def test_a_car_begins_at_rest_at_the_bottom_and_runs_out_of_time() -> None:
    family, parameters = valley()
    state, observation = family.reset(parameters, KEY)
    assert (int(state.position), int(state.speed), int(state.time)) == (3, 0, 0)
    np.testing.assert_array_equal(observation, [0, 0])
    for time, over in ((10, False), (11, True)):
        late = HillState(state.position, state.speed, jnp.int32(time))
        assert bool(family.step(parameters, late, jnp.int32(0), KEY)[1].truncated) is over


def test_returns_in_a_valley_agree_with_matrices() -> None:
    family, parameters = valley()
    states = list(itertools.product(range(6), range(-2, 3)))  # the top is left out
    transitions = np.zeros((30, 3, 30))
    for (index, (position, speed)), (action, push), pushed, pulled in itertools.product(
        enumerate(states), enumerate((1, -1, 0)), (0, 1), (0, 1)
    ):
        slope = SLOPES[position]
        pull = int(np.sign(3 - position))
        fast = max(-2, min(2, speed + push * pushed + pull * pulled))
        there = max(0, position + fast)
        if there < 6:
            after = states.index((there, max(0, fast) if there == 0 else fast))
            transitions[index, action, after] += 0.5 * (slope if pulled else 1 - slope)
    random, optimal = solve_by_hand(transitions, np.full((30, 3), -0.25), 12)
    start = states.index((3, 0))
    expected = [random[start], optimal[start]]
    np.testing.assert_allclose(family.reference(parameters), expected, rtol=1e-5)
    assert -3 < random[start] + 0.2 < optimal[start] < -0.5


def test_valleys_are_lowest_in_the_middle_third() -> None:
    for split, bottoms in (("train", {8, 10, 12}), ("held_out", {7, 9, 11, 13})):
        members = sampled(Hill(), split)
        assert set(members.bottom.tolist()) == bottoms
        assert len({tuple(each) for each in members.meanings.tolist()}) == 6


def test_a_picture_shows_the_valley_the_top_and_the_car() -> None:
    family, parameters = valley()
    picture = family.render(parameters, family.reset(parameters, KEY)[0])
    assert picture.dtype == np.uint8
    ground = (picture == 96).all(axis=2)
    # Heights 1, 1, 0, 0, 0, 1, 1; the uppermost of the last column is the top's mark.
    np.testing.assert_array_equal(ground.sum(axis=0), [2, 2, 1, 1, 1, 2, 1])
    assert np.argwhere((picture == 255).all(axis=2)).tolist() == [[2, 3]]
    assert np.argwhere((picture == (80, 200, 120)).all(axis=2)).tolist() == [[2, 6]]
