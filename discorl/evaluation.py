"""Playing trained agents: returns with their uncertainty, and a film of an episode."""

import dataclasses
import io
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from discorl import compilation, host_evaluation
from discorl.envs import Environment
from discorl.envs.host import HostEnvironment
from discorl.files import write_atomically, write_errors_reported
from discorl.networks.recurrence import blank_state
from discorl.runs import Run
from discorl.trainers import Trainer
from discorl.training import NetworkFactory, initial_state, reopen
from discorl.types import Array, Key, Params, PyTree, UserError

MAX_STEPS = 10_000  # after which an episode without an end is counted as it stands
# On the host likewise, where games are long: 30 minutes of Atari are 27,000 steps.
MAX_HOST_STEPS = 100_000
MAX_FRAMES = 1_000  # of a film
FRAME_MILLISECONDS = 120
LAST_FRAME_MILLISECONDS = 900
RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Episodes that a trained agent played."""

    update: int  # updates that the agent had learned from
    seeds: list[int]
    returns: np.ndarray  # [seeds, episodes]
    lengths: np.ndarray  # [seeds, episodes]
    unfinished: int  # episodes stopped at the limit on steps
    film: Path | None

    def summary(self) -> dict[str, float | int | list[float]]:
        """Mean return with a 95% bootstrap interval over episodes."""
        low, high = mean_interval(self.returns.ravel())
        return {
            "update": self.update,
            "episodes": self.returns.size,
            "mean_return": float(self.returns.mean()),
            "low": low,
            "high": high,
            "mean_length": float(self.lengths.mean()),
            "unfinished": self.unfinished,
            "mean_return_by_seed": self.returns.mean(axis=1).tolist(),
        }


def mean_interval(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean."""
    generator = np.random.default_rng(0)
    # One resample at a time: all at once would be gigabytes for many episodes.
    means = [generator.choice(values, values.size).mean() for _ in range(RESAMPLES)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def evaluate(
    path: str | os.PathLike[str],
    *,
    episodes: int = 100,
    seed: int = 0,
    greedy: bool = False,
    film: str | os.PathLike[str] | None = None,
    environment: Environment | HostEnvironment | None = None,
    network: NetworkFactory | None = None,
) -> Evaluation:
    """Plays the newest agent of a training run.

    Args:
        path: the run directory.
        episodes: how many episodes each agent plays.
        seed: seed of the episodes, unrelated to those of training.
        greedy: take the likeliest action instead of a sample from the policy.
        film: where to write a GIF of an episode, if the environment can be drawn.
        environment: the environment, if the run was given one of its own.
        network: the network, likewise.
    """
    if episodes < 1:
        raise UserError(f"episodes is {episodes}; expected at least 1")
    compilation.enable_cache()
    with Run.open(path, read_only=True) as run:
        trainer, _ = reopen(run, environment, network)
        restored = run.restore(jax.eval_shape(lambda: initial_state(trainer)))
    if restored is None:
        raise UserError(f"{path} has no checkpoint yet: there is no agent to evaluate")
    config = trainer.config
    update, state = restored
    params = jax.tree.map(jnp.asarray, state.learner.params)
    if config.seeds == 1:
        params = jax.tree.map(lambda x: x[None], params)
    # Far from the keys of training, which come from small integers.
    key = jax.random.fold_in(jax.random.key(seed), 0xE7A1)
    play_key, film_key = jax.random.split(key)
    agents = [jax.tree.map(lambda x, i=i: x[i], params) for i in range(config.seeds)]
    if isinstance(trainer, Trainer):
        play = jax.jit(lambda agent, key: _play(trainer, agent, key, episodes, greedy))
        keys = jax.random.split(play_key, config.seeds)
        played = [play(agent, key) for agent, key in zip(agents, keys, strict=True)]
    else:
        played = [
            host_evaluation.play(trainer, agents[0], play_key, episodes, greedy, MAX_HOST_STEPS)
        ]
    returns, lengths, ended = (np.stack([np.asarray(p[i]) for p in played]) for i in range(3))
    filmed = None
    if film is not None:
        if isinstance(trainer, Trainer):
            frames = _film(trainer, agents[0], film_key, greedy)
        else:
            frames = host_evaluation.film(trainer, agents[0], film_key, greedy, MAX_FRAMES)
        filmed = _write_film(Path(film), frames) if frames else None
    seeds = list(range(config.seed, config.seed + config.seeds))
    return Evaluation(update, seeds, returns, lengths, int((~ended).sum()), filmed)


def _choose(
    trainer: Trainer, params: Params, observation: PyTree, core: PyTree, key: Key, greedy: bool
) -> tuple[Array, PyTree]:
    """Actions for a batch of observations, and what the agent remembers from then on."""
    logits, core = trainer.policy(params, observation, core)
    action = jnp.argmax(logits, axis=-1) if greedy else jax.random.categorical(key, logits)
    return action, core


def _play(
    trainer: Trainer, params: Params, key: Key, episodes: int, greedy: bool
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
        return ~jnp.all(ended) & (step < MAX_STEPS)

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


def _film(trainer: Trainer, params: Params, key: Key, greedy: bool) -> list[np.ndarray]:
    """Pictures of one episode; none if the environment cannot be drawn."""
    environment = trainer.acted
    reset_key, key = jax.random.split(key)
    state, observation = environment.reset(reset_key)
    core = blank_state(trainer.learner.network.state, 1)
    step = jax.jit(environment.step)
    choose = jax.jit(lambda p, x, c, k: _choose(trainer, p, x, c, k, greedy))
    frames = []
    for i in range(MAX_FRAMES):
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
