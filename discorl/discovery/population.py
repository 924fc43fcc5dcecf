"""The population: many agents under one rule, and how their meta-gradients move it."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discorl import envs
from discorl.agent.config import OptimiserConfig
from discorl.agent.optimiser import make_optimiser
from discorl.discovery.agents import Agents, AgentState
from discorl.discovery.config import DiscoverConfig, Group
from discorl.discovery.host_agents import HostAgents
from discorl.envs import HostEnvironment
from discorl.rules import Rule
from discorl.training.assembly import check_environment
from discorl.types import Array, Key, Metrics, Params, PyTree, specs

Columns = dict[str, np.ndarray]  # metrics on the host


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PopulationState:
    """All that discovery depends on from one meta-step to the next."""

    eta: Params
    eta_ema: Params  # moving average of eta over the meta-steps: what discovery hands out
    # Compiled groups: an AgentState, every leaf [agents of the group, ...]; on the host: a tuple of
    # one AgentState for each agent.
    groups: tuple[PyTree, ...]
    optimizers: PyTree  # with one Adam an agent, every leaf [agents, ...]
    dropped: Array  # [agents] int32, meta-gradients left out so far


class AgentGroup(Protocol):
    """Agents of one shape; how they are stepped is their own affair."""

    on_host: bool  # whether environments may fail

    def begin(self, key: Key, lives: Array) -> Any:
        """One agent at the beginning of a life, after so many others."""

    def init(self, keys: Key) -> Any:
        """Agents at the beginning of their first lives, one for each key."""

    def meta_step(self, eta: Params, state: Any) -> tuple[Params, Any, Metrics]:
        """Every agent lives on for a window, which is then differentiated.

        The state is used up, unless the group is on the host. Meta-gradients have leaves [agents,
        ...], metrics are [agents] each.

        Raises:
            EnvironmentFailure: an environment on the host failed; the state is as it was.
        """

    def restart(self, state: Any, i: int) -> Any:
        """Lets one agent begin a new life; the state is used up."""

    def close(self) -> None:
        """Lets go of environments on the host; another meta-step would start new ones."""


class _CompiledAgents:
    """A group whose environments are written in JAX: one program lives and differentiates."""

    on_host = False

    def __init__(self, agents: Agents) -> None:
        # One program begins the lives of all agents, the first and all later ones.
        self._begin = jax.jit(agents.begin)
        self._step = jax.jit(jax.vmap(agents.meta_step, in_axes=(None, 0)), donate_argnums=1)
        self._place = jax.jit(_place, donate_argnums=0)

    def begin(self, key: Key, lives: Array) -> AgentState:
        """See `AgentGroup`."""
        return self._begin(key, lives)

    def init(self, keys: Key) -> AgentState:
        """See `AgentGroup`."""
        agents = [self.begin(key, jnp.int32(0)) for key in keys]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *agents)

    def meta_step(self, eta: Params, state: AgentState) -> tuple[Params, AgentState, Metrics]:
        """See `AgentGroup`."""
        return self._step(eta, state)

    def restart(self, state: AgentState, i: int) -> AgentState:
        """See `AgentGroup`."""
        return self._place(state, self.begin(state.key[i], state.lives[i] + 1), i)

    def close(self) -> None:
        """Holds nothing."""
        return


def _make_group(
    group: Group, config: DiscoverConfig, rule: Rule, number: int, agents: type[Agents]
) -> AgentGroup:
    if specs.parse(group.env).name not in envs.REGISTRY:
        environment = envs.make(group.env)
        check_environment(environment, group.env)
        if isinstance(environment, HostEnvironment):
            return HostAgents(group, config, rule, environment, number)
    return _CompiledAgents(agents(group, config, rule))


class Population:
    """Compiled programs of a population; its methods are pure but for environments on the host."""

    def __init__(self, config: DiscoverConfig, rule: Rule, agents: type[Agents] = Agents) -> None:
        self.config = config
        described = config.groups()
        self.counts = [group.count for group in described]
        self.groups = [
            _make_group(group, config, rule, i, agents) for i, group in enumerate(described)
        ]
        self.host_environments = [
            described[i].env for i, group in enumerate(self.groups) if group.on_host
        ]
        self._adam = make_optimiser(
            OptimiserConfig(learning_rate=config.meta_learning_rate, schedule=config.meta_schedule),
            steps=config.meta_steps,
        )
        self._move = jax.jit(self.combine, donate_argnums=1)
        self._update_ema = jax.jit(
            lambda ema, eta: optax.incremental_update(eta, ema, 1 - config.ema)
        )

    def init(self, eta: Params, key: Key) -> PopulationState:
        """A population of agents at the beginning of their first lives."""
        states = [
            group.init(jax.random.split(jax.random.fold_in(key, i), count))
            for i, (group, count) in enumerate(zip(self.groups, self.counts, strict=True))
        ]
        total = sum(self.counts)
        optimizer = self._adam.init(eta)
        if self.config.per_agent_adam:
            optimizer = jax.tree.map(lambda x: jnp.stack([x] * total), optimizer)
        return PopulationState(eta, eta, tuple(states), optimizer, jnp.zeros(total, jnp.int32))

    def meta_step(self, state: PopulationState) -> tuple[PopulationState, Columns, Columns]:
        """Every agent lives on for a window; the rule moves; those whose life is over begin anew.

        The state is used up. Returns metrics of the whole and of each agent, [agents].

        Raises:
            EnvironmentFailure: an environment on the host failed; the state is as it was.
        """
        results: list[Any] = [None] * len(self.groups)
        # What may fail comes first, before any array is used up.
        for i in sorted(range(len(results)), key=lambda i: not self.groups[i].on_host):
            results[i] = self.groups[i].meta_step(state.eta, state.groups[i])
        gradients, groups, metrics = zip(*results, strict=True)
        stacked = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *gradients)
        eta, optimizers, dropped, whole, norms = self._move(
            state.eta, state.optimizers, state.dropped, stacked
        )
        by_agent = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *metrics)
        by_agent |= {"meta/gradient_norm": norms, "meta/dropped": dropped}
        eta_ema = self._update_ema(state.eta_ema, eta)
        state = PopulationState(eta, eta_ema, groups, optimizers, dropped)
        whole, by_agent = jax.device_get((whole, by_agent))
        # Parameters that are not finite stay so: such an agent has nothing more to say.
        over = np.flatnonzero(
            (by_agent["life/steps"] >= by_agent["life/budget"]) | ~by_agent["life/finite"]
        )
        return self.restart(state, over.tolist()), whole, by_agent

    def restart(self, state: PopulationState, agents: Sequence[int]) -> PopulationState:
        """Lets agents begin a new life; nothing is left of the old one but their meta-Adam.

        They are counted through all groups, whose arrays are used up.
        """
        groups = list(state.groups)
        places = [(g, i) for g, count in enumerate(self.counts) for i in range(count)]
        for agent in agents:
            group, i = places[agent]
            groups[group] = self.groups[group].restart(groups[group], i)
        return dataclasses.replace(state, groups=tuple(groups))

    def close(self) -> None:
        """Ends environments on the host; another meta-step would start new ones."""
        for group in self.groups:
            group.close()

    def combine(
        self, eta: Params, optimizers: PyTree, dropped: Array, gradients: Params
    ) -> tuple[Params, PyTree, Array, Metrics, Array]:
        """Moves the rule by the agents' meta-gradients, every leaf [agents, ...].

        A meta-gradient that is not finite, or too large, is left out and counted in `dropped`,
        [agents]: it changes neither the rule nor its agent's Adam. Returns the moved parameters;
        the Adams; the count of those left out; metrics of the whole; the norm of each
        meta-gradient.
        """
        norms = jax.vmap(optax.tree.norm)(gradients)
        kept = jnp.isfinite(norms) & (norms <= self.config.max_meta_gradient)

        def masked(x: Array) -> Array:
            return jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, 0)

        gradients = jax.tree.map(masked, gradients)
        count = jnp.maximum(1, jnp.sum(kept))
        if self.config.per_agent_adam:
            updates, moved = jax.vmap(lambda g, o: self._adam.update(g, o, eta))(
                gradients, optimizers
            )

            def choose(x: Array, y: Array) -> Array:
                return jnp.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, y)

            optimizers = jax.tree.map(choose, moved, optimizers)
            update = jax.tree.map(lambda u: jnp.sum(masked(u), axis=0) / count, updates)
        else:
            mean = jax.tree.map(lambda g: jnp.sum(g, axis=0) / count, gradients)
            update, optimizers = self._adam.update(mean, optimizers, eta)
        whole = {
            "meta/gradient_cosine": _mean_cosine(gradients, jnp.where(kept, norms, 0)),
            "meta/eta_norm": optax.tree.norm(eta),
            "meta/eta_update_norm": optax.tree.norm(update),
            "meta/kept": jnp.sum(kept),
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
