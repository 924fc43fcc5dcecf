"""The members that families draw: seeds, splits, ranges, and what play in them returns."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_samples import ALL, MANY, every_family, pick, same, sampled
from family_tables import RECORDED, identity, is_held_out, spans, varied

from discorl.envs.families.bandit import Bandit
from discorl.envs.families.base import Family
from discorl.envs.families.chain import Chain
from discorl.envs.families.draws import with_parity
from discorl.envs.families.grid import Grid, GridParameters
from discorl.envs.families.memory import Memory
from discorl.envs.families.windy_catch import WindyCatch
from discorl.types.specs import Range

pytestmark = pytest.mark.usefixtures("quick_compilation")


# --- seeds and splits -----------------------------------------------------------------------------


@every_family
def test_a_seed_selects_a_member(name: str) -> None:
    family = ALL[name]
    first = family.member(3, "held_out").parameters
    assert same(first, family.member(3, "held_out").parameters)
    others = [family.member(seed, "held_out").parameters for seed in range(4, 10)]
    assert not all(same(first, other) for other in others)
    # What a key draws in the two splits has nothing in common but the family.
    drawn = {split: sampled(family, split) for split in ("train", "held_out")}
    for one, two in zip(*map(jax.tree.leaves, drawn.values()), strict=True):
        varies = not (np.asarray(one) == np.asarray(one)[0]).all()
        assert not varies or not np.array_equal(one, two)


@every_family
def test_members_run_together_as_they_do_alone(name: str) -> None:
    family = ALL[name]
    members = pick(sampled(family, "train"), slice(3))
    keys = jax.random.split(jax.random.key(5), 3)

    def live(parameters, key):
        environment = family.environment(parameters)
        reset_key, step_key = jax.random.split(key)
        state, observation = environment.reset(reset_key)
        return observation, environment.step(state, jnp.int32(1), step_key)

    together = jax.jit(jax.vmap(live))(members, keys)
    alone = jax.jit(live)(pick(members, 2), keys[2])
    for one, two in zip(jax.tree.leaves(pick(together, 2)), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-6)


def check_split(family: Family, members, split: str) -> None:
    found = {is_held_out(family, pick(members, i)) for i in range(MANY)}
    assert found == {split == "held_out"}


@every_family
def test_no_task_is_in_both_splits(name: str) -> None:
    family = ALL[name]
    tasks = {}
    for split in ("train", "held_out"):
        members = sampled(family, split)
        check_split(family, members, split)
        tasks[split] = {identity(family, pick(members, i)) for i in range(MANY)}
        assert len(tasks[split]) >= 3  # the six permutations of three cues are the least
    assert not tasks["train"] & tasks["held_out"]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_with_parity_stays_in_range(size: int) -> None:
    for number, wanted in itertools.product(range(size), (-1, 0, 1, 2)):
        result = int(with_parity(jnp.int32(number), size, jnp.int32(wanted)))
        assert 0 <= result < size
        assert result % 2 == wanted % 2
        assert result == number or number % 2 != wanted % 2


# --- ranges ---------------------------------------------------------------------------------------


@every_family
def test_members_are_drawn_from_the_ranges(name: str) -> None:
    for split in ("train", "held_out"):
        for drawn, least, most in spans(name, sampled(varied(name), split)):
            slack = 0.05 * (most - least) + 1e-6
            assert least - 1e-6 <= drawn.min() <= least + slack, drawn.min()
            assert most - slack <= drawn.max() <= most + 1e-6, drawn.max()


def test_wind_and_slip_tell_the_splits_apart_where_width_cannot() -> None:
    """In turn, the width, the grip and the wind alone are left to differ."""
    calm, firm, narrow = Range(0.0, 0.0), Range(0.0, 0.0), Range(1, 1)
    for settings in (
        {"wind": calm, "slip": firm},
        {"wind": calm, "width": narrow},
        {"slip": firm, "width": narrow},
        {"wind": Range(0.4, 0.6), "slip": firm, "width": narrow},
    ):
        family = WindyCatch(rows=3, columns=4, **settings)
        for split in ("train", "held_out"):
            members = sampled(family, split)
            check_split(family, members, split)
            assert np.abs(members.wind).min() >= family._winds.low
            assert np.abs(members.wind).max() <= family._winds.high
            assert members.slipperiness.max() <= family._slips.high
            assert (members.width >= family.width.low).all()
            assert (members.width <= family.width.high).all()
    assert set(members.wind.tolist()) == {-2, 2}  # of the last, held out; 3 is for train members


def test_wind_that_gives_way_blows_to_either_side_alike() -> None:
    family = WindyCatch(rows=3, columns=4, wind=(0.0, 0.2), slip=0.0, width=1)
    assert (family.wind, family.width) == (Range(0.0, 0.2), Range(1, 1))  # as pairs and numbers
    keys = jax.random.split(jax.random.key(0), 2000)
    winds = jax.vmap(lambda key: family.sample(key, "train").wind)(keys)
    assert set(np.unique(winds).tolist()) == {-1, 1}  # their sum with the width is even
    assert abs(float(np.mean(winds))) < 4.5 / 2000**0.5


@every_family
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_defaults_draw_the_members_that_they_always_drew(name: str, split: str) -> None:
    leaves = jax.tree.leaves(sampled(ALL[name], split))
    sums = [np.sum(x.ravel() * np.arange(1.0, x.size + 1)) for x in leaves]
    np.testing.assert_allclose(sums, RECORDED[name][split], rtol=1e-5)


# --- reference returns ----------------------------------------------------------------------------


@functools.cache
def references(family: Family, split: str):
    """Reference returns of the members of `sampled`: [MANY] each."""
    return jax.vmap(family.reference)(sampled(family, split))


@functools.partial(jax.jit, static_argnums=(0, 3))
def episode_returns(family: Family, parameters, key, episodes: int):
    """Returns of whole episodes: [2, episodes], of random and of optimal play."""
    action_values = family.solve(parameters).action_values

    def play_one(optimal, key):
        def step(carry, step_key):
            state, running = carry
            act_key, step_key = jax.random.split(step_key)
            chosen = jnp.argmax(action_values[state.time][family.situation(state)])
            chance = jax.random.randint(act_key, (), 0, family.num_actions)
            action = jnp.where(optimal, chosen, chance)
            state, result = family.step(parameters, state, action, step_key)
            over = result.terminated | result.truncated
            return (state, running & ~over), (jnp.where(running, result.reward, 0), running & over)

        reset_key, key = jax.random.split(key)
        carry = (family.reset(parameters, reset_key)[0], jnp.array(True))
        _, (reward, over) = jax.lax.scan(step, carry, jax.random.split(key, family.horizon))
        return reward.sum(), over.sum()

    keys = jax.random.split(key, (2, episodes))
    both = jax.vmap(jax.vmap(play_one, in_axes=(None, 0)))
    return both(jnp.array([False, True]), keys)


@every_family
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_references_agree_with_played_episodes(name: str, split: str) -> None:
    family, episodes = ALL[name], 2000
    members = sampled(family, split)
    for i in range(3):
        member = pick(members, i)
        returns, ends = episode_returns(family, member, jax.random.key(i), episodes)
        assert (ends == 1).all()  # within the horizon, and once
        error = np.std(returns, axis=1) / np.sqrt(episodes)
        expected = np.array([each[i] for each in references(family, split)])
        # Chance exceeds 4.5 standard errors once in a hundred thousand times. The constant is for
        # what is so rare that it may be missing from the episodes, and so from their deviation.
        assert (np.abs(returns.mean(axis=1) - expected) <= 4.5 * error + 0.005).all()


@every_family
def test_splits_and_references_hold_for_any_range(name: str) -> None:
    plain, tasks = ALL[name], []
    for split in ("train", "held_out"):
        members = sampled(varied(name), split)
        # What a member's split is does not depend on the ranges it was drawn from.
        check_split(plain, members, split)
        tasks.append({identity(plain, pick(members, i)) for i in range(MANY)})
    assert not tasks[0] & tasks[1]
    # `members` are those held out. The program is the one that plays the plain family's.
    reference = jax.vmap(plain.reference)(members)
    for i in range(2):
        returns, ends = episode_returns(plain, pick(members, i), jax.random.key(i), 2000)
        assert (ends == 1).all()
        expected = np.array([each[i] for each in reference])
        error = np.std(returns, axis=1) / np.sqrt(2000)
        assert (np.abs(returns.mean(axis=1) - expected) <= 4.5 * error + 0.005).all()


@every_family
def test_optimal_play_beats_random_play_in_every_member(name: str) -> None:
    reference = references(ALL[name], "train")
    assert (reference.optimal > reference.random + 0.01).all()
    np.testing.assert_allclose(reference.score(reference.optimal), 1, rtol=1e-6)
    np.testing.assert_allclose(reference.score(reference.random), 0, atol=1e-6)


def test_references_in_closed_form() -> None:
    bandit = Bandit(contexts=3, arms=2, pulls=4).member(1)
    means = np.asarray(bandit.parameters.means)
    np.testing.assert_allclose(
        bandit.reference(), [4 * means.mean(), 4 * means.max(-1).mean()], rtol=1e-5
    )
    for seed in range(8):
        chain = Chain(length=7, actions=4).member(seed)
        parameters = chain.parameters
        straight = parameters.goal - parameters.places * parameters.cost
        np.testing.assert_allclose(chain.reference().optimal, straight, rtol=1e-5)
    np.testing.assert_allclose(Memory(cues=4).member().reference(), [-0.5, 1], rtol=1e-5)
    alone = GridParameters(
        walls=jnp.zeros(9, bool),
        squares=jnp.array([0]),
        rewards=jnp.array([0.75]),
        terminal=jnp.array([False]),
        respawn=jnp.array([0.0]),
        meanings=jnp.arange(5),
    )
    assert float(Grid(size=3, objects=1, limit=4).reference(alone).optimal) == 0.75
    # In one step, two of the eight squares lead to the object, each by one of five moves.
    reference = Grid(size=3, objects=1, limit=1).reference(alone)
    np.testing.assert_allclose(reference, [0.75 * 2 / 8 / 5, 0.75 * 2 / 8], rtol=1e-5)
