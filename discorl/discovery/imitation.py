"""A start for discovery: a new meta-network that says what a teacher would.

From scratch a discovery has to find out first that a policy should move towards actions of high
value. Here agents of the population learn by a teacher's policy target, Muesli's or a lean rule's,
and the meta-network learns to predict that target from what it sees of them.
"""

import dataclasses

import jax
import jax.numpy as jnp

from discorl.agent import frames
from discorl.discovery.agents import Agents, AgentState
from discorl.discovery.config import DiscoverConfig
from discorl.discovery.population import Population
from discorl.discovery.teachers import Teacher
from discorl.rules import Disco, returns
from discorl.rules.disco import DiscoState, Targets
from discorl.runs import processes
from discorl.runs.interrupts import interrupts
from discorl.runs.progress import Progress
from discorl.types import Array, Key, Metrics, Outputs, Params, PyTree, Trajectory, UserError

LEARNING_RATE = 1e-2
EMA = 0.99


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ImitatedState(DiscoState):
    """What the rule and its teacher remember of an agent's life."""

    teacher: PyTree

    @classmethod
    def of(cls, rule: DiscoState, teacher: PyTree) -> "ImitatedState":
        """Both states together."""
        return cls(rule.meta_rnn, rule.adv_moments, rule.td_moments, teacher)


@dataclasses.dataclass(frozen=True)
class Imitated(Disco):
    """The Disco rule with a teacher's policy target; a metric says how far its own one is."""

    teacher: Teacher = dataclasses.field(default_factory=Teacher)

    def init_state(self, lifetime: Array) -> ImitatedState:
        return ImitatedState.of(super().init_state(lifetime), self.teacher.init_state(lifetime))

    def targets(
        self,
        eta: Params,
        state: DiscoState,
        trajectory: Trajectory,
        online: Outputs,
        target: Outputs,
    ) -> tuple[Targets, ImitatedState, Metrics]:
        assert isinstance(state, ImitatedState)
        targets, new, metrics = super().targets(eta, state, trajectory, online, target)
        taught, teacher = jax.lax.stop_gradient(
            self.teacher.policy(state.teacher, trajectory, online, target, targets.q, self.discount)
        )
        weight = (~trajectory.fillers()).astype(targets.pi.dtype)
        distance = returns.categorical_kl(taught, targets.pi)
        metrics |= {"imitation": returns.weighted_mean(distance, weight)}
        return dataclasses.replace(targets, pi=taught), ImitatedState.of(new, teacher), metrics


class Imitators(Agents):
    """Agents that learn by a teacher's target, and say how the meta-network comes nearer."""

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


def imitate(config: DiscoverConfig, rule: Disco, eta: Params, key: Key, teacher: Teacher) -> Params:
    """Parameters to start from, with which a meta-network makes a teacher's policy target.

    It learns from the agents of the discovery to come, all in JAX.
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
    population = Population(config, Imitated(**fields, teacher=teacher), agents=Imitators)
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
