"""Playing and filming agents in host environments."""

import contextlib
import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from discorl.training.host.acting import HostActor
from discorl.training.host.actor_thread import ActorThread
from discorl.training.host.agent import HostAgent
from discorl.training.host.rollout import Episode
from discorl.training.trainer import Episodes
from discorl.types import Array, Key, Params, PyTree

MOST_ENVIRONMENTS = 16  # played in parallel
ROLLOUT = 32  # steps between two checks of the episodes


def _actor(
    agent: HostAgent, key: Key, greedy: bool, *, count: int, length: int, render: bool
) -> HostActor:
    def policy(params: Params, *seen: PyTree) -> tuple[Array, PyTree]:
        logits, recurrent_state = agent.learner.policy(params, *seen)
        if not greedy:
            return logits, recurrent_state
        likeliest = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
        return jnp.where(likeliest > 0, 0.0, -jnp.inf), recurrent_state

    programs = dataclasses.replace(agent.programs, policy=policy, count=count, length=length)
    return HostActor(programs, int(jax.random.bits(key, dtype=jnp.uint32)), render=render)


def play(
    agent: HostAgent, params: Params, key: Key, episodes: int, greedy: bool, max_steps: int
) -> Episodes:
    """Plays equally many episodes per environment, which avoids a bias toward short episodes.

    `max_steps` is checked every `ROLLOUT` steps. An environment whose episode was stopped is not
    used again, so there may be fewer episodes than requested.
    """
    count = min(episodes, MOST_ENVIRONMENTS)
    quota = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    seed_key, key = jax.random.split(key)
    actor = _actor(agent, seed_key, greedy, count=count, length=ROLLOUT, render=False)
    finished: list[list[Episode]] = [[] for _ in range(count)]
    stopped: dict[int, Episode] = {}  # by environment; later episodes there are ignored
    with contextlib.closing(ActorThread(actor, params)) as thread:
        thread.wait_for_start()
        rollouts = 0
        while any(len(finished[i]) < quota[i] and i not in stopped for i in range(count)):
            thread.ask(params, jax.random.fold_in(key, rollouts))
            for episode in thread.wait().episodes:
                if episode.index not in stopped:
                    finished[episode.index].append(episode)
            for episode in actor.running_episodes():
                if episode.length >= max_steps:
                    stopped.setdefault(episode.index, episode)
            rollouts += 1
    counted, ended = [], []
    for i in range(count):
        played = finished[i][: quota[i]]
        cut = [stopped[i]] if len(played) < quota[i] else []
        counted += played + cut
        ended += [True] * len(played) + [False] * len(cut)
    means = _means(counted, agent.environment.episode_metrics)
    return Episodes(
        returns=np.array([[episode.total for episode in counted]]),
        lengths=np.array([[episode.length for episode in counted]]),
        ended=np.array([ended]),
        metrics=means | dict(agent.environment.summarise(means)),
    )


def _means(episodes: Sequence[Episode], names: Sequence[str]) -> dict[str, float]:
    """Means of the reported metrics; stopped episodes report none."""
    means = {}
    for name in names:
        reported = [episode.metrics[name] for episode in episodes if name in episode.metrics]
        if reported:
            means[name] = float(np.mean(reported))
    return means


def film(
    agent: HostAgent, params: Params, key: Key, greedy: bool, max_frames: int
) -> list[np.ndarray]:
    """Frames of one episode; [] if the environment cannot be rendered."""
    seed_key, key = jax.random.split(key)
    actor = _actor(agent, seed_key, greedy, count=1, length=1, render=True)
    frames: list[np.ndarray] = []
    with contextlib.closing(ActorThread(actor, params)) as thread:
        thread.wait_for_start()
        while len(frames) < max_frames:
            frame = actor.render()
            if frame is None:
                return []
            frames.append(np.array(frame))
            thread.ask(params, jax.random.fold_in(key, len(frames)))
            if thread.wait().episodes:
                end = actor.render(end=True)
                return frames if end is None else [*frames, np.array(end)]
    return frames
