"""Evolution of a rule's parameters over whole lives.

The two agents of a pair have the same task, key and length of life. Unlike the gradient through a
window of updates, the gradient estimated from their scores is unbiased.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from discorl.discovery.lives import Lives
from discorl.discovery.strategy import (
    POOL,
    EvolutionConfig,
    Momentum,
    Strategy,
    equal_shares,
    moving_average,
    require_pairs,
)
from discorl.runs.metrics import SCORE
from discorl.types import Array, Key, Params, PyTree

GOLDEN = 0.6180339887498949
_CANDIDATES = 0xCA  # makes the keys of candidates for the pools independent of all others


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EvolutionState:
    """Everything that evolution carries from one generation to the next."""

    eta: Params  # the centre of the next generation's perturbations
    average: Params  # of the iterates, which is the result
    momentum: Momentum
    spreads: Array  # [groups], moving averages of the standard deviation of differences
    gains: Array  # [groups, 2], moving averages of the gain over a new rule; short and long lives
    pools: Array  # [groups, config.pool] int32, the hardest of `POOL` candidates
    generation: Array  # [] int32, generations so far
    key: Key


@dataclasses.dataclass(frozen=True)
class LifeGroup:
    """Agents that live side by side, in pairs, in members of one family."""

    name: str  # in metrics; groups of the same name share one weight
    lives: Lives
    count: int
    learning_rate: float


class Evolution:
    """Evolves a rule over groups of lives.

    Every group holds `count / 2` pairs. Families count equally, for any number of their groups and
    any size of their differences.
    """

    def __init__(
        self,
        groups: Sequence[LifeGroup],
        config: EvolutionConfig,
        *,
        generations: int,
        scales: Mapping[str, float] | None = None,
        new: Params | None = None,
    ) -> None:
        """Prepares the programs.

        The schedules of noise and steps span `generations`. `scales` of perturbations and steps are
        by the top-level key of `eta`, by default 1; parts with scale 0 do not change. `new` holds
        the parameters of a new rule, needed for `config.balance` and `config.hardest`.
        """
        for group in groups:
            require_pairs(group.name, group.count)
        self.groups, self.config = list(groups), config
        self._generations, self._new = generations, new
        self._weights = equal_shares([group.name for group in groups])
        self._strategy = Strategy(config, scales or {})
        self._perturb = jax.jit(self._strategy.perturb, static_argnums=0)
        self._gradient = jax.jit(self._strategy.gradient)
        self._move = jax.jit(self._moved)

    def init(self, eta: Params, key: Key) -> EvolutionState:
        """The state before the first generation."""
        eta = jax.tree.map(jnp.asarray, eta)
        return EvolutionState(
            eta=eta,
            average=eta,
            momentum=Momentum.zeros(eta),
            spreads=jnp.full(len(self.groups), jnp.nan),
            gains=jnp.full((len(self.groups), 2), jnp.nan),
            pools=jnp.zeros((len(self.groups), self.config.pool), jnp.int32),
            generation=jnp.int32(0),
            key=key,
        )

    def step(self, state: EvolutionState) -> tuple[EvolutionState, dict[str, float]]:
        """One generation: every group lives, and the parameters move."""
        config, generation = self.config, int(state.generation)
        if generation == 0 and config.pool:
            state = dataclasses.replace(state, pools=self._hardest(state.key))
        decay = config.decay(generation / self._generations)
        spreads, gains = np.array(state.spreads), np.array(state.gains)
        rows: list[dict[str, float]] = []
        halves = []
        lengths = [
            config.length((i / len(self.groups) + GOLDEN * generation) % 1.0)
            for i in range(len(self.groups))
        ]
        kinds = np.array([int(length > config.length(0.5)) for length in lengths])
        shares = config.shares(self._weights, gains, kinds)
        size = config.noise_left(decay)
        place = 0
        started = []  # all groups start before any is waited for, to keep devices busy
        for i, (group, length) in enumerate(zip(self.groups, lengths, strict=True)):
            key = jax.random.fold_in(jax.random.fold_in(state.key, generation), i)
            pool = self._candidates(state.key, i)[state.pools[i]] if config.pool else None
            started.append(self._start(group, state.eta, pool, key, size, length, place))
            place += -(-self._count(group) // group.lives.size)
        for i, (length, (noise, scored)) in enumerate(zip(lengths, started, strict=True)):
            scores, new = scored()
            difference = config.difference(*scores)
            spreads[i] = moving_average(spreads[i], float(difference.std()))
            advantage = shares[i] * difference / (spreads[i] + 0.1)
            halves.append(self._gradient(noise, jnp.asarray(advantage, jnp.float32)))
            row = {
                SCORE: float(scores.mean()),
                "life/length": length,
                "meta/spread": float(spreads[i]),
            }
            if new.size:
                gain = float((scores.mean(axis=0)[: new.size] - new).mean())
                gains[i, kinds[i]] = moving_average(gains[i, kinds[i]], gain)
                row |= {"meta/gain": gain, "meta/share": float(shares[i])}
            rows.append(row)
        first, second = (
            functools.reduce(lambda x, y: jax.tree.map(jnp.add, x, y), half)
            for half in zip(*halves, strict=True)
        )
        rates = jnp.float32(decay * config.step), jnp.float32(generation + 1)
        state, moved = self._move(state, first, second, *rates)
        state = dataclasses.replace(
            state,
            spreads=jnp.asarray(spreads, jnp.float32),
            gains=jnp.asarray(gains, jnp.float32),
        )
        return state, {name: float(x) for name, x in moved.items()} | self._metrics(rows)

    def _count(self, group: LifeGroup) -> int:
        """Lives of a group, new rules included."""
        return group.count + self.config.new_rules(group.count)

    def _metrics(self, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Metrics by the names of groups, and the overall score; families count equally."""
        names = [group.name for group in self.groups]
        metrics = {SCORE: float(self._weights @ [row[SCORE] for row in rows])}
        for name in dict.fromkeys(names):
            alike = [row for row, other in zip(rows, names, strict=True) if other == name]
            for column in alike[0]:
                metrics[f"{column}/{name}"] = float(np.mean([row[column] for row in alike]))
        return metrics

    def _candidates(self, key: Key, i: int) -> Key:
        """Keys of the members among which the pool of a group is chosen, [POOL]."""
        return jax.random.split(jax.random.fold_in(jax.random.fold_in(key, _CANDIDATES), i), POOL)

    def _hardest(self, key: Key) -> Array:
        """The pools: the candidates in which one life with a new rule scores lowest."""
        started = []
        place = 0
        for i, group in enumerate(self.groups):
            lives, keys = group.lives, self._candidates(key, i)
            tasks, etas = lives.tasks(keys, "train"), lives.repeat(self._new, POOL)
            length = self.config.length(0.5)
            finish = lives.start(etas, tasks, keys, group.learning_rate, length, place=place)
            started.append((finish, functools.partial(lives.normalise, tasks)))
            place += -(-POOL // lives.size)
        scores = np.stack([self.config.score(finish(), scale) for finish, scale in started])
        order = np.argsort(scores, axis=1, kind="stable")
        return jnp.asarray(order[:, : self.config.pool], jnp.int32)

    def _start(
        self,
        group: LifeGroup,
        eta: Params,
        pool: Key | None,
        key: Key,
        noise: float,
        length: int,
        place: int,
    ) -> tuple[Params, Callable[[], tuple[np.ndarray, np.ndarray]]]:
        """Starts the lives of a group, in members with keys from `pool`, if given.

        Returns perturbations, leaves [P, ...], and a function that waits for the scores of both
        lives of each pair, [2, P], and of new rules on the first tasks, [N].
        """
        lives, pairs = group.lives, group.count // 2
        new = self.config.new_rules(group.count)
        noise_key, task_key, life_key = jax.random.split(key, 3)
        perturbations, etas = self._perturb(pairs, eta, noise_key, jnp.float32(noise))
        if new:
            etas = _joined(etas, lives.repeat(self._new, new))
        if pool is None:
            members = jax.random.split(task_key, pairs)
        else:
            members = jax.random.choice(task_key, pool, (pairs,))
        tasks = lives.tasks(members, "train")
        keys = jax.random.split(life_key, pairs)
        tasks, keys = (_joined(x, x, jax.tree.map(lambda y: y[:new], x)) for x in (tasks, keys))
        finish = lives.start(etas, tasks, keys, group.learning_rate, length, place=place)

        def scores() -> tuple[np.ndarray, np.ndarray]:
            found = self.config.score(finish(), functools.partial(lives.normalise, tasks))
            return found[: 2 * pairs].reshape(2, pairs), found[2 * pairs :]

        return perturbations, scores

    def _moved(
        self, state: EvolutionState, first: Params, second: Params, step: Array, count: Array
    ) -> tuple[EvolutionState, dict[str, Array]]:
        """The state after generation number `count`, from 1."""
        eta, momentum, metrics = self._strategy.move(state.eta, state.momentum, first, second, step)
        share = (1 + self.config.averaging) / (count + self.config.averaging)
        average = jax.tree.map(lambda x, y: x + share * (y - x), state.average, eta)
        moved = dataclasses.replace(
            state, eta=eta, average=average, momentum=momentum, generation=state.generation + 1
        )
        return moved, metrics


def _joined(*trees: PyTree) -> PyTree:
    return jax.tree.map(lambda *x: jnp.concatenate(x), *trees)
