"""Clocks: environments on the host of which every moment is known, and rollouts of them."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from discorl.envs.host import HostEnvironment, HostStep, HostVector
from discorl.envs.host.base import seeds_from
from discorl.envs.host.serial import SerialVector
from discorl.training.host.acting import HostActor
from discorl.training.host.programs import ActingPrograms

KEY = jax.random.key(5)
LIFE, LIMIT = 3, 4


def is_mortal(episode):
    """Two and two in turns."""
    return episode % 4 in (0, 3)


class Clock:
    """Mortal episodes terminate after LIFE steps, others are cut after LIMIT; reward 1 a step.

    The observation is the number of the episode and the time in it, both counted from 1, so that
    zeros cannot be mistaken for a frame.
    """

    def __init__(self):
        self.episode = 0

    def observe(self):
        return np.array([self.episode, self.time + 1], np.float32)

    def reset(self, seed):
        self.episode += 1
        self.time = 0
        return self.observe()

    def step(self, action):
        self.time += 1
        mortal = is_mortal(self.episode)
        ended, cut = mortal and self.time == LIFE, not mortal and self.time == LIMIT
        return self.observe(), 1.0, ended, cut, {"number": self.episode}

    def render(self):
        return np.full((4, 4, 3), self.time, np.uint8)

    def close(self):
        return


@dataclasses.dataclass(frozen=True)
class Clocks(HostEnvironment):
    """A vector of clocks; `resets_cost` makes every reset take a call, as in EnvPool."""

    make: type = Clock
    resets_cost: bool = False
    timeout: float = 60.0

    name = "clocks"
    num_actions = 2
    episode_metrics = ("number",)
    observation = jax.ShapeDtypeStruct((2,), np.float32)

    def start(self, count, seed, *, render=False):
        if self.resets_cost:
            return NextStep([self.make() for _ in range(count)])
        return SerialVector(self.make, seeds_from(seed, count))


class NextStep(HostVector):
    def __init__(self, clocks):
        self.clocks = clocks
        self.ended = np.zeros(len(clocks), bool)

    def reset(self):
        return np.stack([clock.reset(None) for clock in self.clocks])

    def step(self, action):
        first = self.ended
        rows = [
            (clock.reset(None), 0, False, False) if again else clock.step(0)[:4]
            for clock, again in zip(self.clocks, first, strict=True)
        ]
        seen, reward, terminated, truncated = map(np.array, zip(*rows, strict=True))
        self.ended = terminated | truncated
        return HostStep(seen, reward.astype(np.float32), terminated, truncated, first)


def count_frames(params, stack, recurrent_state=(), action_mask=None):
    """Logits that show the whole stack."""
    weights = jnp.arange(1, stack.shape[-1] + 1) * params
    return jnp.stack([stack @ weights, jnp.zeros(stack.shape[0])], axis=-1), recurrent_state


def rollouts(environment, number=4, count=2, length=5, frame_stack=1):
    actor = HostActor(ActingPrograms(environment, count_frames, count, length, frame_stack), 0)
    params = jnp.float32(0.5)
    actor.start(params)
    return [actor.rollout(params, jax.random.fold_in(KEY, i)) for i in range(number)]


def check_convention(parts, *, resets_cost, given_up=0):
    """Walks through rollouts of clocks; `given_up` episodes follow each truncated one unseen."""
    seen_fillers = 0
    for before, after in itertools.pairwise(parts):
        np.testing.assert_array_equal(
            before.trajectory.observation[-1], after.trajectory.observation[0]
        )
    for part in parts:
        data = jax.tree.map(np.asarray, part.trajectory)
        assert data.mask is None
        assert part.steps == (~data.filler).sum()
        for t, e in np.ndindex(data.action.shape):
            (episode, time), following = data.observation[t, e], data.observation[t + 1, e]
            mortal = is_mortal(episode)
            if data.filler[t, e]:
                assert time - 1 == (LIFE if mortal else LIMIT), "fillers are at last moments only"
                assert resets_cost or not mortal
                assert data.reward[t, e] == 0
                assert not data.terminated[t, e]
                assert not data.truncated[t, e]
                np.testing.assert_array_equal(following, [episode + 1 + given_up, 1])
                seen_fillers += 1
                continue
            assert data.reward[t, e] == 1
            ends = time == (LIFE if mortal else LIMIT)
            assert data.terminated[t, e] == (ends and mortal)
            assert data.truncated[t, e] == (ends and (resets_cost or not mortal))
            at_once = ends and mortal and not resets_cost
            np.testing.assert_array_equal(
                following, [episode + 1, 1] if at_once else [episode, time + 1]
            )
    assert seen_fillers
    episodes = [episode for part in parts for episode in part.episodes]
    assert {episode.length for episode in episodes} == {LIFE, LIMIT}
    assert all(episode.total == episode.length for episode in episodes)
    return episodes


TINY = {
    "env": "clocks",
    "rule": "actor_critic",
    "num_envs": 2,
    "batch": 4,
    "replay": 8,
    "replay_fraction": 0.5,
    "unroll": 5,
    "hidden": (8,),
    "action_lstm": 4,
    "action_hidden": (4,),
    "frame_stack": 2,
    "updates": 6,
    "checkpoint_every": 2,
}
