"""The command `discorl evaluate`."""

from pathlib import Path
from typing import Any

import tyro

from discorl.cli.commands import Command, Result, command
from discorl.envs import references
from discorl.runs.progress import doing
from discorl.training import films
from discorl.training.evaluation import Evaluation, evaluate


def evaluate_command(
    run: tyro.conf.Positional[Path],
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = False,
    best: bool = False,
    gif: Path | None = None,
    no_gif: bool = False,
    mp4: Path | None = None,
    max_steps: int | None = None,
) -> Result:
    """Measure the mean return and score of a training run's agents, and film an episode.

    Args:
        run: the run directory.
        episodes: episodes that each agent plays.
        seed: seed of the episodes.
        greedy: take the most likely action instead of sampling from the policy.
        best: play the agents that the evaluations of `train --eval-every` found best, instead of
            the newest ones.
        gif: where to write the GIF; by default `episode.gif` in the run directory.
        no_gif: write no GIF.
        mp4: where to write the same episode as an MP4, too; needs `discorl[mp4]`.
        max_steps: stop longer episodes and count their return so far; by default the
            environment's own limit.
    """
    gif = None if no_gif else films.check(gif or run / "episode.gif", "gif", [".gif"])
    mp4 = None if mp4 is None else films.check(mp4, "mp4", [".mp4"])
    doing("playing episodes")
    evaluation = evaluate(
        run,
        episodes=episodes,
        seed=seed,
        greedy=greedy,
        best=best,
        film=[path for path in (gif, mp4) if path is not None],
        max_steps=max_steps,
    )
    data: dict[str, Any] = {"run": str(run), **evaluation.summary()}
    data |= {
        name: str(path) if path in evaluation.films else None
        for name, path in (("gif", gif), ("mp4", mp4))
    }
    data |= {"no_film": evaluation.no_film}
    return Result(data, _text(evaluation, data))


def _text(evaluation: Evaluation, data: dict[str, Any]) -> str:
    lines = [
        f"mean return {data['mean_return']:.3f}, 95% interval [{data['low']:.3f}, "
        f"{data['high']:.3f}] over {data['episodes']} episodes (after {data['update']} updates)"
    ]
    if data["score"] is not None:
        low, high = references.ends_of(evaluation.env)
        interval = f"[{data['score_low']:.3f}, {data['score_high']:.3f}]"
        lines.append(f"score {data['score']:.3f}, {interval} (0: {low}, 1: {high})")
    if len(evaluation.seeds) > 1:
        by_seed = zip(evaluation.seeds, evaluation.returns.mean(axis=1), strict=True)
        lines += [f"  seed {s}: {mean:.3f}" for s, mean in by_seed]
    if evaluation.unfinished:
        consequence = "" if evaluation.reference is None else ", so there is no score"
        lines.append(
            f"{evaluation.unfinished} episodes were stopped at the limit on steps{consequence}"
        )
    lines += [f"  {name}: {mean:.3f}" for name, mean in evaluation.metrics.items()]
    if evaluation.films:
        lines.append(f"an episode: {', '.join(map(str, evaluation.films))}")
    if evaluation.no_film is not None:
        which = "no other film" if evaluation.films else "no film"
        lines.append(f"{which}: {evaluation.no_film}")
    return "\n".join(lines)


COMMANDS: dict[str, Command] = {"": command(evaluate_command)}
