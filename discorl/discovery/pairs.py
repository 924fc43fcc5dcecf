"""Evolution of some parts of a rule in a population whose meta-gradients move the others.

Neighbouring agents form pairs with the same task, key and length of life. During its life, one
agent uses the rule plus a perturbation of the evolved parts, the other the rule minus it.
Meta-gradients with respect to the other parts are taken there. When the lives of a pair end, the
difference of their scores, times the perturbation, estimates the gradient of the evolved parts.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from discorl.discovery.blocks import Block
from discorl.discovery.config import DiscoverConfig, Group
from discorl.discovery.lives import BINS, Record
from discorl.discovery.strategy import (
    LEAST_SCORE,
    Momentum,
    Strategy,
    equal_shares,
    moving_average,
    named_scales,
    require_pairs,
)
from discorl.rules import Rule
from discorl.runs.metrics import EPISODES, SCORE
from discorl.types import Array, Key, Params, PyTree

Columns = dict[str, np.ndarray]  # metrics of agents, [agents]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PairsState:
    """Statistics of current lives, and of those that ended in this generation.

    Trees of parameters have None for parts that do not evolve.
    """

    key: Key  # of all perturbations
    score_sum: Array  # [agents, BINS], over the episodes of current lives
    episodes: Array  # [agents, BINS], the number of these episodes
    # Sums of difference times perturbation over either half of the pairs: leaves [groups, 2, ...].
    products: Params
    differences: Array  # [groups, 3], sums of 1, of the differences and of their squares
    spreads: Array  # [groups], moving averages of the standard deviation of differences
    momentum: Momentum
    generations: Array  # [] int32, steps of the evolved parts so far
    meta_steps: Array  # [] int32


class Pairs:
    """The programs that perturb a rule for each agent and move its evolved parts."""

    def __init__(self, config: DiscoverConfig, rule: Rule, groups: Sequence[Group]) -> None:
        for group in groups:
            require_pairs(group.name, group.count)
        self._config, self._meta_steps = config.evolution, config.meta_steps
        self._strategy = Strategy(self._config, named_scales(self._config.parts, rule))
        shapes = jax.eval_shape(rule.init_params, jax.random.key(0))
        # The axis of the agents in each leaf of perturbed parameters; None for shared leaves.
        self.axes: PyTree = jax.tree.map(lambda _: 0, self._evolved(shapes))
        self._weights = equal_shares([group.name for group in groups])
        numbers = np.repeat(np.arange(len(groups)), [group.count // 2 for group in groups])
        halves = np.arange(len(numbers)) % 2
        # [groups, 2, P]: whether a pair belongs to a group and a half.
        self._places = (numbers == np.arange(len(groups))[:, None])[:, None] & (
            halves == np.arange(2)[:, None]
        )
        self._perturb = jax.jit(self._perturbed)
        self._add = jax.jit(self._added, donate_argnums=0)
        self._move = jax.jit(self._moved)

    def init(self, eta: Params, key: Key) -> PairsState:
        """The state before the first lives."""
        groups, _, pairs = self._places.shape
        evolved = self._evolved(eta)
        return PairsState(
            key=key,
            score_sum=jnp.zeros((2 * pairs, BINS)),
            episodes=jnp.zeros((2 * pairs, BINS)),
            products=jax.tree.map(lambda x: jnp.zeros((groups, 2, *x.shape)), evolved),
            differences=jnp.zeros((groups, 3)),
            spreads=jnp.full(groups, jnp.nan),
            momentum=Momentum.zeros(evolved),
            generations=jnp.int32(0),
            meta_steps=jnp.int32(0),
        )

    def perturbed(self, state: PairsState, eta: Params, block: Block, lives: Array) -> Params:
        """The rule of each agent of a block; evolved leaves are [agents, ...].

        `lives`, [agents], counts the lives ended so far: every life has its own perturbation.
        """
        noise = self._config.noise_left(self._decay(state))
        return self._perturb(eta, state.key, jnp.int32(block.start), lives, jnp.float32(noise))

    def without_evolved(self, gradient: Params) -> Params:
        """A meta-gradient with zeros for the parts that evolve."""

        def keep(path: tuple, x: Array) -> Array:
            return jnp.zeros_like(x) if self._strategy.scale(path) else x

        return jax.tree_util.tree_map_with_path(keep, gradient)

    def learn(
        self, state: PairsState, eta: Params, by_agent: Columns, over: np.ndarray
    ) -> tuple[PairsState, Params, dict[str, float], np.ndarray]:
        """Learns from a window of every agent and from the scores of pairs whose lives are over.

        A generation ends when the number of ended pairs reaches the number of pairs; the evolved
        parts then move. Returns the state, the parameters, metrics of the whole, and scores of
        lives that are over, NaN for others.
        """
        state, record = self._remember(state, by_agent)
        scores = np.where(by_agent["life/finite"], self._config.score(record), LEAST_SCORE)
        difference = self._config.difference(scores[::2], scores[1::2]) * over[::2]
        if over.any():
            powers = np.stack([over[::2], difference, difference**2], axis=-1)
            sums = self._places.any(axis=1) @ powers
            weights = jnp.asarray(self._places * difference, jnp.float32)
            state = dataclasses.replace(
                state,
                products=self._add(
                    state.products,
                    self._evolved(eta),
                    state.key,
                    by_agent["life/number"][::2],
                    weights,
                ),
                differences=state.differences + jnp.asarray(sums, jnp.float32),
                score_sum=jnp.where(over[:, None], 0, state.score_sum),
                episodes=jnp.where(over[:, None], 0, state.episodes),
            )
        metrics = dict.fromkeys(("meta/agreement", "meta/momentum", "meta/moved"), np.nan)
        if np.sum(state.differences[:, 0]) >= self._places.shape[-1]:
            state, eta, metrics = self._step(state, eta)
        metrics |= {"meta/generations": int(state.generations)}
        state = dataclasses.replace(state, meta_steps=state.meta_steps + 1)
        return state, eta, metrics, np.where(over, scores, np.nan)

    def _decay(self, state: PairsState) -> float:
        return self._config.decay(int(state.meta_steps) / self._meta_steps)

    def _remember(self, state: PairsState, by_agent: Columns) -> tuple[PairsState, Record]:
        """Adds the episodes of a window to the part of each life in which the window ended."""
        share = by_agent["life/steps"] / by_agent["life/budget"]
        part = np.clip(np.ceil(share * BINS).astype(int) - 1, 0, BINS - 1)
        place = np.arange(len(part)), part
        count = by_agent[EPISODES]
        score_sum, episodes = np.array(state.score_sum), np.array(state.episodes)
        score_sum[place] += np.where(count > 0, by_agent[SCORE] * count, 0)
        episodes[place] += count
        state = dataclasses.replace(
            state, score_sum=jnp.asarray(score_sum), episodes=jnp.asarray(episodes)
        )
        return state, Record(score_sum, episodes)

    def _step(self, state: PairsState, eta: Params) -> tuple[PairsState, Params, dict[str, float]]:
        """Moves the evolved parts at the end of a generation; families with pairs count equally."""
        count, total, squares = np.array(state.differences, np.float64).T
        known = np.maximum(count, 1)
        deviations = np.sqrt(np.maximum(0, squares / known - (total / known) ** 2))
        spreads = np.array(state.spreads)
        for i in np.flatnonzero(count):
            spreads[i] = moving_average(spreads[i], deviations[i])
        shares = self._weights * (count > 0)
        factors = np.where(count > 0, 2 * shares / (shares.sum() * known * (spreads + 0.1)), 0)
        step = self._decay(state) * self._config.step
        eta, momentum, metrics = self._move(
            eta, state.momentum, state.products, jnp.asarray(factors, jnp.float32), step
        )
        state = dataclasses.replace(
            state,
            products=jax.tree.map(jnp.zeros_like, state.products),
            differences=jnp.zeros_like(state.differences),
            spreads=jnp.asarray(spreads, jnp.float32),
            momentum=momentum,
            generations=state.generations + 1,
        )
        return state, eta, {name: float(x) for name, x in metrics.items()}

    # --- pure functions ---------------------------------------------------------------------------

    def _evolved(self, eta: Params) -> Params:
        """The tree with None for parts that do not evolve."""
        return jax.tree_util.tree_map_with_path(
            lambda path, x: x if self._strategy.scale(path) else None, eta
        )

    def _draw(self, evolved: Params, key: Key, pairs: Array, lives: Array) -> Params:
        """Perturbations of pairs in given lives, [N] each: leaves [N, ...]."""

        def draw(pair: Array, life: Array) -> Params:
            own = jax.random.fold_in(jax.random.fold_in(key, pair), life)
            return jax.tree.map(lambda x: x[0], self._strategy.draw(1, evolved, own))

        return jax.vmap(draw)(pairs, lives)

    def _perturbed(self, eta: Params, key: Key, start: Array, lives: Array, noise: Array) -> Params:
        agents = start + jnp.arange(lives.shape[0])
        drawn = self._draw(self._evolved(eta), key, agents // 2, lives)

        def around(path: tuple, centre: Array, perturbation: Array | None) -> Array:
            if perturbation is None:
                return centre
            sign = (1 - 2 * (agents % 2)).reshape(-1, *[1] * centre.ndim)
            return centre + sign * (noise * self._strategy.scale(path) * perturbation)

        return jax.tree_util.tree_map_with_path(around, eta, drawn)

    def _added(
        self, products: Params, evolved: Params, key: Key, lives: Array, weights: Array
    ) -> Params:
        """Adds perturbations, weighted by [groups, 2, P]."""
        drawn = self._draw(evolved, key, jnp.arange(lives.shape[0]), lives)
        return jax.tree.map(lambda old, x: old + jnp.tensordot(weights, x, 1), products, drawn)

    def _moved(
        self, eta: Params, momentum: Momentum, products: Params, factors: Array, step: Array
    ) -> tuple[Params, Momentum, dict[str, Array]]:
        halves = jax.tree.map(lambda x: jnp.tensordot(factors, x, 1), products)  # leaves [2, ...]
        first, second = (jax.tree.map(lambda x, i=i: x[i], halves) for i in range(2))
        moved, momentum, metrics = self._strategy.move(
            self._evolved(eta), momentum, first, second, step
        )
        whole = jax.tree.map(lambda old, new: old if new is None else new, eta, moved)
        return whole, momentum, metrics


def of_pairs(over: np.ndarray) -> np.ndarray:
    """Ends both lives of a pair where one is over: [agents] bool."""
    return np.repeat(over[::2] | over[1::2], 2)
