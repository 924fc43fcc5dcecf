"""Evaluation of trained agents: returns with confidence intervals, and a film of an episode."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from discorl import rules
from discorl.agent.assembly import NetworkFactory
from discorl.envs import Environment, GymnaxLike, HostEnvironment, Reference, references
from discorl.runs import compilation, statistics
from discorl.runs.progress import waiting
from discorl.training import films
from discorl.training.config import MOST_EPISODES
from discorl.training.loading import load_params
from discorl.training.result import TrainResult
from discorl.types import Key, UserError, validation

MAX_FRAMES = 1_000  # of a film


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Episodes that a trained agent played."""

    env: str  # name of the environment
    update: int  # updates the agent had made; the maximum over several agents
    seeds: list[int]
    returns: np.ndarray  # [seeds, episodes]
    lengths: np.ndarray  # [seeds, episodes]
    unfinished: int  # episodes stopped at the limit on steps
    films: tuple[Path, ...] = ()  # the files that were written
    no_film: str | None = None  # why a requested file was not written
    reference: Reference | None = None  # the returns that map to scores 0 and 1, if known
    # Means of the environment's metrics over finished episodes, and values derived from them; see
    # `HostEnvironment.episode_metrics`.
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Mean return with a 95% bootstrap interval over episodes, and the same as a score.

        There is no score if any episode was stopped, because references hold for whole episodes.
        """
        mean, low, high = dataclasses.astuple(
            statistics.estimate(statistics.mean, self.returns.reshape(-1, 1))
        )
        scores: list[float] | list[None] = [None] * 3
        if self.reference is not None and not self.unfinished:
            scores = [self.reference.score(value) for value in (mean, low, high)]
        return {
            "update": self.update,
            "episodes": self.returns.size,
            "mean_return": mean,
            "low": low,
            "high": high,
            "score": scores[0],
            "score_low": scores[1],
            "score_high": scores[2],
            "mean_length": float(self.lengths.mean()),
            "unfinished": self.unfinished,
            "mean_return_by_seed": self.returns.mean(axis=1).tolist(),
            "metrics": dict(self.metrics),
        }


@waiting("discorl.evaluate")
def evaluate(
    agent: TrainResult | str | os.PathLike[str],
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = False,
    best: bool = False,
    film: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    max_steps: int | None = None,
    environment: Environment | HostEnvironment | GymnaxLike | None = None,
    network: NetworkFactory | None = None,
    rule: rules.Given | None = None,
) -> Evaluation:
    """Plays trained agents.

    Args:
        agent: a result of `discorl.train`, or a run directory, whose newest agents play.
        episodes: how many episodes each agent plays.
        seed: seed of the episodes, unrelated to those of training.
        greedy: take the most likely action instead of a sample from the policy.
        best: use the agents that were evaluated best during training; see `eval_every`.
        film: where to write a film of an episode, a GIF or, with `discorl[mp4]`, an MP4; or
            several such files. A file that cannot be written is not an error: see
            `Evaluation.films` and `Evaluation.no_film`.
        max_steps: limit at which an episode is stopped and counted as it is; by default 10,000, and
            100,000 on the host, where it is checked every 32 steps.
        environment: the environment, if the run was given one as an object.
        network: the network, likewise.
        rule: the rule, likewise.
    """
    several = [film] if isinstance(film, str | os.PathLike) else film or []
    paths = [films.check(Path(path)) for path in several]
    validation.integer("episodes", episodes, least=1, most=MOST_EPISODES)
    validation.integer("seed", seed, least=0, most=validation.MOST_SEED)
    if max_steps is not None:
        validation.integer("max_steps", max_steps, least=1, most=validation.MOST_SEED)
    compilation.enable_cache()
    if isinstance(agent, TrainResult):
        trainer, params = agent.trainer, agent.params(best=best)
        update = int(agent.best.update.max()) if best and agent.best else agent.updates
    else:
        trainer, update, params = load_params(agent, environment, network, rule, best=best)
    config = trainer.config
    play_key, film_key = _keys(seed)
    played = trainer.play(params, play_key, episodes=episodes, greedy=greedy, max_steps=max_steps)
    most = min(MAX_FRAMES, max_steps or MAX_FRAMES)
    filmed, reason = _try_to_film(
        paths, lambda: trainer.film(params, film_key, greedy=greedy, max_frames=most)
    )
    return Evaluation(
        env=config.env,
        update=update,
        seeds=list(range(config.seed, config.seed + config.seeds)),
        returns=played.returns,
        lengths=played.lengths,
        unfinished=int((~played.ended).sum()),
        films=filmed,
        no_film=reason,
        reference=references.of(trainer.environment),
        metrics=played.metrics,
    )


def frames_of(
    run: str | os.PathLike[str],
    *,
    seed: int = 0,
    greedy: bool = False,
    best: bool = False,
    max_frames: int = MAX_FRAMES,
) -> list[np.ndarray]:
    """Frames, [H, W, 3], of the episode that `evaluate` films; [] if it cannot be rendered."""
    validation.integer("seed", seed, least=0, most=validation.MOST_SEED)
    validation.integer("max_frames", max_frames, least=1)
    compilation.enable_cache()
    trainer, _, params = load_params(run, best=best)
    return trainer.film(params, _keys(seed)[1], greedy=greedy, max_frames=max_frames)


def _keys(seed: int) -> Key:
    """Keys of the episodes that are played and of the one that is filmed: [2]."""
    # Independent of the keys of training.
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), 0xE7A1))


def _try_to_film(
    paths: Sequence[Path], frames: Callable[[], list[np.ndarray]]
) -> tuple[tuple[Path, ...], str | None]:
    """The files that were written, and the first error.

    An error must lose neither the episodes played nor the other files.
    """
    if not paths:
        return (), None
    try:
        pictures = frames()
    except Exception as error:  # from the environment's renderer
        return (), _reason(error)
    if not pictures:
        return (), "this environment cannot be drawn"
    written, reasons = [], []
    for path in paths:
        try:
            written.append(films.write(path, pictures))
        except Exception as error:  # the disk, PIL or ffmpeg
            reasons.append(_reason(error))
    return tuple(written), next(iter(reasons), None)


def _reason(error: Exception) -> str:
    raised = f"drawing raised {type(error).__name__}: {error}"
    return str(error) if isinstance(error, UserError) else raised
