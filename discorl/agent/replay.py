"""Replay: a ring buffer of recent trajectories on the device, as pure functions.

discorl has its own because it stores trajectories whole, with their last observation, recurrent
state, masks and fillers.
"""

import dataclasses

import jax
import jax.numpy as jnp

from discorl.types import Array, Key, Trajectory, UserError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReplayState:
    """A ring buffer of `capacity` trajectories; the oldest are overwritten first."""

    # A Trajectory with leaves [capacity, T or T+1, ...]. Unlike elsewhere, time comes second, so
    # that each trajectory is contiguous in memory.
    storage: Trajectory
    position: Array  # [] int32, where the next trajectory goes
    size: Array  # [] int32, trajectories stored


def init(trajectory_like: Trajectory, capacity: int) -> ReplayState:
    """An empty buffer for `capacity` trajectories, at least E.

    `trajectory_like` is one rollout, [T, E], as arrays or as `jax.ShapeDtypeStruct`. Every field
    keeps its dtype.
    """
    num_environments = trajectory_like.action.shape[1]
    if capacity < num_environments:
        raise UserError(
            f"a replay capacity of {capacity} is too small: each rollout adds {num_environments} "
            "trajectories, which must all fit"
        )

    def allocate(leaf: Array) -> Array:
        time, _, *rest = leaf.shape
        return jnp.zeros((capacity, time, *rest), leaf.dtype)

    storage = jax.tree.map(allocate, trajectory_like)
    return ReplayState(storage, position=jnp.int32(0), size=jnp.int32(0))


def add(state: ReplayState, trajectory: Trajectory) -> ReplayState:
    """Overwrites the oldest trajectories with the E of a rollout, [T, E]."""
    capacity, count = state.storage.action.shape[0], trajectory.action.shape[1]
    if count > capacity:
        raise UserError(f"cannot add {count} trajectories at once to a replay of {capacity}")
    slots = (state.position + jnp.arange(count)) % capacity

    def write(stored: Array, new: Array) -> Array:
        new = jnp.swapaxes(new, 0, 1)
        if capacity % count == 0:  # no rollout wraps around: one copy is enough
            return jax.lax.dynamic_update_slice_in_dim(stored, new, state.position, axis=0)
        return stored.at[slots].set(new, mode="promise_in_bounds", unique_indices=True)

    return ReplayState(
        storage=jax.tree.map(write, state.storage, trajectory),
        position=(state.position + count) % capacity,
        size=jnp.minimum(state.size + count, capacity),
    )


def sample(state: ReplayState, key: Key, batch: int) -> Trajectory:
    """Samples stored trajectories uniformly with replacement: [T, batch].

    An empty buffer yields zeros.
    """
    slots = jax.random.randint(key, (batch,), 0, state.size)

    def read(stored: Array) -> Array:
        return jnp.swapaxes(stored.at[slots].get(mode="promise_in_bounds"), 0, 1)

    return jax.tree.map(read, state.storage)


def mix(state: ReplayState, fresh: Trajectory, key: Key, batch: int, replayed: int) -> Trajectory:
    """A batch, [T, B], of `batch - replayed` fresh and `replayed` sampled trajectories.

    It takes the first trajectories of `fresh`, [T, E]; `replayed` must be at least B - E.
    """
    num_environments = fresh.action.shape[1]
    if not max(0, batch - num_environments) <= replayed <= batch:
        raise UserError(
            f"cannot replay {replayed} of a batch of {batch}: with {num_environments} fresh "
            f"trajectories it must be {max(0, batch - num_environments)} to {batch}"
        )
    newest = jax.tree.map(lambda leaf: leaf[:, : batch - replayed], fresh)
    older = sample(state, key, replayed)
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=1), newest, older)
