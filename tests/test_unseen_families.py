"""The families kept for tests, by hand: no agent learns here, their dynamics alone are checked."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_samples import KEY, batched, outcomes, sampled, solve_by_hand

from discorl.envs.families.base import Family
from discorl.envs.families.offers import Offers, OffersParameters, OffersState
from discorl.envs.families.queues import Queues, QueuesParameters, QueuesState

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("family", [Queues(), Offers()], ids=["queues", "offers"])
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_random_play_is_far_from_optimal_in_every_member(family: Family, split: str) -> None:
    reference = jax.vmap(family.reference)(sampled(family, split))
    gaps = np.asarray(reference.optimal - reference.random)
    assert gaps.min() > 0.25 * np.median(gaps)
    assert gaps.min() > 0.15


# --- queues ---------------------------------------------------------------------------------------


def workshop() -> tuple[Queues, QueuesParameters]:
    """A queue for two jobs and one for three; the first action chooses the second queue."""
    parameters = QueuesParameters(
        rooms=jnp.array([2, 3]),
        arrivals=jnp.array([0.2, 0.4]),
        services=jnp.array([0.9, 0.7]),
        costs=jnp.array([0.5, 0.125]),
        meanings=jnp.array([1, 0]),
    )
    return Queues(queues=2, length=4, limit=6), parameters


@pytest.mark.parametrize(
    ("server", "jobs", "action", "expected"),
    [
        # A job of the first queue is finished with probability 0.9; then jobs arrive.
        (0, (2, 0), 1, {(1, 0): 0.432, (1, 1): 0.288, (2, 0): 0.168, (2, 1): 0.112}),
        (1, (0, 1), 0, {(0, 0): 0.336, (0, 1): 0.368, (0, 2): 0.096, (1, 0): 0.084}),
        # Moving takes the step, and there is no room for a third job or a fourth.
        (1, (2, 3), 1, {(2, 3): 1.0}),
        (0, (1, 0), 0, {(1, 0): 0.48, (1, 1): 0.32, (2, 0): 0.12, (2, 1): 0.08}),
        # Nothing to do.
        (0, (0, 3), 1, {(0, 3): 0.8, (1, 3): 0.2}),
    ],
)
def test_jobs_are_finished_and_arrive_as_often_as_said(server, jobs, action, expected) -> None:
    family, parameters = workshop()
    state = QueuesState(jnp.int32(server), jnp.array(jobs), jnp.int32(2))
    after, step = outcomes(family, parameters, state, action)
    found = [np.mean((after.jobs == each).all(axis=1)) for each in np.array(list(expected))]
    np.testing.assert_allclose(found, list(expected.values()), atol=0.035)
    assert (after.server == 1 - action).all()
    costs = 0.5 * after.jobs[:, 0] + 0.125 * after.jobs[:, 1]
    np.testing.assert_allclose(step.reward, -costs, rtol=1e-6)
    assert not step.terminated.any()
    assert not step.truncated.any()
    np.testing.assert_allclose(step.observation[:, :2], after.jobs / 4)
    np.testing.assert_array_equal(step.observation[:, 2:], np.tile([action, 1 - action], (4000, 1)))


def test_a_workshop_begins_anyhow_and_is_truncated() -> None:
    family, parameters = workshop()
    states, seen = batched(lambda key: family.reset(parameters, key))(jax.random.split(KEY, 4000))
    situations = np.concatenate([states.server[:, None], states.jobs], axis=1)
    found, counts = np.unique(situations, axis=0, return_counts=True)
    assert found.tolist() == [list(x) for x in itertools.product(range(2), range(3), range(4))]
    np.testing.assert_allclose(counts / 4000, 1 / 24, atol=0.015)
    np.testing.assert_allclose(seen[:, :2], states.jobs / 4)
    state = QueuesState(jnp.int32(0), jnp.array([1, 1]), jnp.int32(4))
    for over in (False, True):
        state, step = family.step(parameters, state, jnp.int32(0), KEY)
        assert bool(step.truncated) is over


def test_returns_of_a_workshop_agree_with_matrices() -> None:
    family, parameters = workshop()
    states = list(itertools.product(range(2), range(3), range(4)))
    transitions, rewards = np.zeros((24, 2, 24)), np.zeros((24, 2))
    for (index, (server, *jobs)), (action, queue), served, first, second in itertools.product(
        enumerate(states), enumerate((1, 0)), (0, 1), (0, 1), (0, 1)
    ):
        service = (0.9, 0.7)[queue] if server == queue else 0.0
        chance = service if served else 1 - service
        chance *= (0.2 if first else 0.8) * (0.4 if second else 0.6)
        left = [max(0, waiting - served * (i == queue)) for i, waiting in enumerate(jobs)]
        left = [min(2, left[0] + first), min(3, left[1] + second)]
        transitions[index, action, states.index((queue, *left))] += chance
        rewards[index, action] -= chance * (0.5 * left[0] + 0.125 * left[1])
    random, optimal = solve_by_hand(transitions, rewards, 6)
    expected = [random.mean(), optimal.mean()]
    np.testing.assert_allclose(family.reference(parameters), expected, rtol=1e-5)


def test_workshops_differ_in_rooms_and_in_what_actions_mean() -> None:
    members = sampled(Queues(), "held_out")
    assert set(np.unique(members.rooms).tolist()) == {2, 3, 4}
    assert len({tuple(each) for each in members.meanings.tolist()}) == 6


# --- offers ---------------------------------------------------------------------------------------


WAIT, ADVERTISE, ACCEPT = range(3)


def market(third: float = 0.5) -> tuple[Offers, OffersParameters]:
    """Three kinds, of which a draw has one, three and two of nine tickets."""
    parameters = OffersParameters(
        tickets=jnp.array([1, 3, 2]),
        worths=jnp.array([1.0, -0.25, third]),
        cost=jnp.float32(0.125),
        fee=jnp.float32(0.25),
        meanings=jnp.array([1, 2, 0]),
    )
    return Offers(kinds=3, tickets=3, levels=3, limit=5), parameters


def best_of(draws: int, third: float = 0.5) -> list[float]:
    """Probability that no offer or each kind is the best of some draws, by a list of them all."""
    found = [0.0] * 4
    for drawn in itertools.product(range(4), repeat=draws):
        best = max(drawn, key=lambda offer: (0, 1.0, -0.25, third)[offer])
        found[best] += np.prod([(3, 1, 3, 2)[offer] / 9 for offer in drawn])
    return found


@pytest.mark.parametrize(
    ("fame", "action", "fame_after"),
    [(0, WAIT, 0), (1, WAIT, 1), (0, ADVERTISE, 1), (1, ADVERTISE, 2), (2, ADVERTISE, 2)],
)
def test_fame_brings_the_best_of_several_draws(fame, action, fame_after) -> None:
    family, parameters = market()
    state = OffersState(jnp.int32(1), jnp.int32(fame), jnp.int32(1))
    after, step = outcomes(family, parameters, state, action)
    assert (after.fame == fame_after).all()
    found = [np.mean(after.offer == offer) for offer in range(4)]
    np.testing.assert_allclose(found, best_of(fame_after + 1), atol=0.035)
    assert (step.reward == (-0.125 if action == WAIT else -0.25)).all()
    assert not step.terminated.any()
    seen = np.eye(4)[after.offer][:, 1:]
    np.testing.assert_array_equal(step.observation[:, :3], seen)
    shares = np.tile([fame_after / 2, 3 / 5], (4000, 1))
    np.testing.assert_allclose(step.observation[:, 3:], shares, rtol=1e-6)


def test_accepting_pays_the_worth_and_ends_the_episode() -> None:
    family, parameters = market()
    for offer, worth in enumerate((0.0, 1.0, -0.25, 0.5)):
        state = OffersState(jnp.int32(offer), jnp.int32(1), jnp.int32(0))
        _, step = family.step(parameters, state, jnp.int32(ACCEPT), KEY)
        assert (float(step.reward), bool(step.terminated)) == (worth, True)
    for time, over in ((3, False), (4, True)):
        late = OffersState(jnp.int32(1), jnp.int32(0), jnp.int32(time))
        _, step = family.step(parameters, late, jnp.int32(WAIT), KEY)
        assert (bool(step.terminated), bool(step.truncated)) == (over, False)


def test_a_market_begins_without_fame() -> None:
    family, parameters = market()
    states, seen = batched(lambda key: family.reset(parameters, key))(jax.random.split(KEY, 4000))
    found = [np.mean(states.offer == offer) for offer in range(4)]
    np.testing.assert_allclose(found, best_of(1), atol=0.035)
    np.testing.assert_array_equal(seen[:, 3:], np.tile([0, 1], (4000, 1)))


@pytest.mark.parametrize("third", [0.5, 0.0, 1.0])
def test_returns_in_a_market_agree_with_matrices(third: float) -> None:
    """Also if two kinds are worth the same, or one is worth as little as no offer."""
    family, parameters = market(third)
    states = list(itertools.product(range(4), range(3)))
    transitions, rewards = np.zeros((12, 3, 12)), np.zeros((12, 3))
    for index, (offer, fame) in enumerate(states):
        rewards[index] = -0.125, -0.25, (0, 1.0, -0.25, third)[offer]
        for action, after in ((WAIT, fame), (ADVERTISE, min(fame + 1, 2))):
            for coming, chance in enumerate(best_of(after + 1, third)):
                transitions[index, action, states.index((coming, after))] += chance
    values = np.stack(solve_by_hand(transitions, rewards, 5))
    begin = [states.index((offer, 0)) for offer in range(4)]
    expected = values[:, begin] @ best_of(1, third)
    np.testing.assert_allclose(family.reference(parameters), expected, rtol=1e-5)


def test_markets_differ_in_tickets_and_in_the_best_kind() -> None:
    members = sampled(Offers(), "train")
    assert set(np.unique(members.tickets).tolist()) == {1, 2, 3, 4}
    assert set(np.argmax(members.worths, axis=1).tolist()) == set(range(8))
    assert len({tuple(each) for each in members.meanings.tolist()}) == 6


def test_what_is_optimal_differs_between_markets() -> None:
    """To wait or to advertise first, and for how many kinds to stop."""
    family = Offers()
    members = sampled(family, "train")

    def first_choices(parameters):
        choices = family.solve(parameters).action_values[0, :, 0]  # [kinds + 1, A]
        return parameters.meanings[choices.argmax(axis=-1)]

    chosen = np.asarray(batched(first_choices)(members))
    assert 0.2 < np.mean(chosen[:, 0] == 2) < 0.8
    accepted = (chosen[:, 1:] == 0).sum(axis=1)
    assert set(accepted.tolist()) >= {1, 2, 3}
