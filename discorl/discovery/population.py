"""The population: many agents under one rule, and how their meta-gradients move it."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discorl.discovery.agents import Agents, AgentState
from discorl.discovery.config import DiscoverConfig
from discorl.optimisation import Optimisation
from discorl.rules import Disco
from discorl.types import Array, Key, Metrics, Params, PyTree

Columns = dict[str, np.ndarray]  # metrics on the host


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PopulationState:
    """All that discovery depends on from one meta-step to the next."""

    eta: Params
    average: Params  # of eta over the meta-steps; what discovery hands out
    groups: tuple[AgentState, ...]  # every leaf [agents of the group, ...]
    optimizers: PyTree  # with one Adam an agent, every leaf [agents, ...]
    dropped: Array  # [agents] int32, meta-gradients left out so far


class Population:
    """Compiled programs of a population; its methods are pure."""

    def __init__(self, config: DiscoverConfig, rule: Disco, agents: type[Agents] = Agents) -> None:
        self.config = config
        described = config.groups()
        self.counts = [group.count for group in described]
        self.groups = [agents(group, config, rule) for group in described]
        self._adam = Optimisation(
            learning_rate=config.meta_learning_rate,
            schedule=config.meta_schedule,
            steps=config.meta_steps,
        ).optimizer()
        # One program a group begins the lives of its agents, the first and all later ones.
        self._begins = [jax.jit(group.begin) for group in self.groups]
        self._steps = [
            jax.jit(jax.vmap(group.meta_step, in_axes=(None, 0)), donate_argnums=1)
            for group in self.groups
        ]
        self._move = jax.jit(self.combine, donate_argnums=1)
        self._average = jax.jit(
            lambda average, eta: optax.incremental_update(eta, average, 1 - config.average)
        )
        self._place = jax.jit(_place, donate_argnums=0)

    def init(self, eta: Params, key: Key) -> PopulationState:
        """A population of agents at the beginning of their first lives."""
        states = []
        for i, (begin, count) in enumerate(zip(self._begins, self.counts, strict=True)):
            keys = jax.random.split(jax.random.fold_in(key, i), count)
            agents = [begin(key, jnp.int32(0)) for key in keys]
            states.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *agents))
        total = sum(self.counts)
        optimizer = self._adam.init(eta)
        if self.config.per_agent_adam:
            optimizer = jax.tree.map(lambda x: jnp.stack([x] * total), optimizer)
        return PopulationState(eta, eta, tuple(states), optimizer, jnp.zeros(total, jnp.int32))

    def meta_step(self, state: PopulationState) -> tuple[PopulationState, Columns, Columns]:
        """Every agent lives on for a window; the rule moves; those whose life is over begin anew.

        Args:
            state: the population; its arrays are used up.

        Returns:
            the new state; metrics of the whole; metrics of each agent, [agents].
        """
        gradients, groups, metrics = [], [], []
        for step, agents in zip(self._steps, state.groups, strict=True):
            gradient, agents, group_metrics = step(state.eta, agents)
            gradients.append(gradient)
            groups.append(agents)
            metrics.append(group_metrics)
        stacked = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *gradients)
        eta, optimizers, dropped, whole, norms = self._move(
            state.eta, state.optimizers, state.dropped, stacked
        )
        by_agent = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *metrics)
        by_agent |= {"meta/gradient_norm": norms, "dropped": dropped}
        average = self._average(state.average, eta)
        state = PopulationState(eta, average, tuple(groups), optimizers, dropped)
        whole, by_agent = jax.device_get((whole, by_agent))
        over = np.flatnonzero(by_agent["steps"] >= by_agent["budget"])
        return self.restart(state, over.tolist()), whole, by_agent

    def restart(self, state: PopulationState, agents: Sequence[int]) -> PopulationState:
        """Lets agents begin a new life; nothing is left of the old one but their meta-Adam.

        Args:
            state: the population; the arrays of the agents' groups are used up.
            agents: their numbers, counted through all groups.
        """
        groups = list(state.groups)
        places = [(g, i) for g, count in enumerate(self.counts) for i in range(count)]
        for agent in agents:
            group, i = places[agent]
            old = groups[group]
            fresh = self._begins[group](old.key[i], old.lives[i] + 1)
            groups[group] = self._place(old, fresh, i)
        return dataclasses.replace(state, groups=tuple(groups))

    def combine(
        self, eta: Params, optimizers: PyTree, dropped: Array, gradients: Params
    ) -> tuple[Params, PyTree, Array, Metrics, Array]:
        """Moves the rule by the agents' meta-gradients, every leaf [agents, ...].

        A meta-gradient that is not finite, or too large, is left out: it changes neither the rule
        nor its agent's Adam.

        Args:
            eta: the rule's parameters.
            optimizers: state of the Adams, or of the only one.
            dropped: [agents], meta-gradients left out so far.
            gradients: the meta-gradients.

        Returns:
            the moved parameters; the Adams; the count of those left out; metrics of the whole;
            the norm of each meta-gradient, [agents].
        """
        norms = jax.vmap(optax.tree.norm)(gradients)
        kept = jnp.isfinite(norms) & (norms <= self.config.max_meta_gradient)

        def masked(x: Array) -> Array:
            return jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, 0)

        gradients = jax.tree.map(masked, gradients)
        count = jnp.maximum(1, jnp.sum(kept))
        if self.config.per_agent_adam:
            updates, moved = jax.vmap(lambda g, o: self._adam.update(g, o))(gradients, optimizers)

            def choose(x: Array, y: Array) -> Array:
                return jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, y)

            optimizers = jax.tree.map(choose, moved, optimizers)
            update = jax.tree.map(lambda u: jnp.sum(masked(u), axis=0) / count, updates)
        else:
            mean = jax.tree.map(lambda g: jnp.sum(g, axis=0) / count, gradients)
            update, optimizers = self._adam.update(mean, optimizers)
        whole = {
            "gradient_cosine": _mean_cosine(gradients, jnp.where(kept, norms, 0)),
            "eta_norm": optax.tree.norm(eta),
            "eta_update_norm": optax.tree.norm(update),
            "kept": jnp.sum(kept),
        }
        dropped = dropped + ~kept
        return optax.apply_updates(eta, update), optimizers, dropped, whole, norms


def _place(group: AgentState, agent: AgentState, i: Array) -> AgentState:
    """Writes one agent into its group."""
    return jax.tree.map(lambda slots, new: slots.at[i].set(new), group, agent)


def _mean_cosine(gradients: Params, norms: Array) -> Array:
    """Mean cosine between the meta-gradients of two agents; NaN if there are not two."""
    scale = jnp.where(norms > 0, 1 / jnp.where(norms > 0, norms, 1), 0)
    total = jax.tree.map(lambda g: jnp.tensordot(scale, g, axes=1), gradients)
    count = jnp.sum(norms > 0)
    return (optax.tree.norm(total) ** 2 - count) / (count * (count - 1))
