"""A start for discovery: a new meta-network that says what Muesli's rule would.

From scratch a discovery has to find out first that a policy should move towards actions of high
value. Here agents of the population learn by a policy target made by hand, and the meta-network
learns to predict that target from what it sees of them.
"""

import dataclasses

import jax
import jax.numpy as jnp

from discorl.agent import frames
from discorl.discovery.agents import Agents, AgentState
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.population import Population
from discorl.rules import Disco, returns
from discorl.rules.disco import DiscoState, Targets
from discorl.rules.regularisers import improved_policy
from discorl.runs import processes
from discorl.runs.interrupts import interrupts
from discorl.runs.progress import Progress
from discorl.types import Array, Key, Metrics, Outputs, Params, Trajectory, UserError

CLIP = 1.0  # of the advantages, as in Muesli
LEARNING_RATE = 1e-2
EMA = 0.99


@dataclasses.dataclass(frozen=True)
class Imitated(Disco):
    """The Disco rule with a policy target made by hand; a metric says how far the own one is."""

    def targets(
        self,
        eta: Params,
        state: DiscoState,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
    ) -> tuple[Targets, DiscoState, Metrics]:
        targets, state, metrics = super().targets(eta, state, trajectory, online, target)
        weight = (~trajectory.fillers()).astype(targets.pi.dtype)
        made_by_hand = jax.lax.stop_gradient(
            improved_policy(trajectory, online, target, targets.q, CLIP)
        )
        distance = returns.categorical_kl(made_by_hand, targets.pi)
        metrics |= {"imitation": returns.weighted_mean(distance, weight)}
        return dataclasses.replace(targets, pi=made_by_hand), state, metrics


class Imitators(Agents):
    """Agents that learn by a target made by hand, and say how the meta-network comes nearer."""

    def meta_step(self, eta: Params, state: AgentState) -> tuple[Params, AgentState, Metrics]:
        """Lives on for one update; the gradient is that of the distance between the targets."""
        agent = self._learning_agent(state.task)
        training, batch, episodes = agent.collect(state.training)
        batch = frames.with_stacks(batch, agent.config.frame_stack)

        def distance(eta: Params) -> tuple[Array, tuple]:
            learner, metrics = self.learner.update(training.learner, eta, batch)
            return metrics["rule/imitation"], (learner, metrics)

        gradient, (learner, metrics) = jax.grad(distance, has_aux=True)(eta)
        new = dataclasses.replace(state, training=dataclasses.replace(training, learner=learner))
        steps = {"life/steps": training.steps}
        return gradient, new, metrics | episodes | steps | new.status()


def imitate(config: DiscoverConfig, rule: Disco, eta: Params, key: Key) -> Params:
    """Parameters to start from, with which a meta-network makes Muesli's policy target.

    It is taught by the agents of the discovery to come, all in JAX.
    """
    fields = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    config = dataclasses.replace(
        config,
        meta_steps=config.imitation_steps,
        meta_learning_rate=LEARNING_RATE,
        meta_schedule="cosine",
        ema=EMA,
        objective="actor_critic",
        method="meta_gradient",
    )
    population = Population(config, Imitated(**fields), agents=Imitators)
    state = population.init(eta, key)
    with (
        Progress(config.meta_steps, "steps of imitation") as progress,
        interrupts() as interrupted,
    ):
        for step in range(config.meta_steps):
            if any(processes.exchange(interrupted())):
                raise UserError("stopped during the imitation, which a resumed run starts over")
            state, _, by_agent = population.meta_step(state)
            progress.update(step + 1, {"distance": float(jnp.mean(by_agent["rule/imitation"]))})
    return state.eta_ema
