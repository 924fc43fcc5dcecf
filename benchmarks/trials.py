"""Trials: rules compared by the whole lives of fresh agents, paired by task and key."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl import rules
from discorl.agent.config import AgentConfig
from discorl.discovery.lives import Lives, family_or_task
from discorl.discovery.strategy import LEAST_SCORE, MOST_SCORE
from discorl.envs.families import Family, Split
from discorl.types import PyTree, settings

# Small agents, on which lives are cheap.
SMALL_AGENT: Mapping[str, Any] = {
    "hidden": (32, 32),
    "num_envs": 4,
    "unroll": 16,
    "batch": 16,
    "replay": 256,
    "replay_fraction": 0.75,
    "learning_rate": 1e-2,
    "adam_epsilon": 1e-5,
    "max_gradient_norm": 1.0,
}
LAST = 0.1  # share of a life, at its end, that counts
RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Contender:
    """A rule and the agents that learn by it."""

    rule: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # in place of the small's

    @property
    def agent(self) -> AgentConfig:
        """The agents."""
        return settings.build(AgentConfig, {**SMALL_AGENT, **self.settings})

    def updates(self, steps: int) -> int:
        """Updates of a life of so many environment steps."""
        return max(1, round(steps / self.agent.steps_per_update))


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Members of a family by their seeds, each lived in once; or lives in one environment."""

    family: str
    seeds: Sequence[int]
    split: Split

    @property
    def keys(self) -> tuple[jax.Array, jax.Array]:
        """Keys of the members, as `Family.member` has them, and of the lives: [N] each."""
        members = jnp.stack([jax.random.key(seed) for seed in self.seeds])
        return members, jax.vmap(lambda key: jax.random.fold_in(key, 1))(members)


class Trials:
    """Lets contenders live, and keeps their compiled programs: settings that are data share one."""

    def __init__(self, size: int = 32) -> None:
        self._size = size
        self._lives: dict[Any, Lives] = {}

    def scores(self, contender: Contender, tasks: Tasks, steps: int) -> dict[str, np.ndarray]:
        """Scores of a contender's lives, 0 for random and 1 for optimal play.

        "end" is the last tenth of each life and "area" the mean over it, [N] each; "curve" has
        every twentieth, [N, 20], NaN where no episode ended.
        """
        rule, eta = rules.load(contender.rule, discount=contender.agent.discount)
        lives = self._of(contender, rule, tasks.family)
        member_keys, life_keys = tasks.keys
        members = lives.tasks(member_keys, tasks.split)
        count = len(tasks.seeds)
        record = lives.run(
            lives.repeat(eta, count),
            members,
            life_keys,
            contender.agent.optimiser.learning_rate,
            contender.updates(steps),
        )
        parts = {"end": record.end(LAST), "area": record.area()}
        # A life in which no episode ends has earned nothing that is known of.
        scores = {n: np.nan_to_num(self._clipped(lives, members, p)) for n, p in parts.items()}
        bins = [self._clipped(lives, members, part) for part in record.curve().T]
        return scores | {"curve": np.stack(bins, axis=1)}

    def _of(self, contender: Contender, rule: rules.Rule, family: str) -> Lives:
        agent = settings.replace(contender.agent, learning_rate=1.0)
        key = family, rule, agent
        if key not in self._lives:
            self._lives[key] = Lives(family_or_task(family), agent, rule, size=self._size)
        return self._lives[key]

    def _clipped(self, lives: Lives, members: PyTree, returns: np.ndarray) -> np.ndarray:
        scores = lives.normalise(members, returns)
        scaled = isinstance(lives.family, Family)
        return np.clip(scores, LEAST_SCORE, MOST_SCORE) if scaled else scores


@dataclasses.dataclass(frozen=True)
class Difference:
    """A mean paired difference and its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def difference(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], seed: int = 0
) -> Difference:
    """The mean over families of first minus second, scores [N] by family, paired by task.

    The interval is a bootstrap over the tasks of each family; families are as they are.
    """
    generator = np.random.default_rng(seed)
    paired = [np.asarray(first[family]) - np.asarray(second[family]) for family in first]
    resampled = np.mean(
        [
            d[generator.integers(len(d), size=(RESAMPLES, len(d)))].mean(axis=1, dtype=float)
            for d in paired
        ],
        axis=0,
    )
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Difference(float(np.mean([d.mean() for d in paired])), float(low), float(high))
