"""The population: many agents under one rule, which moves by their meta-gradients."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discorl import envs
from discorl.discovery import blocks, meta_critic
from discorl.discovery.agents import Agents, AgentState
from discorl.discovery.combination import Combination
from discorl.discovery.config import DiscoverConfig, Group
from discorl.discovery.host_agents import HostAgents
from discorl.discovery.pairs import Columns, Pairs, of_pairs
from discorl.envs import HostEnvironment
from discorl.rules import Rule
from discorl.runs import processes
from discorl.training.assembly import check_environment
from discorl.types import Array, Key, Metrics, Params, PyTree, UserError, specs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PopulationState:
    """Everything that the population carries from one meta-step to the next."""

    eta: Params
    eta_ema: Params  # EMA of eta over the meta-steps, which is the result
    # A compiled block is an AgentState, leaves [agents of the block, ...]; a block on the host is a
    # tuple of one AgentState per agent.
    blocks: tuple[PyTree, ...]
    # With one Adam per agent: a tuple of one state per block, leaves [agents, ...].
    optimizers: PyTree
    dropped: Array  # [agents] int32, meta-gradients dropped so far
    critic: PyTree = ()  # a CriticState, if a meta-critic is the objective
    pairs: PyTree = ()  # a PairsState, if agents live in pairs


class AgentGroup(Protocol):
    """Agents of one shape, compiled or on the host."""

    on_host: bool  # whether environments may fail

    def init(self, keys: Key) -> Any:
        """Agents at the start of their first lives, one for each key."""

    def meta_step(self, eta: Params, state: Any, first: int = 0) -> tuple[Params, Any, Metrics]:
        """Runs a window of every agent of a block, and differentiates it.

        If agents live in pairs, the evolved parts of the parameters have leaves [agents, ...]. The
        block's first agent is number `first` of the group. The state is donated, unless the group
        is on the host. Meta-gradients have leaves [agents, ...], metrics are [agents] each. If
        an environment on the host fails, the state is still valid.
        """

    def restart(self, state: Any, i: int, first: int = 0) -> Any:
        """Starts a new life of agent `i` of a block; the state is donated."""

    def with_critic(self, state: Any, coefficients: Array) -> Any:
        """Replaces the meta-critic's coefficients, [STAGES, 3], in the agents of a block."""

    def close(self) -> None:
        """Closes environments on the host; another meta-step would start new ones."""
        return


class _CompiledAgents(AgentGroup):
    """A group whose environments are written in JAX: one program runs and differentiates."""

    on_host = False

    def __init__(self, agents: Agents, pairs: Pairs | None) -> None:
        def step(eta: Params, state: AgentState) -> tuple[Params, AgentState, Metrics]:
            gradient, state, metrics = agents.meta_step(eta, state)
            return pairs.without_evolved(gradient) if pairs else gradient, state, metrics

        def place(group: AgentState, agent: AgentState, i: Array) -> AgentState:
            return jax.tree.map(lambda slots, new: slots.at[i].set(new), group, agent)

        # One program for first and later lives of all agents.
        self.begin = jax.jit(agents.begin)
        axes = pairs.axes if pairs else None, 0
        self._step = jax.jit(jax.vmap(step, in_axes=axes), donate_argnums=1)
        self._place = jax.jit(place, donate_argnums=0)

    def init(self, keys: Key) -> AgentState:
        agents = [self.begin(key, jnp.int32(0)) for key in keys]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *agents)

    def meta_step(
        self, eta: Params, state: AgentState, first: int = 0
    ) -> tuple[Params, AgentState, Metrics]:
        return self._step(eta, state)

    def restart(self, state: AgentState, i: int, first: int = 0) -> AgentState:
        return self._place(state, self.begin(state.key[i], state.lives[i] + 1), i)

    def with_critic(self, state: AgentState, coefficients: Array) -> AgentState:
        spread = jnp.broadcast_to(coefficients, state.critic.shape)
        return dataclasses.replace(state, critic=spread)


def _make_group(
    group: Group,
    config: DiscoverConfig,
    rule: Rule,
    number: int,
    agents: type[Agents],
    pairs: Pairs | None,
) -> AgentGroup:
    if specs.parse(group.env).name not in envs.REGISTRY:
        environment = envs.make(group.env)
        check_environment(environment, group.env)
        if isinstance(environment, HostEnvironment):
            if pairs:
                raise UserError(
                    f"method is 'both', and {group.env} is on the host, where lives cannot be "
                    "paired: expected environments written in JAX, or the method 'meta_gradient'"
                )
            return HostAgents(group, config, rule, environment, number)
    return _CompiledAgents(agents(group, config, rule), pairs)


class Population:
    """Compiled programs of a population; only environments on the host are not pure."""

    def __init__(
        self,
        config: DiscoverConfig,
        rule: Rule,
        agents: type[Agents] = Agents,
        devices: Sequence[jax.Device] | None = None,
        costs: Sequence[float] = (),
    ) -> None:
        """Prepares the programs, by default for all devices of all processes.

        Blocks are assigned to devices by their costs, by default their numbers of agents.
        """
        self.config = config
        described = config.groups()
        self.counts = [group.count for group in described]
        self._pairs = Pairs(config, rule, described) if config.in_pairs else None
        self.groups = [
            _make_group(group, config, rule, i, agents, self._pairs)
            for i, group in enumerate(described)
        ]
        self.host_environments: Sequence[str] = [
            described[i].env for i, group in enumerate(self.groups) if group.on_host
        ]
        self.blocks = blocks.split(self.counts, config.block_size)
        every = list(processes.devices() if devices is None else devices)
        costs = processes.exchange(costs)[0]
        if len(costs) != len(self.blocks):
            costs = [block.count for block in self.blocks]
        dealt = blocks.deal(costs, len(every))
        self.devices = [every[place] for place in dealt]  # of each block
        self._own = [i for i, device in enumerate(self.devices) if processes.owns(device)]
        self.seconds = [float(cost) for cost in costs]  # of each block in the last meta-step
        self._combination = Combination(config, blocks.OrderedSum(self.blocks, self.devices, every))
        self.group_of = np.repeat(np.arange(len(self.counts)), self.counts)  # of each agent
        self._learn = jax.jit(lambda *data: meta_critic.learn(self.group_of, *data))
        self._update_ema = jax.jit(
            lambda ema, eta: optax.incremental_update(eta, ema, 1 - config.ema)
        )

    def init(self, eta: Params, key: Key) -> PopulationState:
        """A population of agents at the start of their first lives."""
        states: list[Any] = [None] * len(self.blocks)
        for i in self._own:
            block = self.blocks[i]
            # The agents of a pair share a key, now and in all later lives.
            alike = 2 if self._pairs else 1
            group_key = jax.random.fold_in(key, block.group)
            keys = jnp.repeat(jax.random.split(group_key, self.counts[block.group] // alike), alike)
            chosen = keys[block.first : block.first + block.count]
            states[i] = self.groups[block.group].init(jax.device_put(chosen, self.devices[i]))
        optimizers = self._combination.init(
            eta, [block.count * (i in self._own) for i, block in enumerate(self.blocks)]
        )
        dropped = jnp.zeros(sum(self.counts), jnp.int32)
        has_critic = self.config.objective == "meta_critic"
        critic = meta_critic.init(self.group_of) if has_critic else ()
        evolution = self._pairs.init(eta, jax.random.fold_in(key, 0xE5)) if self._pairs else ()
        return self.place(
            PopulationState(eta, eta, tuple(states), optimizers, dropped, critic, evolution)
        )

    def place(self, state: PopulationState) -> PopulationState:
        """The state with every block on its device."""

        def placed(trees: Sequence[PyTree]) -> tuple[PyTree, ...]:
            return tuple(
                jax.device_put(tree, self.devices[i]) if i in self._own else None
                for i, tree in enumerate(trees)
            )

        optimizers = state.optimizers
        if self.config.per_agent_adam:
            optimizers = placed(optimizers)
        return dataclasses.replace(state, blocks=placed(state.blocks), optimizers=optimizers)

    def meta_step(self, state: PopulationState) -> tuple[PopulationState, Columns, Columns]:
        """Runs a window of every agent, moves the rule, and restarts agents whose life is over.

        The state is donated. Returns the new state and metrics of the whole and of each agent,
        [agents]. If an environment on the host fails, the state is still valid.
        """
        # Blocks that may fail come first, before any array is donated, and fail in all processes.
        on_host = [i for i in self._own if self.groups[self.blocks[i].group].on_host]
        results: dict[int, Any] = {}
        if self.host_environments:
            processes.together(lambda: results.update(self._run_windows(state, on_host)))
        results |= self._run_windows(state, [i for i in self._own if i not in on_host])
        gradients = {i: result[0] for i, result in results.items()}
        eta, optimizers, whole, norms = self._combination(state.eta, state.optimizers, gradients)
        by_agent = self._gather(
            {i: result[2] | {"meta/gradient_norm": norms[i]} for i, result in results.items()}
        )
        kept = self._combination.is_kept(by_agent["meta/gradient_norm"])
        by_agent["meta/dropped"] = np.asarray(state.dropped + ~kept)
        # Parameters that are not finite stay so, which ends a life.
        over = (by_agent["life/steps"] >= by_agent["life/budget"]) | ~by_agent["life/finite"]
        whole, evolution = jax.device_get(whole), state.pairs
        if self._pairs:
            over = of_pairs(over)
            evolution, eta, evolved, by_agent["life/score"] = self._pairs.learn(
                evolution, eta, by_agent, over
            )
            whole |= evolved
        state = PopulationState(
            eta=eta,
            eta_ema=self._update_ema(state.eta_ema, eta),
            blocks=tuple(results[i][1] if i in results else None for i in range(len(self.blocks))),
            optimizers=optimizers,
            dropped=jnp.asarray(by_agent["meta/dropped"]),
            critic=state.critic,
            pairs=evolution,
        )
        state = self.restart(state, np.flatnonzero(over).tolist())
        return self._update_critic(state, by_agent, over), whole, by_agent

    def _update_critic(
        self, state: PopulationState, by_agent: Columns, over: np.ndarray
    ) -> PopulationState:
        """Trains the meta-critic on the windows, and gives all agents its new coefficients."""
        if isinstance(state.critic, tuple):
            return state
        critic = self._learn(
            state.critic,
            np.stack([by_agent[f"meta/{name}"] for name in meta_critic.FEATURES], axis=-1),
            by_agent["meta/outcome"],
            by_agent["life/steps"] / by_agent["life/budget"],
            over,
            by_agent["life/finite"],
        )
        states = list(state.blocks)
        for i in self._own:
            group = self.blocks[i].group
            coefficients = jax.device_put(critic.coefficients[group], self.devices[i])
            states[i] = self.groups[group].with_critic(states[i], coefficients)
        return dataclasses.replace(state, blocks=tuple(states), critic=critic)

    def _run_windows(self, state: PopulationState, chosen: Sequence[int]) -> dict[int, Any]:
        """Runs blocks: those of one device in sequence, devices in parallel."""
        results: dict[int, Any] = {}
        held: dict[jax.Device, list[int]] = {}
        for i in chosen:
            held.setdefault(self.devices[i], []).append(i)

        def run(device: jax.Device) -> None:
            eta = jax.device_put(state.eta, device)
            with jax.default_device(device):
                for i in held[device]:
                    start = time.perf_counter()
                    block, agents = self.blocks[i], state.blocks[i]
                    own = eta
                    if self._pairs:
                        own = self._pairs.perturbed(state.pairs, eta, block, agents.lives)
                    results[i] = jax.block_until_ready(
                        self.groups[block.group].meta_step(own, agents, block.first)
                    )
                    self.seconds[i] = time.perf_counter() - start

        if len(held) == 1:
            run(*held)
        elif held:
            with concurrent.futures.ThreadPoolExecutor(len(held)) as threads:
                list(threads.map(run, held))
        return results

    def _gather(self, metrics: dict[int, Metrics]) -> Columns:
        """Metrics of the blocks of all processes as columns over all agents, [agents]."""
        found: dict[int, Columns] = {}
        for of_blocks, seconds in processes.exchange((jax.device_get(metrics), self.seconds)):
            found |= of_blocks
            for i in of_blocks:
                self.seconds[i] = seconds[i]
        return {name: np.concatenate([found[i][name] for i in sorted(found)]) for name in found[0]}

    def restart(self, state: PopulationState, agents: Sequence[int]) -> PopulationState:
        """Starts new lives of agents; they keep only their meta-Adam.

        Agents are indices into the population; the arrays of their blocks are donated.
        """
        states = list(state.blocks)
        places = [(b, i) for b, block in enumerate(self.blocks) for i in range(block.count)]
        for b, i in (places[agent] for agent in agents):
            block = self.blocks[b]
            if b in self._own:
                states[b] = self.groups[block.group].restart(states[b], i, block.first)
        return dataclasses.replace(state, blocks=tuple(states))

    def close(self) -> None:
        for group in self.groups:
            group.close()
