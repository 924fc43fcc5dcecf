"""Playing trained agents: returns with their uncertainty, and a film of an episode."""

import dataclasses
import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl import rules
from discorl.agent.assembly import NetworkFactory
from discorl.envs import Environment, Reference, references
from discorl.envs.host import HostEnvironment
from discorl.networks.recurrence import blank_state
from discorl.runs import Run, compilation, statistics
from discorl.runs.files import write_atomically, write_errors_reported
from discorl.training.assembly import initial_state, reopen
from discorl.training.host import evaluation
from discorl.training.host.trainer import HostTrainer
from discorl.training.trainer import Trainer
from discorl.types import Array, Key, Params, PyTree, UserError, validation

MAX_STEPS = 10_000  # after which an episode without an end is counted as it stands
# On the host likewise, where games are long: 30 minutes of Atari are 27,000 steps.
MAX_HOST_STEPS = 100_000
MAX_FRAMES = 1_000  # of a film
FRAME_MILLISECONDS = 120
LAST_FRAME_MILLISECONDS = 900


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Episodes that a trained agent played."""

    env: str  # name of the environment
    update: int  # updates that the agent had learned from
    seeds: list[int]
    returns: np.ndarray  # [seeds, episodes]
    lengths: np.ndarray  # [seeds, episodes]
    unfinished: int  # episodes stopped at the limit on steps
    film: Path | None
    no_film: str | None = None  # why there is no film, if one was asked for
    reference: Reference | None = None  # the returns that make scores of 0 and 1, if known
    # Means over finished episodes of what the environment reports of each, and what follows of
    # them; see `HostEnvironment.episode_metrics`.
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """Mean return with a 95% bootstrap interval over episodes, and the same as a score.

        There is no score where episodes were stopped: references are of whole ones.
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


def evaluate(
    path: str | os.PathLike[str],
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = False,
    film: str | os.PathLike[str] | None = None,
    max_steps: int | None = None,
    environment: Environment | HostEnvironment | None = None,
    network: NetworkFactory | None = None,
    rule: rules.Given | None = None,
) -> Evaluation:
    """Plays the newest agent of a training run.

    Args:
        path: the run directory.
        episodes: how many episodes each agent plays.
        seed: seed of the episodes, unrelated to those of training.
        greedy: take the likeliest action instead of a sample from the policy.
        film: where to write a GIF of an episode, if the environment can be drawn. That it cannot be
            made is no error: see `Evaluation.no_film`.
        max_steps: after which an episode without an end is counted as it stands; by default 10,000,
            and 100,000 on the host, where it is looked at every 32 steps.
        environment: the environment, if the run was given one of its own.
        network: the network, likewise.
        rule: the rule, likewise.
    """
    validation.integer("episodes", episodes, least=1)
    if max_steps is not None:
        validation.integer("max_steps", max_steps, least=1)
    compilation.enable_cache()
    with Run.open(path, read_only=True) as run:
        config, trainer, _ = reopen(run, environment, network, rule)
        restored = run.restore(jax.eval_shape(lambda: initial_state(config, trainer)))
    if restored is None:
        raise UserError(f"{path} has no checkpoint yet: there is no agent to evaluate")
    update, state = restored
    params = jax.tree.map(jnp.asarray, state.learner.params)
    if config.seeds == 1:
        params = jax.tree.map(lambda x: x[None], params)
    # Far from the keys of training, which come from small integers.
    key = jax.random.fold_in(jax.random.key(seed), 0xE7A1)
    play_key, film_key = jax.random.split(key)
    agents = [jax.tree.map(lambda x, i=i: x[i], params) for i in range(config.seeds)]
    played = _play_all(trainer, agents, play_key, episodes, greedy, max_steps)
    filmed, reason = None, None
    if film is not None:
        most = min(MAX_FRAMES, max_steps or MAX_FRAMES)
        filmed, reason = _try_to_film(
            Path(film), lambda: _frames(trainer, agents[0], film_key, greedy, most)
        )
    return Evaluation(
        env=config.env,
        update=update,
        seeds=list(range(config.seed, config.seed + config.seeds)),
        returns=played.returns,
        lengths=played.lengths,
        unfinished=int((~played.ended).sum()),
        film=filmed,
        no_film=reason,
        reference=references.of(trainer.environment),
        metrics=played.metrics,
    )


def _play_all(
    trainer: Trainer | HostTrainer,
    agents: list[Params],
    key: Key,
    episodes: int,
    greedy: bool,
    max_steps: int | None,
) -> evaluation.Played:
    """What all agents play, with arrays of [agents, episodes]; on the host there is one agent."""
    if isinstance(trainer, Trainer):
        limit = max_steps or MAX_STEPS
        play = jax.jit(lambda agent, key: _play(trainer, agent, key, episodes, greedy, limit))
        keys = jax.random.split(key, len(agents))
        played = [play(agent, key) for agent, key in zip(agents, keys, strict=True)]
        returns, lengths, ended = (np.stack([np.asarray(p[i]) for p in played]) for i in range(3))
        return evaluation.Played(returns, lengths, ended, {})
    limit = max_steps or MAX_HOST_STEPS
    one = evaluation.play(trainer, agents[0], key, episodes, greedy, limit)
    metrics = one.metrics | dict(trainer.environment.summarise(one.metrics))
    return evaluation.Played(one.returns[None], one.lengths[None], one.ended[None], metrics)


def _choose(
    trainer: Trainer, params: Params, observation: PyTree, core: PyTree, key: Key, greedy: bool
) -> tuple[Array, PyTree]:
    """Actions for a batch of observations, and what the agent remembers from then on."""
    logits, core = trainer.policy(params, observation, core)
    action = jnp.argmax(logits, axis=-1) if greedy else jax.random.categorical(key, logits)
    return action, core


def _play(
    trainer: Trainer, params: Params, key: Key, episodes: int, greedy: bool, max_steps: int
) -> tuple[Array, Array, Array]:
    """One episode in each of `episodes` environments, so that short ones are not favoured.

    Returns:
        returns, lengths, and whether the episode ended by itself, each [episodes].
    """
    environment = trainer.acted
    reset_key, key = jax.random.split(key)
    state, observation = jax.vmap(environment.reset)(jax.random.split(reset_key, episodes))

    def goes_on(carry: tuple) -> Array:
        *_, ended, step = carry
        return ~jnp.all(ended) & (step < max_steps)

    def advance(carry: tuple) -> tuple:
        state, observation, core, total, length, ended, step = carry
        act_key, step_key = jax.random.split(jax.random.fold_in(key, step))
        action, core = _choose(trainer, params, observation, core, act_key, greedy)
        keys = jax.random.split(step_key, episodes)
        state, result = jax.vmap(environment.step)(state, action, keys)
        # An ended episode is stepped on, to no effect on what is counted.
        total = total + jnp.where(ended, 0, result.reward)
        length = length + ~ended
        ended = ended | result.terminated | result.truncated
        return state, result.observation, core, total, length, ended, step + 1

    zeros = jnp.zeros(episodes)
    core = blank_state(trainer.learner.network.state, episodes)
    start = (state, observation, core, zeros, zeros.astype(jnp.int32), zeros.astype(bool), 0)
    *_, total, length, ended, _ = jax.lax.while_loop(goes_on, advance, start)
    return total, length, ended


def _try_to_film(
    path: Path, frames: Callable[[], list[np.ndarray]]
) -> tuple[Path | None, str | None]:
    """The film, or why there is none: that must not cost the episodes that were played."""
    try:
        pictures = frames()
        if not pictures:
            return None, "this environment cannot be drawn"
        return _write_film(path, pictures), None
    except UserError as error:
        return None, str(error)
    except Exception as error:  # whatever an environment's drawing has to say
        return None, f"drawing raised {type(error).__name__}: {error}"


def _frames(
    trainer: Trainer | HostTrainer, params: Params, key: Key, greedy: bool, most: int
) -> list[np.ndarray]:
    if isinstance(trainer, Trainer):
        return _film(trainer, params, key, greedy, most)
    return evaluation.film(trainer, params, key, greedy, most)


def _film(trainer: Trainer, params: Params, key: Key, greedy: bool, most: int) -> list[np.ndarray]:
    """Pictures of one episode; none if the environment cannot be drawn."""
    environment = trainer.acted
    reset_key, key = jax.random.split(key)
    state, observation = environment.reset(reset_key)
    core = blank_state(trainer.learner.network.state, 1)
    step = jax.jit(environment.step)
    choose = jax.jit(lambda p, x, c, k: _choose(trainer, p, x, c, k, greedy))
    frames = []
    for i in range(most):
        picture = environment.render(state)
        if picture is None:
            return []
        frames.append(picture)
        act_key, step_key = jax.random.split(jax.random.fold_in(key, i))
        batch = jax.tree.map(lambda x: x[None], observation)
        action, core = choose(params, batch, core, act_key)
        state, result = step(state, action[0], step_key)
        observation = result.observation
        if result.terminated or result.truncated:
            break
    last = environment.render(state)
    return frames if last is None else [*frames, last]


def _write_film(path: Path, frames: list[np.ndarray]) -> Path:
    from PIL import Image  # only here: few commands draw

    first, *rest = (Image.fromarray(frame) for frame in frames)
    durations = [FRAME_MILLISECONDS] * len(rest) + [LAST_FRAME_MILLISECONDS]
    content = io.BytesIO()
    first.save(content, "GIF", save_all=True, append_images=rest, duration=durations, loop=0)
    with write_errors_reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(content.getvalue()))
    return path
