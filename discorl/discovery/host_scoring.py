"""Scoring a rule in environments on the host."""

import contextlib

import jax
import numpy as np

from discorl.agent.assembly import make_learner
from discorl.agent.config import AgentConfig
from discorl.envs.host import HostEnvironment
from discorl.rules import Rule
from discorl.runs.metrics import EPISODES, RETURN
from discorl.training.host.actor_thread import ActorThread
from discorl.training.host.agent import HostAgent, acting_key
from discorl.training.host.rollout import mean_episode
from discorl.training.state import TrainState
from discorl.types import Key, Params, PyTree

_ENVIRONMENTS = 0xE2F  # makes the seeds of environments independent of the agent's keys


class HostScoring:
    """Training from scratch in one environment, compiled once.

    An agent acts with its newest parameters, as in discovery. While one learns, the others act in
    threads.
    """

    def __init__(self, agent: AgentConfig, environment: HostEnvironment, rule: Rule) -> None:
        learner = make_learner(
            agent,
            rule,
            environment.num_actions,
            environment.observation,
            prepare=environment.prepare,
        )
        self._agent = HostAgent(agent, environment, learner)
        self._actor = self._agent.actor(0)
        self._begin = jax.jit(self._agent.init)
        self._learn = jax.jit(self._agent.learn, donate_argnums=0)

    def run(self, task: PyTree, keys: Key, eta: Params, updates: int) -> dict[str, np.ndarray]:
        """Trains an agent for each key, [S], which also seeds its environments.

        The task is (). Returns mean returns and numbers of finished episodes, [S, updates].
        """
        agents = [self._begin(key, updates) for key in keys]
        table = {name: np.zeros((len(agents), updates)) for name in (RETURN, EPISODES)}
        actors: list[ActorThread] = []
        with contextlib.ExitStack() as stack:
            for key, agent in zip(keys, agents, strict=True):
                seed = int(jax.random.bits(jax.random.fold_in(key, _ENVIRONMENTS)))
                actors.append(ActorThread(self._actor.with_seed(seed), agent.learner.params))
                stack.callback(actors[-1].close)
            for actor, agent in zip(actors, agents, strict=True):
                actor.wait_for_start()
                _ask(actor, agent)
            for update in range(updates):
                for i, actor in enumerate(actors):
                    rollout, old = actor.wait(), agents[i]
                    replay, learner, key, _ = self._learn(
                        old.replay, rollout.trajectory, old.learner, old.key, eta
                    )
                    agents[i] = TrainState(learner, None, replay, key, old.steps)
                    if update + 1 < updates:
                        _ask(actor, agents[i])
                    table[EPISODES][i, update] = len(rollout.episodes)
                    table[RETURN][i, update] = mean_episode(rollout.episodes)[RETURN]
        return table


def _ask(actor: ActorThread, agent: TrainState) -> None:
    actor.ask(agent.learner.params, acting_key(agent.key))
