import dataclasses
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Mortal, Obedient, Truncated

from discorl.agent import acting
from discorl.envs.base import Environment, Step
from discorl.envs.catch import Catch, CatchState
from discorl.types import Trajectory, UserError

KEY = jax.random.key(3)


def uniform(
    num_actions: int, observations: Any, recurrent_state: Any, action_mask: Any
) -> tuple[jax.Array, Any]:
    count = jax.tree.leaves(observations)[0].shape[0]
    return jnp.zeros((count, num_actions)), recurrent_state


@lru_cache
def programs(environment: Environment, count: int, length: int) -> tuple[Callable, Callable]:
    """Compiled `init` and `rollout` under a uniform policy."""
    policy = partial(uniform, environment.num_actions)
    return (
        jax.jit(lambda key: acting.init(environment, key, count)),
        jax.jit(lambda state, key: acting.rollout(environment, policy, state, key, length)),
    )


def roll(
    environment: Environment, count: int, length: int, rollouts: int, key: Any = KEY
) -> tuple[list[acting.ActorState], list[Trajectory], list[acting.EpisodeStatistics]]:
    """Several rollouts in a row, of `count` environments."""
    init, rollout = programs(environment, count, length)
    init_key, *keys = jax.random.split(key, rollouts + 1)
    states, trajectories, statistics = [init(init_key)], [], []
    for each in keys:
        state, trajectory, statistic = jax.device_get(rollout(states[-1], each))
        states.append(state)
        trajectories.append(trajectory)
        statistics.append(statistic)
    return states, trajectories, statistics


@pytest.fixture(scope="module")
def obedient() -> tuple[list, list, list]:
    """Uniform actions in `Obedient` end a rollout of 5 steps in every possible way."""
    return roll(Obedient(), count=8, length=5, rollouts=12)


def at(observation: Any, *index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], observation)


def same(first: Any, second: Any) -> bool:
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, first, second)))


def follow_by_hand(trajectories: list[Trajectory], environment_index: int) -> dict[str, Any]:
    """Walks along one `Obedient` environment, checks all it sees and counts what happened."""
    seen: dict[str, Any] = {"names": [], "finished": [], "steps": 0, "edge": set()}
    total, length, time = 0.0, 0, None
    for number, trajectory in enumerate(trajectories):
        last = trajectory.action.shape[0] - 1
        awaiting = False
        if time is None:  # nothing before, or a truncation by the last step of a rollout
            seen["names"].append(tuple(at(trajectory.observation, 0, environment_index)["episode"]))
            time = 0
        for t in range(last + 1):
            now = at(trajectory.observation, t, environment_index)
            then = at(trajectory.observation, t + 1, environment_index)
            row = {
                name: getattr(trajectory, name)[t, environment_index]
                for name in ("action", "reward", "terminated", "truncated")
            } | {"filler": trajectory.fillers()[t, environment_index]}
            assert tuple(now["episode"]) == seen["names"][-1]
            assert now["time"] == time
            terminates, truncates = row["action"] in (1, 3), row["action"] == 2
            if awaiting:
                assert row["reward"] == 0
                assert row["filler"] and not (row["terminated"] or row["truncated"])
            else:
                assert row["reward"] == 1 + time / 8
                assert (row["terminated"], row["truncated"]) == (terminates, truncates)
                assert not row["filler"]
                total, length = total + float(row["reward"]), length + 1
                seen["steps"] += 1
                if terminates or truncates:
                    seen["finished"].append((number, total, length))
                    seen["edge"].add((t, "terminates" if terminates else "truncates"))
                    total, length = 0.0, 0
            if awaiting or terminates:
                assert then["luck"] == 0
                seen["names"].append(tuple(then["episode"]))
                time, awaiting = 0, False
            else:
                time, awaiting = time + 1, bool(truncates)
        if awaiting:
            time = None
    return seen | {"total": total, "length": length}


def test_rollouts_match_a_walk_by_hand(obedient: tuple[list, list, list]) -> None:
    states, trajectories, statistics = obedient
    walks = [follow_by_hand(trajectories, index) for index in range(8)]

    kinds = set().union(*(walk["edge"] for walk in walks))
    assert kinds == {(t, kind) for t in range(5) for kind in ("terminates", "truncates")}
    names = [name for walk in walks for name in walk["names"]]
    assert len(set(names)) == len(names), "a reset key was used twice"

    assert sum(int(each.steps) for each in statistics) == sum(walk["steps"] for walk in walks)
    for number, found in enumerate(statistics):
        finished = [e[1:] for walk in walks for e in walk["finished"] if e[0] == number]
        assert int(found.count) == len(finished)
        assert int(found.length_sum) == sum(length for _, length in finished)
        np.testing.assert_allclose(found.return_sum, sum(total for total, _ in finished))
    np.testing.assert_allclose(states[-1].episode_return, [walk["total"] for walk in walks])
    np.testing.assert_array_equal(states[-1].episode_length, [walk["length"] for walk in walks])


def test_fillers_are_where_the_trajectory_says(obedient: tuple[list, list, list]) -> None:
    for trajectory in obedient[1]:
        expected = np.zeros(trajectory.truncated.shape, bool)
        expected[1:] = trajectory.truncated[:-1]
        np.testing.assert_array_equal(trajectory.fillers(), expected)
        assert trajectory.filler is None
        assert trajectory.mask is None
        assert not (trajectory.terminated & trajectory.truncated).any()


def test_step_keys_are_used_once(obedient: tuple[list, list, list]) -> None:
    luck = np.concatenate([each.observation["luck"][1:].ravel() for each in obedient[1]])
    drawn = luck[luck != 0]
    assert drawn.size > 100
    assert np.unique(drawn).size == drawn.size


def test_rollouts_join_seamlessly(obedient: tuple[list, list, list]) -> None:
    states, trajectories, _ = obedient
    assert any(state.awaiting_reset.any() for state in states[1:-1])
    for state, before, after in zip(states[1:-1], trajectories[:-1], trajectories[1:], strict=True):
        np.testing.assert_array_equal(state.awaiting_reset, before.truncated[-1])
        for index in range(8):
            continues = same(at(before.observation, -1, index), at(after.observation, 0, index))
            assert continues == (not state.awaiting_reset[index])
            assert not after.fillers()[0, index]


def test_shapes_and_dtypes_are_kept(obedient: tuple[list, list, list]) -> None:
    trajectory = obedient[1][0]
    spec = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), Obedient().observation)
    seen = jax.tree.map(lambda leaf: (leaf.shape[2:], leaf.dtype), trajectory.observation)
    assert seen == spec
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(trajectory.observation)} == {(6, 8)}
    assert trajectory.behaviour_logits.shape == (5, 8, 4)
    rest = ("action", "reward", "terminated", "truncated")
    assert {getattr(trajectory, name).shape for name in rest} == {(5, 8)}


@pytest.mark.parametrize("limit", [2, 6])
def test_truncation_shows_the_true_last_observation(limit: int) -> None:
    states, (first, second), (statistic, _) = roll(Truncated(limit), 2, length=6, rollouts=2)
    # A cut episode fills limit steps and a filler, unless the rollout ends with it.
    times = [t % (limit + 1) for t in range(7)]
    np.testing.assert_array_equal(first.observation.argmax(-1), np.array([times] * 2).T)
    np.testing.assert_array_equal(first.truncated[:, 0], [time == limit for time in times[1:]])
    np.testing.assert_array_equal(first.fillers()[:, 0], [time == limit for time in times[:-1]])
    assert (second.observation[0, 0].argmax() == 0) == (times[-1] in (0, limit))
    assert statistic.count == 2 * times[1:].count(limit)
    assert statistic.return_sum == statistic.length_sum == limit * statistic.count
    assert statistic.steps == 2 * sum(time != limit for time in times[:-1])
    np.testing.assert_array_equal(states[1].awaiting_reset, [times[-1] == limit] * 2)


def test_both_kinds_of_ends_mix() -> None:
    lifetime, limit = 2, 3
    environment = Mortal(lifetime, limit)
    _, trajectories, statistics = roll(environment, 4, length=7, rollouts=2)
    half = environment.observation.shape[0] // 2
    for trajectory in trajectories:
        kind, time = np.divmod(trajectory.observation.argmax(-1), half)
        np.testing.assert_array_equal(
            trajectory.terminated,
            ~trajectory.fillers() & (kind[:-1] == 0) & (time[:-1] == lifetime - 1),
        )
        np.testing.assert_array_equal(trajectory.truncated, (kind[1:] == 1) & (time[1:] == limit))
        np.testing.assert_array_equal(trajectory.fillers(), (kind[:-1] == 1) & (time[:-1] == limit))
        np.testing.assert_array_equal(trajectory.reward, ~trajectory.fillers())
    ends = sum(each.terminated.sum() + each.truncated.sum() for each in trajectories)
    assert ends == sum(each.count for each in statistics)
    assert all(each.truncated.any() and each.terminated.any() for each in trajectories)


def test_catch_is_played_as_the_environment_says() -> None:
    environment = Catch(rows=4, columns=3)
    _, trajectories, statistics = roll(environment, 3, length=5, rollouts=3)
    step = jax.jit(environment.step)
    observation = np.concatenate([each.observation[:-1] for each in trajectories])
    joined = jax.tree.map(
        lambda *leaves: np.concatenate(leaves),
        *(dataclasses.replace(each, observation=None) for each in trajectories),
    )
    for index in range(3):
        for t in range(15):
            if t % 3 == 0:
                column = observation[t, index, 0].argmax().astype(np.int32)
                state = CatchState(np.int32(0), column, np.int32(1))
            expected = np.zeros((4, 3))
            expected[state.ball_row, state.ball_column] = expected[3, state.paddle] = 1
            np.testing.assert_array_equal(observation[t, index], expected)
            state, result = jax.device_get(step(state, joined.action[t, index], KEY))
            assert joined.reward[t, index] == result.reward
            assert joined.terminated[t, index] == result.terminated == (t % 3 == 2)
    assert not joined.fillers().any()
    assert not joined.truncated.any()
    assert sum(int(each.count) for each in statistics) == 15
    assert sum(float(each.return_sum) for each in statistics) == joined.reward.sum()


class Terse(Catch):
    """Resets in float32 and steps in bool."""

    def step(self, state: CatchState, action: jax.Array, key: Any) -> tuple[CatchState, Step]:
        state, step = super().step(state, action, key)
        return state, dataclasses.replace(step, observation=step.observation > 0)


def test_steps_may_say_in_bool_what_resets_say_in_floats() -> None:
    _, (expected,), _ = roll(Catch(rows=4, columns=3), 3, length=5, rollouts=1)
    _, (trajectory,), _ = roll(Terse(rows=4, columns=3), 3, length=5, rollouts=1)
    jax.tree.map(np.testing.assert_array_equal, trajectory, expected)
    assert trajectory.observation.dtype == jnp.float32


def test_actions_follow_the_stored_logits() -> None:
    """Of three actions: with two, noise of the wrong sign would go unnoticed."""
    environment = Catch(rows=3, columns=3)
    table = np.array([[0.0, 1.5, -1.0], [0.5, -2.0, 0.0]], np.float32)

    @jax.jit
    def live(key: Any) -> Trajectory:
        state = acting.init(environment, key, 500)

        def policy(
            seen: jax.Array, recurrent_state: Any, action_mask: Any
        ) -> tuple[jax.Array, Any]:
            return jnp.asarray(table)[seen[:, 0].sum(-1).astype(int)], recurrent_state

        return acting.rollout(environment, policy, state, key, 8)[1]

    trajectory = jax.device_get(live(KEY))
    at_start = trajectory.observation[:-1, :, 0].sum(-1).astype(int)  # the ball is in the top row
    np.testing.assert_array_equal(trajectory.behaviour_logits, table[at_start])
    for each, logits in enumerate(table):
        counts = np.bincount(trajectory.action[at_start == each], minlength=3)
        expected = np.exp(logits) / np.exp(logits).sum() * counts.sum()
        assert ((counts - expected) ** 2 / expected).sum() < 13.8  # 2 degrees, p = 0.001


def test_experience_is_a_function_of_the_key(obedient: tuple[list, list, list]) -> None:
    assert same(roll(Obedient(), 8, 5, 12), obedient)
    (other,) = roll(Obedient(), 8, 5, 1, jax.random.key(4))[1]
    assert not same(other.action, obedient[1][0].action)


@dataclasses.dataclass(frozen=True)
class Costly(Obedient):
    """`Obedient`, with resets that are said to be costly."""

    resets_at_once: int = 3


@pytest.mark.parametrize("at_once", [1, 3, 20])
def test_costly_resets_give_the_same_experience(
    obedient: tuple[list, list, list], at_once: int
) -> None:
    assert same(roll(Costly(at_once), 8, 5, 12), obedient)


def test_rollouts_vmap_over_a_population() -> None:
    environment, keys = Truncated(limit=3), jax.random.split(KEY, 3)

    def live(key: Any) -> Any:
        init_key, key = jax.random.split(key)
        state = acting.init(environment, init_key, 2)
        return acting.rollout(environment, partial(uniform, 2), state, key, 5)

    together, alone = jax.jit(jax.vmap(live))(keys), jax.jit(live)
    for index, key in enumerate(keys):
        assert same(at(together, index), alone(key))


def test_sizes_are_checked() -> None:
    environment = Catch()
    with pytest.raises(UserError, match="num_environments is 0; expected at least 1"):
        acting.init(environment, KEY, 0)
    state = acting.init(environment, KEY, 1)
    with pytest.raises(UserError, match="length is 0; expected at least 1"):
        acting.rollout(environment, partial(uniform, 3), state, KEY, 0)
