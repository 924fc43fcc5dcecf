"""Whole lives of many agents at once, as one compiled program per family and agent.

A life is a training run from scratch. It is a function of the rule's parameters, a member of the
family, a random key, a learning rate and a number of updates. All of these are data, so one program
serves evolution, validation, sweeps and tests, with discovered and hand-designed rules.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discorl import envs
from discorl.agent.assembly import make_learner
from discorl.agent.config import AgentConfig
from discorl.agent.optimiser import with_learning_rate
from discorl.envs import Environment, Reference, families, references
from discorl.envs.families import Family, Split
from discorl.rules.base import Rule
from discorl.runs import processes
from discorl.runs.metrics import EPISODES, RETURN
from discorl.training.compiled.agent import CompiledAgent
from discorl.training.state import TrainState
from discorl.types import Array, Key, Params, PyTree, UserError, specs, validation

BINS = 20  # parts of equal length in which the returns of a life are reported


@dataclasses.dataclass(frozen=True)
class Record:
    """The returns of agents in each part of their lives."""

    return_sum: np.ndarray  # [L, BINS], over the episodes that ended in it
    episodes: np.ndarray  # [L, BINS], the number of these episodes

    def end(self, share: float) -> np.ndarray:
        """Mean return per episode in the last share of each life, [L]; NaN if none ended there."""
        first = BINS - max(1, round(share * BINS))
        return _divide(self.return_sum[:, first:].sum(1), self.episodes[:, first:].sum(1))

    def curve(self) -> np.ndarray:
        """Mean return per episode in each part of each life, [L, BINS]; NaN if none ended there."""
        return _divide(self.return_sum, self.episodes)

    def area(self) -> np.ndarray:
        """Return per episode, averaged over the parts of each life, [L].

        Parts in which no episode ended are ignored; NaN if there are no others.
        """
        means = self.curve()
        known = np.isfinite(means)
        return _divide(np.where(known, means, 0).sum(1), known.sum(1))


@dataclasses.dataclass(frozen=True)
class LoneTask:
    """A single environment with the interface of a family; every life is spent in it."""

    alone: Environment
    scale: Reference  # returns of random and optimal play

    @classmethod
    def of(cls, environment: Environment) -> "LoneTask":
        """The environment with its own scale; if none is known, returns are scores."""
        return cls(environment, references.of(environment) or Reference(0.0, 1.0))

    @property
    def num_actions(self) -> int:
        return self.alone.num_actions

    @property
    def observation(self) -> PyTree:
        return self.alone.observation

    def sample(self, key: Key, split: Split) -> Array:
        """A dummy parameter, [], for programs that run one member per life."""
        return jnp.zeros(())

    def environment(self, parameters: Array) -> Environment:
        return self.alone

    def reference(self, parameters: Array) -> Reference:
        """The two ends of the scale, the same for all lives."""
        return Reference(*(float(end) + 0 * parameters for end in self.scale))


def family_or_task(env: str) -> Family | LoneTask:
    """The tasks of an environment in JAX: a family, or a single task such as a family's member."""
    spec = specs.parse(env)
    is_member = bool({"seed", "split"} & spec.parameters.keys())
    if spec.name in families.REGISTRY and not is_member:
        return families.build(spec)
    environment = envs.make(env)
    if not isinstance(environment, Environment):
        raise UserError(
            f"{env} is on the host: expected environments written in JAX, in which whole lives "
            "are one program; discovery by the method 'meta_gradient' takes others, too"
        )
    return LoneTask.of(environment)


def _divide(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.where(count > 0, total / np.maximum(count, 1), math.nan)


class Lives:
    """Trains agents from scratch in members of one family.

    Example:
        ```python
        lives = Lives(family, AgentConfig(), rule, size=32)
        tasks = lives.tasks(jax.random.split(task_key, 100), "train")
        keys = jax.random.split(life_key, 100)
        record = lives.run(lives.repeat(eta, 100), tasks, keys, 1e-2, updates=300)
        ```
    """

    def __init__(
        self, family: Family | LoneTask, agent: AgentConfig, rule: Rule, *, size: int
    ) -> None:
        """Prepares the program, which the first run compiles.

        Learning rates are arguments of each life. `size` lives run side by side on one device.
        Results depend on this number, and never on the devices.
        """
        validation.integer("size", size, least=1)
        self.family, self.size = family, size
        self._agent = agent
        self._learner = make_learner(agent, rule, family.num_actions, family.observation)
        self._program = jax.jit(self.program)
        self._sample = jax.jit(jax.vmap(family.sample, in_axes=(0, None)), static_argnums=1)
        self._reference = jax.jit(jax.vmap(family.reference))

    def tasks(self, keys: Key, split: Split) -> PyTree:
        """Draws members, one for each key, [L]: leaves [L, ...]."""
        return self._sample(keys, split)

    def repeat(self, eta: Params, count: int) -> Params:
        """The same parameters for `count` lives: leaves [count, ...]."""
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), eta)

    def run(self, *arguments: Any) -> Record:
        """Runs lives and waits for their record; see `start`."""
        return self.start(*arguments)()

    def start(
        self,
        etas: Params,
        tasks: PyTree,
        keys: Key,
        learning_rates: Array | float,
        updates: int,
        *,
        place: int = 0,
    ) -> Callable[[], Record]:
        """Runs lives, each with its eta, task and key, leaves [L, ...]; the result waits for them.

        There is one learning rate for all, or one for each, [L]. Calls go to the devices of all
        processes in turn, starting at index `place`. All processes get the whole record.
        """
        count = keys.shape[0]
        rates = jnp.broadcast_to(jnp.asarray(learning_rates, jnp.float32), (count,))
        devices = processes.devices()
        parts = {}
        for call, first in enumerate(range(0, count, self.size)):
            device = devices[(place + call) % len(devices)]
            if processes.owns(device):
                # The last life pads the last call.
                chosen = np.minimum(np.arange(first, first + self.size), count - 1)
                everyone = etas, tasks, keys, rates
                arguments = jax.tree.map(lambda x, chosen=chosen: x[chosen], everyone)
                arguments = jax.device_put(arguments, device)
                parts[call] = self._program(*arguments, jnp.int32(updates))

        def finish() -> Record:
            found = functools.reduce(dict.__or__, processes.exchange(jax.device_get(parts)))
            ordered = [found[call] for call in sorted(found)]
            sums, counts = (np.concatenate(part)[:count] for part in zip(*ordered, strict=True))
            return Record(sums, counts)

        return finish

    def normalise(self, tasks: PyTree, returns: np.ndarray) -> np.ndarray:
        """Returns as scores: 0 for random and 1 for optimal play, [L]."""
        reference = jax.device_get(self._reference(tasks))
        return (returns - reference.random) / (reference.optimal - reference.random)

    def program(
        self, etas: Params, tasks: PyTree, keys: Key, rates: Array, updates: Array
    ) -> tuple[Array, Array]:
        """All lives of one call, to be compiled; leaves of the arguments are [size, ...].

        Returns sums of returns and numbers of episodes, [size, BINS] each.
        """

        def begin(task: PyTree, key: Key, rate: Array) -> TrainState:
            return with_learning_rate(self._compiled_agent(task).init(key, updates), rate)

        def update(eta: Params, task: PyTree, state: TrainState) -> tuple[TrainState, Array, Array]:
            state, metrics = self._compiled_agent(task).update(state, eta)
            count = metrics[EPISODES]
            total = jnp.where(count > 0, metrics[RETURN] * count, 0)
            return state, total, count

        def body(i: Array, carry: tuple[TrainState, Array, Array]) -> tuple:
            state, totals, counts = carry
            state, total, count = jax.vmap(update, (0, 0, axes), (axes, 0, 0))(etas, tasks, state)
            part = i * BINS // updates
            return state, totals.at[part].add(total), counts.at[part].add(count)

        axes = self._axes(tasks)
        state = jax.vmap(begin, out_axes=axes)(tasks, keys, rates)
        empty = jnp.zeros((BINS, keys.shape[0]))
        carry = jax.lax.fori_loop(0, updates, body, (state, empty, empty))
        return carry[1].T, carry[2].T

    def _compiled_agent(self, task: PyTree) -> CompiledAgent:
        return CompiledAgent(self._agent, self.family.environment(task), self._learner)

    def _axes(self, tasks: PyTree) -> PyTree:
        """The axis of the lives in every leaf of a state; None if lives share the leaf.

        They share the position in replay, which turns a scatter into a copy.
        """
        task = jax.tree.map(lambda x: x[0], tasks)
        state = jax.eval_shape(self._compiled_agent(task).init, jax.random.key(0), 1)
        axes = jax.tree.map(lambda _: 0, state)
        if axes.replay is not None:
            replay = dataclasses.replace(axes.replay, position=None, size=None)
            axes = dataclasses.replace(axes, replay=replay)
        return axes
