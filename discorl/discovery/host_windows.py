"""The actors of an agent on the host, and its state during a window of updates."""

import dataclasses

import jax

from discorl.agent.replay import ReplayState
from discorl.discovery.agents import AgentState
from discorl.discovery.meta_gradient import Update
from discorl.runs.metrics import EPISODES
from discorl.training.host.actor_thread import ActorThread
from discorl.training.host.agent import acting_key
from discorl.training.host.rollout import Episode, mean_episode
from discorl.types import Metrics


@dataclasses.dataclass(frozen=True)
class Actors:
    """The actors of an agent in one of its lives."""

    training: ActorThread
    validation: ActorThread

    def close(self) -> None:
        self.training.close()
        self.validation.close()


@dataclasses.dataclass
class Window:
    """An agent during a meta-step, and its records."""

    actors: Actors
    agent: AgentState  # without its replay
    replay: ReplayState | None
    updates: list[Update] = dataclasses.field(default_factory=list)
    metrics: list[Metrics] = dataclasses.field(default_factory=list)  # also of updates after it
    episodes: list[Episode] = dataclasses.field(default_factory=list)

    def act(self) -> None:
        """Requests the next rollout, with the newest parameters."""
        training = self.agent.training
        self.actors.training.ask(training.learner.params, acting_key(training.key))

    def act_for_validation(self) -> None:
        """Requests the validation rollout."""
        _, key = jax.random.split(self.agent.key)
        self.actors.validation.ask(self.agent.training.learner.params, key)

    def returns(self) -> dict[str, float]:
        """Metrics of the finished episodes; NaN if there are none."""
        return {EPISODES: float(len(self.episodes)), **mean_episode(self.episodes)}
