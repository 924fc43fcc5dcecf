"""Playing trained agents in environments on the host."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from discorl.training.host.acting import HostActor
from discorl.training.host.rollout import Episode
from discorl.training.host.trainer import Background, HostTrainer
from discorl.types import Array, Key, Params, PyTree

MOST_ENVIRONMENTS = 16  # that episodes are played in at once
ROLLOUT = 32  # steps between two looks at the episodes


@dataclasses.dataclass(frozen=True)
class Played:
    """Episodes; fewer than were asked for, if an environment was left."""

    returns: np.ndarray  # [..., episodes]
    lengths: np.ndarray  # [..., episodes]
    ended: np.ndarray  # [..., episodes] bool, whether the episode ended by itself
    metrics: dict[str, float]  # means over those that ended and report them


def _actor(
    trainer: HostTrainer, key: Key, greedy: bool, *, count: int, length: int, render: bool
) -> HostActor:
    def policy(params: Params, observation: PyTree, core: PyTree) -> tuple[Array, PyTree]:
        logits, core = trainer.learner.policy(params, observation, core)
        if not greedy:
            return logits, core
        likeliest = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
        return jnp.where(likeliest > 0, 0.0, -jnp.inf), core

    return HostActor(
        trainer.environment,
        policy,
        count=count,
        length=length,
        seed=int(jax.random.bits(key, dtype=jnp.uint32)),
        frame_stack=trainer.agent.frame_stack,
        core=trainer.learner.network.state,
        render=render,
    )


def play(
    trainer: HostTrainer, params: Params, key: Key, episodes: int, greedy: bool, max_steps: int
) -> Played:
    """Plays as many episodes in each of several environments, so that short ones are not favoured.

    Args:
        trainer: the environment, and the policy of given parameters.
        params: the agent.
        key: random key; used up.
        episodes: how many, over all environments.
        greedy: take the likeliest action instead of a sample.
        max_steps: after which an environment is left, its episode counted as it stands.
    """
    count = min(episodes, MOST_ENVIRONMENTS)
    quota = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    seed_key, key = jax.random.split(key)
    actor = _actor(trainer, seed_key, greedy, count=count, length=ROLLOUT, render=False)
    background = Background(actor, params)
    finished: list[list[Episode]] = [[] for _ in range(count)]
    stopped: dict[int, Episode] = {}  # as they stood; their environments count no further
    try:
        background.wait()
        rollouts = 0
        while any(len(finished[i]) < quota[i] and i not in stopped for i in range(count)):
            background.ask(params, jax.random.fold_in(key, rollouts))
            rollout = background.wait()
            assert rollout is not None
            for episode in rollout.episodes:
                if episode.index not in stopped:
                    finished[episode.index].append(episode)
            for episode in background.actor.under_way():
                if episode.length >= max_steps:
                    stopped.setdefault(episode.index, episode)
            rollouts += 1
    finally:
        background.close()
    counted, ended = [], []
    for i in range(count):
        played = finished[i][: quota[i]]
        standing = [stopped[i]] if len(played) < quota[i] else []
        counted += played + standing
        ended += [True] * len(played) + [False] * len(standing)
    return Played(
        returns=np.array([episode.total for episode in counted]),
        lengths=np.array([episode.length for episode in counted]),
        ended=np.array(ended),
        metrics=_means(counted, trainer.environment.episode_metrics),
    )


def _means(episodes: Sequence[Episode], names: Sequence[str]) -> dict[str, float]:
    """Means of what episodes report; those that were stopped report nothing."""
    means = {}
    for name in names:
        told = [episode.metrics[name] for episode in episodes if name in episode.metrics]
        if told:
            means[name] = float(np.mean(told))
    return means


def film(
    trainer: HostTrainer, params: Params, key: Key, greedy: bool, max_frames: int
) -> list[np.ndarray]:
    """Pictures of one episode; none if the environment cannot be drawn."""
    seed_key, key = jax.random.split(key)
    # Picture by picture: a step at a time.
    actor = _actor(trainer, seed_key, greedy, count=1, length=1, render=True)
    background = Background(actor, params)
    pictures: list[np.ndarray] = []
    try:
        background.wait()
        while len(pictures) < max_frames:
            picture = background.actor.render()
            if picture is None:
                return []
            pictures.append(np.array(picture))
            background.ask(params, jax.random.fold_in(key, len(pictures)))
            rollout = background.wait()
            if rollout is None or rollout.episodes:
                break
    finally:
        background.close()
    return pictures
