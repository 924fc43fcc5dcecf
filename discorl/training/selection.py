"""Evaluation during training, and the best agents that it finds."""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from discorl.runs import processes
from discorl.runs.metrics import BEST_RETURN, EPISODES, LENGTH, RETURN, STEP
from discorl.training.config import TrainConfig
from discorl.training.state import TrainState
from discorl.training.trainer import Trainer
from discorl.types import Array, Params, UserError

_KEY = 0xBE57  # makes keys independent of training and of `discorl.evaluate`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Best:
    """The parameters of each seed's agent when it was evaluated best."""

    params: Params  # like the learner's: with several seeds, every leaf has a leading axis
    mean_return: Array  # [seeds] float32, of that evaluation; -inf before the first
    update: Array  # [seeds] int32, of that evaluation

    @classmethod
    def none_yet(cls, params: Params, seeds: int) -> Self:
        """The value before the first evaluation."""
        nothing = jnp.full(seeds, -jnp.inf, jnp.float32)
        return cls(jax.tree.map(jnp.copy, params), nothing, jnp.zeros(seeds, jnp.int32))

    def or_better(self, params: Params, mean_return: np.ndarray, update: int) -> Self:
        """Replaces the agents whose return, [seeds], is now higher."""
        new = jnp.asarray(mean_return, jnp.float32)
        higher = new > self.mean_return

        def choose(now: Array, before: Array) -> Array:
            # `where` copies, as it must: the learner's buffers are donated to the next update.
            several = len(higher) > 1
            mask = higher.reshape(-1, *[1] * (now.ndim - 1)) if several else higher[0]
            return jnp.where(mask, now, before)

        return dataclasses.replace(
            self,
            params=jax.tree.map(choose, params, self.params),
            mean_return=jnp.where(higher, new, self.mean_return),
            update=jnp.where(higher, update, self.update),
        )

    def agents(self, whose: str = "the run") -> tuple[int, Params]:
        """The largest update of these agents, and the parameters of all.

        Raises:
            UserError: no evaluation has been made yet.
        """
        if not jnp.isfinite(self.mean_return).all():
            raise UserError(f"{whose} has no best agent yet: no evaluation has been made")
        return int(self.update.max()), self.params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Checkpoint(TrainState):
    """The content of a checkpoint: the state of training and the best agents so far."""

    best: Best | None  # None: the run does not evaluate

    @classmethod
    def of(cls, state: TrainState, best: Best | None) -> Self:
        return cls(**vars(state), best=best)

    @classmethod
    def template(cls, state: TrainState, config: TrainConfig) -> Self:
        """Shapes and dtypes of a run's checkpoints, given those of its state."""
        best = None
        if config.eval_every:
            best = jax.eval_shape(lambda x: Best.none_yet(x, config.seeds), state.learner.params)
        return cls.of(state, best)

    @property
    def state(self) -> TrainState:
        return TrainState(**{name: x for name, x in vars(self).items() if name != "best"})


def evaluate(
    trainer: Trainer, state: TrainState, update: int, best: Best
) -> tuple[Best, list[dict[str, float]]]:
    """Evaluates the current agents; returns the best so far and a row of metrics per seed.

    The episodes depend only on the seed and the update, so a resumed run plays the same ones.
    """
    config = trainer.config
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), _KEY), update)
    params, reached = processes.gather((state.learner.params, state.steps))
    played = trainer.play(params, key, episodes=config.eval_episodes)
    returns = played.returns.mean(axis=1)
    best = best.or_better(params, returns, update)
    steps = np.broadcast_to(reached, config.seeds)
    rows = [
        {
            "update": update,
            "seed": config.seed + i,
            STEP: int(steps[i]),
            EPISODES: played.returns.shape[1],
            RETURN: float(returns[i]),
            LENGTH: float(played.lengths[i].mean()),
            BEST_RETURN: float(best.mean_return[i]),
        }
        for i in range(config.seeds)
    ]
    return best, rows
