import collections
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discorl.agent import replay
from discorl.types import Trajectory, UserError

LENGTH = 3
KEY = jax.random.key(5)

empty = jax.jit(replay.init, static_argnums=1)
add = jax.jit(replay.add)
sample = jax.jit(replay.sample, static_argnums=2)


def numbered(names: Any, truncation: bool = True) -> Trajectory:
    """Trajectories [T, len(names)] whose every entry tells their name and the time."""
    stamps = 10 * np.asarray(names, np.int32) + np.arange(LENGTH + 1, dtype=np.int32)[:, None]
    step = stamps[:-1]
    return Trajectory(
        observation={
            "pixels": np.tile(stamps.astype(np.uint8)[..., None, None], (2, 2)),
            "name": stamps,
        },
        action=step,
        reward=step.astype(np.float32),
        terminated=step % 2 == 0,
        behaviour_logits=np.tile(step.astype(np.float16)[..., None], 2),
        truncated=step % 3 == 0 if truncation else None,
        filler=step % 4 == 0 if truncation else None,
        mask=step % 5 != 0 if truncation else None,
    )


def names_of(trajectory: Trajectory) -> list[int]:
    return (np.asarray(trajectory.action[0]) // 10).tolist()


def assert_equal(first: Any, second: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, first, second)


def stored(state: replay.ReplayState) -> Trajectory:
    """What the ring holds, oldest first, as a trajectory [T, size]."""
    capacity, size = state.storage.action.shape[0], int(state.size)
    slots = (int(state.position) - size + np.arange(size)) % capacity
    storage = jax.device_get(state.storage)
    return jax.tree.map(lambda leaf: np.swapaxes(leaf[slots], 0, 1), storage)


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.sampled_from([(1, 1), (2, 3), (3, 7), (2, 4)]),
    adds=st.integers(0, 8),
)
def test_the_ring_is_a_queue(sizes: tuple[int, int], adds: int) -> None:
    count, capacity = sizes
    state = empty(numbered(range(count)), capacity)
    model: collections.deque[int] = collections.deque(maxlen=capacity)
    for index in range(adds):
        names = range(index * count, (index + 1) * count)
        state = add(state, numbered(names))
        model.extend(names)
    assert int(state.size) == len(model)
    if model:
        # Every field is what it was at the start, so the trajectory is compared as a whole.
        assert_equal(stored(state), numbered(list(model)))


def test_rollouts_of_different_widths_share_a_ring() -> None:
    state = replay.init(numbered(range(2)), 4)
    for names in ([0, 1], [2, 3, 4], [5]):
        state = add(state, numbered(names))
    assert names_of(stored(state)) == [2, 3, 4, 5]


def test_layout_and_dtypes() -> None:
    like = numbered(range(2))
    state = replay.init(jax.eval_shape(lambda: like), 5)
    assert state.storage.observation["pixels"].shape == (5, LENGTH + 1, 2, 2)
    assert state.storage.behaviour_logits.shape == (5, LENGTH, 2)
    drawn = sample(add(state, like), KEY, 3)
    dtypes = [jax.tree.map(lambda leaf: leaf.dtype, each) for each in (like, state.storage, drawn)]
    assert dtypes[0] == dtypes[1] == dtypes[2]
    assert drawn.observation["pixels"].shape == (LENGTH + 1, 3, 2, 2)


def test_absent_fields_stay_absent() -> None:
    like = numbered(range(2), truncation=False)
    drawn = sample(add(replay.init(like, 2), like), KEY, 3)
    assert drawn.truncated is None
    assert drawn.filler is None
    assert drawn.mask is None


@pytest.mark.parametrize("filled", [3, 8])
def test_samples_are_uniform_and_whole(filled: int) -> None:
    state = replay.init(numbered([0]), 8)
    for name in range(10, 10 + filled):
        state = add(state, numbered([name]))
    drawn = sample(state, KEY, 2000)
    names = names_of(drawn)
    counts = np.bincount(names, minlength=10 + filled)[10:]
    assert counts.sum() == 2000, "a slot was drawn that holds nothing"
    expected = 2000 / filled
    limit = {3: 13.8, 8: 24.3}[filled]  # p = 0.001 with filled - 1 degrees of freedom
    assert ((counts - expected) ** 2 / expected).sum() < limit
    assert_equal(drawn, numbered(names))


def test_sampling_is_a_function_of_the_key() -> None:
    state = add(replay.init(numbered(range(4)), 8), numbered(range(4)))
    first, again = (sample(state, KEY, 16) for _ in range(2))
    other = sample(state, jax.random.key(6), 16)
    assert_equal(first, again)
    assert names_of(first) != names_of(other)


def test_an_empty_ring_yields_zeros() -> None:
    drawn = sample(replay.init(numbered([1]), 4), KEY, 3)
    assert not any(leaf.any() for leaf in jax.tree.leaves(drawn))


@pytest.mark.parametrize("population", [None, 2])
def test_add_is_in_place(population: int | None) -> None:
    like, capacity = numbered(range(2)), 1000

    def make() -> tuple[replay.ReplayState, Trajectory]:
        pair = replay.init(like, capacity), like
        if population is None:
            return pair
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * population), pair)

    function = replay.add if population is None else jax.vmap(replay.add)
    state, trajectory = make()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    compiled = jax.jit(function, donate_argnums=0).lower(state, trajectory).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == size
    assert memory.temp_size_in_bytes < size / 10


def test_a_population_of_rings() -> None:
    trajectories = [numbered([index, index + 10]) for index in range(3)]
    batched = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trajectories)
    keys = jax.random.split(KEY, 3)

    def live(trajectory: Trajectory, key: Any) -> Trajectory:
        state = replay.add(replay.init(trajectory, 5), trajectory)
        return replay.sample(state, key, 4)

    together, alone = jax.jit(jax.vmap(live))(batched, keys), jax.jit(live)
    for index in range(3):
        mine = jax.tree.map(lambda leaf, i=index: leaf[i], together)
        assert_equal(mine, alone(trajectories[index], keys[index]))


@pytest.mark.parametrize(("batch", "replayed"), [(4, 4), (4, 2), (5, 2), (3, 0)])
def test_mix_joins_fresh_and_replayed(batch: int, replayed: int) -> None:
    old, fresh = numbered([1, 2]), numbered([7, 8, 9])
    state = add(replay.init(old, 2), old)
    mixed = jax.jit(functools.partial(replay.mix, batch=batch, replayed=replayed))(
        state, fresh, KEY
    )
    names = names_of(mixed)
    assert names[: batch - replayed] == [7, 8, 9][: batch - replayed]
    assert set(names[batch - replayed :]) <= {1, 2}
    assert_equal(mixed, numbered(names))


@pytest.mark.parametrize(("batch", "replayed"), [(4, 0), (4, 5), (2, -1)])
def test_mix_refuses_impossible_shares(batch: int, replayed: int) -> None:
    fresh = numbered([7, 8, 9])
    state = replay.init(fresh, 3)
    with pytest.raises(UserError, match=f"cannot replay {replayed} of a batch of {batch}"):
        replay.mix(state, fresh, KEY, batch, replayed)


def test_capacity_is_checked() -> None:
    with pytest.raises(UserError, match="a replay capacity of 2 is too small"):
        replay.init(numbered(range(3)), 2)
    with pytest.raises(UserError, match="cannot add 3 trajectories"):
        replay.add(replay.init(numbered([0]), 2), numbered(range(3)))
