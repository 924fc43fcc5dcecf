"""An agent of the population: its life under the current rule, and its meta-gradient."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from discorl.agent import acting, frames
from discorl.agent.acting import ActorState
from discorl.agent.assembly import make_learner
from discorl.agent.config import AgentConfig
from discorl.discovery import meta_critic
from discorl.discovery.config import DiscoverConfig, Group
from discorl.discovery.lives import LoneTask, family_or_task
from discorl.discovery.meta_gradient import MetaGradient, Update
from discorl.discovery.meta_value import MetaValue, MetaValueState
from discorl.envs import HostEnvironment, Reference
from discorl.envs.families import Family
from discorl.rules import Rule
from discorl.runs.metrics import EPISODES, LENGTH, RETURN, SCORE, STEP
from discorl.training.compiled.agent import CompiledAgent
from discorl.training.state import TrainState, scale_rewards
from discorl.types import Array, Key, Metrics, Params, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AgentState:
    """Everything that an agent's life depends on, except for environments on the host."""

    training: TrainState
    meta_value: MetaValueState
    key: Key
    budget: Array  # [] int32, environment steps of this life
    lives: Array  # [] int32, lives ended so far
    task: PyTree = ()  # parameters of its environment; () on the host
    critic: PyTree = ()  # coefficients of the meta-critic, [STAGES, 3]; () without one
    # Returns of random and optimal play in the task, [] each, if agents live in pairs.
    reference: Reference | tuple[()] = ()
    validation: ActorState | None = None  # in the validation environments; None on the host

    def status(self) -> Metrics:
        """Metrics that determine, with the steps so far, whether the life is over."""
        finite = is_finite((self.training.learner, self.meta_value))
        return {"life/budget": self.budget, "life/number": self.lives, "life/finite": finite}

    def score(self, metrics: Metrics) -> Metrics:
        """The return among the metrics as a score, if the task has a reference."""
        if not isinstance(self.reference, Reference):
            return {}
        random, optimal = self.reference
        return {SCORE: (metrics[RETURN] - random) / (optimal - random)}


def critic_of(
    state: AgentState, steps: Array, exact: Callable[[Params], Array] | None = None
) -> meta_critic.Critic | None:
    """The agent's meta-critic after `steps` environment steps of its life; None if it has none."""
    if isinstance(state.critic, tuple):
        return None
    stage = meta_critic.stage_of(steps / state.budget)
    return meta_critic.Critic(state.critic[stage], exact)


def draw_lifetime(key: Key, lifetimes: Sequence[int]) -> Array:
    """Draws one of the lengths, [] int32, with a probability proportional to its inverse."""
    lengths = jnp.array(lifetimes, jnp.int32)
    return lengths[jax.random.categorical(key, -jnp.log(lengths.astype(jnp.float32)))]


def updates_within(agent: AgentConfig, steps: Array) -> Array:
    """Updates that an agent makes in a life of `steps` environment steps, [] int32."""
    return jnp.maximum(1, steps // agent.steps_per_update)


def is_finite(state: PyTree) -> Array:
    """Whether a state is free of NaN and infinity, from which no agent recovers: [] bool."""
    leaves = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))


class BaseAgents:
    """What the agents of a group have in common, compiled or on the host."""

    def __init__(
        self,
        group: Group,
        config: DiscoverConfig,
        rule: Rule,
        tasks: Family | LoneTask | HostEnvironment,
        prepare: Callable[[PyTree], PyTree] | None = None,
    ) -> None:
        self._config, self._agent = config, group.agent
        # For validation rollouts: with other sizes and without replay.
        self._validation_agent = dataclasses.replace(
            group.agent,
            num_envs=config.validation_envs,
            unroll=config.validation_unroll,
            batch=config.validation_envs,
            replay_fraction=0.0,
        )
        self.learner = make_learner(
            group.agent,
            rule,
            tasks.num_actions,
            tasks.observation,
            prepare=prepare,
            mixed_mode=config.mixed_mode,
        )
        self.meta_value = MetaValue(  # with the agent's torso
            frames.stacked(tasks.observation, group.agent.frame_stack),
            hidden=config.value_hidden,
            discount=config.value_discount,
            lambda_=config.value_lambda,
            learning_rate=config.value_learning_rate,
            torso=group.agent.network.torso,
            filters=group.agent.network.filters,
            prepare=prepare,
        )
        self.meta_gradient = MetaGradient(
            self.learner, self.meta_value, config.entropy_cost, group.agent.frame_stack
        )

    def _new_life(
        self, train: Callable[[Array], TrainState], value_key: Key, budget_key: Key, **state: Any
    ) -> AgentState:
        """A life with a budget of experience; `train` makes an agent that lives so many updates."""
        budget = draw_lifetime(budget_key, self._config.lifetimes)
        return AgentState(
            training=train(updates_within(self._agent, budget)),
            meta_value=self.meta_value.init(value_key),
            budget=budget,
            critic=meta_critic.prior(self._config.objective),
            **state,
        )


class Agents(BaseAgents):
    """Pure functions of one agent of a group; callers vmap them."""

    def __init__(self, group: Group, config: DiscoverConfig, rule: Rule) -> None:
        self._tasks = family_or_task(group.env)
        super().__init__(group, config, rule, self._tasks)

    def _learning_agent(self, task: PyTree) -> CompiledAgent:
        return CompiledAgent(self._agent, self._tasks.environment(task), self.learner)

    def _validator(self, task: PyTree) -> CompiledAgent:
        return CompiledAgent(self._validation_agent, self._tasks.environment(task), self.learner)

    def begin(self, key: Key, lives: Array) -> AgentState:
        """A new life: a task, a fresh agent, and a budget of experience."""
        key, task_key, training_key, validation_key, value_key, budget_key = jax.random.split(
            key, 6
        )
        task = self._tasks.sample(task_key, "train")
        return self._new_life(
            lambda lifetime: self._learning_agent(task).init(training_key, lifetime),
            value_key,
            budget_key,
            key=key,
            lives=lives,
            task=task,
            validation=acting.init(
                self._validator(task).stacked_environment,
                validation_key,
                self._config.validation_envs,
                self.learner.network.state,
            ),
            reference=self._tasks.reference(task) if self._config.in_pairs else (),
        )

    def meta_step(self, eta: Params, state: AgentState) -> tuple[Params, AgentState, Metrics]:
        """Makes a window of updates and differentiates it.

        With a stride below the window's length, the life continues from within the window, and the
        rest of it was only a look ahead. With a larger stride, more updates follow the window.
        Metrics are those of the updates that the life keeps.

        The caller checks whether the life is over, from the metrics "life/...", because a new life
        is a large program that is seldom needed.
        """
        window, stride = self._config.window, self._config.updates_per_meta_step
        start = state.training, state.meta_value
        last, records, metrics = self._updates(eta, state.task, start, min(window, stride))
        kept = None
        if stride < window:
            kept = last
            last, rest, _ = self._updates(eta, state.task, kept, window - stride)
            records = _join(records, rest)
        training, meta_value = last
        key, act_key = jax.random.split(state.key)
        assert state.validation is not None
        actor, validation, _ = self._validator(state.task).act(
            training.learner.params, state.validation, act_key
        )
        gradient, meta_value, meta_metrics = self.meta_gradient.differentiate(
            eta,
            records,
            training.learner,
            meta_value,
            scale_rewards(self._agent, validation),  # like the meta-value function's batches
            kept[1] if kept else None,
            self._critic(state, training.steps),
        )
        if kept:
            # With the same random numbers, the next window would mostly see the data that the rule
            # has just been fitted to.
            training = kept[0]
            new_key = jax.random.fold_in(training.key, 0x11FE)
            training = dataclasses.replace(training, key=new_key)
        if stride > window:
            last = training, meta_value
            last, _, more = self._updates(eta, state.task, last, stride - window)
            (training, meta_value), metrics = last, _join(metrics, more)
        new = dataclasses.replace(
            state, training=training, validation=actor, meta_value=meta_value, key=key
        )
        of_life = _average(metrics)
        return gradient, new, meta_metrics | of_life | new.score(of_life) | new.status()

    def _critic(self, state: AgentState, steps: Array) -> meta_critic.Critic | None:
        """The agent's meta-critic after `steps` environment steps of its life."""
        if self._config.objective != "meta_critic":
            return None
        tasks, exact = self._tasks, None
        # A policy with memory or a frame stack is not a function of the current state.
        sees_all = not self.learner.network.state and self._agent.frame_stack == 1
        if isinstance(tasks, Family) and sees_all:
            exact = meta_critic.exact_returns(
                tasks, state.task, lambda params, seen: self.learner.policy(params, seen)[0]
            )
        return critic_of(state, steps, exact)

    def _updates(
        self, eta: Params, task: PyTree, start: tuple[TrainState, MetaValueState], count: int
    ) -> tuple[tuple[TrainState, MetaValueState], Update, Metrics]:
        """Makes updates; returns the new state, and a record and metrics of each, [count, ...]."""
        agent = self._learning_agent(task)

        def update(carry: tuple, _: None) -> tuple[tuple, tuple[Update, Metrics]]:
            training, meta_value = carry
            training, batch, episodes = agent.collect(training)
            record = Update(training.learner, batch)
            learner, meta_value, metrics = self.meta_gradient.update(
                training.learner, meta_value, eta, batch
            )
            training = dataclasses.replace(training, learner=learner)
            return (training, meta_value), (record, metrics | episodes)

        last, (records, metrics) = jax.lax.scan(update, start, length=count)
        return last, records, metrics


def _join(one: PyTree, two: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), one, two)


def _average(metrics: Metrics) -> dict[str, Any]:
    """Metrics of a window from those of its updates, [N] each."""
    episodes = metrics[EPISODES]
    total = jnp.sum(episodes)
    means = {name: jnp.mean(value) for name, value in metrics.items()}
    for name in (RETURN, LENGTH):
        # NaN if no episode ended; updates without one are ignored.
        means[name] = jnp.nansum(metrics[name] * episodes) / total
    del means[STEP]
    return means | {EPISODES: total, "life/steps": metrics[STEP][-1]}
