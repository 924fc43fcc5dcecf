"""Where an agent on the host acts, and how it is followed through a window of updates."""

import dataclasses

import jax
import numpy as np

from discorl.agent.replay import ReplayState
from discorl.discovery.agents import Life
from discorl.discovery.meta_gradient import Update
from discorl.training.host.acting import Rollout
from discorl.training.host.rollout import Episode
from discorl.training.host.trainer import Background, acting_key
from discorl.types import Metrics


@dataclasses.dataclass(frozen=True)
class Places:
    """Where an agent acts in one of its lives."""

    training: Background
    validation: Background

    def close(self) -> None:
        """Ends the environments."""
        self.training.close()
        self.validation.close()


@dataclasses.dataclass
class Window:
    """An agent while it lives on, and what is recorded of it."""

    places: Places
    agent: Life  # without its replay
    replay: ReplayState | None
    updates: list[Update] = dataclasses.field(default_factory=list)
    metrics: list[Metrics] = dataclasses.field(default_factory=list)  # also of updates after it
    episodes: list[Episode] = dataclasses.field(default_factory=list)

    def act(self) -> None:
        """Has the next rollout begun, with the newest parameters."""
        training = self.agent.training
        self.places.training.ask(training.learner.params, acting_key(training.key))

    def act_for_validation(self) -> None:
        """Has the rollout begun on which the agent is judged."""
        _, key = jax.random.split(self.agent.key)
        self.places.validation.ask(self.agent.training.learner.params, key)

    def rollout(self) -> Rollout:
        """The rollout that was asked for."""
        return _result(self.places.training)

    def rollout_for_validation(self) -> Rollout:
        """The rollout on which the agent is judged."""
        return _result(self.places.validation)

    def returns(self) -> dict[str, float]:
        """Metrics of the finished episodes: NaN where there are none."""
        totals = [episode.total for episode in self.episodes]
        lengths = [episode.length for episode in self.episodes]
        return {
            "episodes": float(len(totals)),
            "return": float(np.mean(totals)) if totals else float("nan"),
            "episode_length": float(np.mean(lengths)) if lengths else float("nan"),
        }


def _result(background: Background) -> Rollout:
    rollout = background.wait()
    assert rollout is not None
    return rollout
