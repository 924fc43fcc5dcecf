"""Trials of rules, paired by task and key."""

import jax
import numpy as np
import pytest
from trials import Contender, Tasks, Trials, difference

from discorl.envs import families

TINY = {"hidden": (4,), "num_envs": 2, "unroll": 4, "batch": 2, "replay_fraction": 0.0}
TASKS = Tasks("bandit", range(1000, 1004), "held_out")


@pytest.fixture(scope="module")
def trials():
    return Trials(size=2)


def test_tasks_are_the_members_of_their_seeds(trials):
    contender = Contender("actor_critic", TINY)
    trials.scores(contender, TASKS, 16)
    (lives,) = trials._lives.values()
    members = lives.tasks(TASKS.keys[0], "held_out")
    expected = families.make("bandit").member(1002, "held_out").parameters
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[2], y), members, expected)


def test_scores_depend_on_the_contender_alone(trials):
    """Learning rates share a program, and the same life is lived again."""
    slow, fast = (Contender("actor_critic", TINY | {"learning_rate": r}) for r in (1e-3, 0.3))
    first = trials.scores(slow, TASKS, 400)
    other = trials.scores(fast, TASKS, 400)
    again = trials.scores(slow, TASKS, 400)
    assert len(trials._lives) == 1
    np.testing.assert_array_equal(first["end"], again["end"])
    assert (first["area"] != other["area"]).any()
    assert set(first) == {"end", "area", "curve"}
    assert first["end"].shape == (4,)


def test_the_curve_has_the_parts_of_the_area(trials):
    """Of lives in one environment, whose scores are not clipped."""
    tasks = Tasks("catch:rows=3,columns=2", range(2), "train")
    found = trials.scores(Contender("actor_critic", TINY), tasks, 400)
    assert found["curve"].shape == (2, 20)
    np.testing.assert_allclose(np.nanmean(found["curve"], axis=1), found["area"], rtol=1e-5)


def test_budgets_are_steps():
    assert Contender("ppo", TINY).updates(800) == 100
    assert Contender("lean").updates(19_200) == 300


def test_differences_are_paired():
    generator = np.random.default_rng(1)
    luck = {family: 10 * generator.normal(size=200) for family in ("a", "b")}
    gains = {"a": 0.3 + 0.1 * generator.normal(size=200), "b": 0.1 * generator.normal(size=200)}
    found = difference({f: luck[f] + gains[f] for f in luck}, luck)
    assert found.low < 0.15 < found.high
    # Half of the root of the sum of both squared standard errors, 0.1 / sqrt(200) each.
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.005, rel=0.15)
    assert str(found).startswith("+0.1")
