"""Evolution of a rule's parameters over whole lives.

Evolution strategies (Rechenberg 1973; Salimans et al. 2017, arXiv:1703.03864) with antithetic
pairs: two agents with opposite perturbations of the rule live on the same task, from the same key
and for as long. The difference of what they earn, times the perturbation, estimates the gradient of
what the rule is worth over a life. Unlike the gradient through a window of updates, it is unbiased.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from discorl.discovery.lives import Lives, Record
from discorl.runs.metrics import SCORE
from discorl.types import Array, Key, Params, PyTree, UserError
from discorl.types.validation import Fields

LEAST_SCORE, MOST_SCORE = -0.25, 1.1  # beyond, a life tells nothing more
GOLDEN = 0.6180339887498949


@dataclasses.dataclass(frozen=True)
class EvolutionConfig:
    """How a rule evolves over whole lives."""

    noise: float = 0.25
    """Standard deviation of the perturbations."""
    step: float = 0.06
    """Root mean square of the movement in one generation."""
    momentum: float = 0.9
    """Decay of the moving average of gradients."""
    cooldown: float = 0.7
    """Share of the generations, at their end, in which steps decay; noise decays half as far."""
    least_decay: float = 0.1
    """What steps decay to, as a share."""
    shortest_life: int = 150
    """Updates of the shortest lives."""
    longest_life: int = 1000
    """Updates of the longest lives; lengths are spread evenly on a logarithmic scale."""
    end_weight: float = 0.6
    """Weight of the end of a life in its score; the area under its curve has the rest."""
    end_share: float = 0.25
    """Share of a life that counts as its end."""
    most_difference: float = 1.0
    """Clip of the difference between the two lives of a pair."""
    parts: tuple[str, ...] = ()
    """Parts of the rule's parameters to evolve, by the first name in their path; by default those
    that the rule says (`Rule.noise_scales`)."""
    rank: int = 0
    """Rank of the perturbations of matrices; 0: full."""
    averaging: float = 4.0
    """How strongly the average of the iterates prefers the latest: their weights grow with the
    generation to this power."""

    def __post_init__(self) -> None:
        fields = Fields(self)
        fields.integer("shortest_life", least=1)
        fields.integer("longest_life", least=self.shortest_life)
        fields.integer("rank", least=0)
        fields.number("noise", "step", "most_difference", above=0)
        fields.number("cooldown", "least_decay", "end_weight", least=0, most=1)
        fields.number("end_share", above=0, most=1)
        fields.number("momentum", least=0, below=1)
        fields.number("averaging", least=0)

    def length(self, place: float) -> int:
        """Updates of a life at a place from 0 to 1 between the shortest and the longest."""
        return round(self.shortest_life * (self.longest_life / self.shortest_life) ** place)

    def decay(self, progress: float) -> float:
        """Share of the step that is left after a share of the generations."""
        return min(1.0, max(self.least_decay, (1 - progress) / max(self.cooldown, 1e-9)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EvolutionState:
    """All that an evolution depends on from one generation to the next."""

    eta: Params  # the parameters around which the next generation lives
    average: Params  # of the iterates: what is best kept
    momentum: Params  # moving average of the gradients
    size: Array  # [], moving average of their root mean square
    spreads: Array  # [slots], moving averages of the standard deviation of differences
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

    Every group holds `count / 2` pairs; a family that comes twice has twice as many. Families
    count equally, however many groups they have and however large their differences are.
    """

    def __init__(
        self,
        groups: Sequence[LifeGroup],
        config: EvolutionConfig,
        *,
        generations: int,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        """Prepares the programs.

        Noise and steps are laid out over all `generations`. `scales` are those of perturbations and
        steps, by the first name in the path of a part of `eta`; 1 where nothing is said, and 0 for
        parts that stay as they are.
        """
        for group in groups:
            if group.count % 2:
                raise UserError(
                    f"{group.name} has {group.count} agents; expected an even number, for "
                    "evolution has them live in pairs"
                )
        self.groups, self.config = list(groups), config
        self._generations, self._scales = generations, dict(scales or {})
        names = [group.name for group in groups]
        shares = np.array([1 / names.count(name) for name in names])
        self._weights = shares / shares.sum()
        self._perturb = jax.jit(self._perturb_of, static_argnums=0)
        self._gradient = jax.jit(self._gradient_of)
        self._move = jax.jit(self._moved)

    def init(self, eta: Params, key: Key) -> EvolutionState:
        """The state before the first generation."""
        eta = jax.tree.map(jnp.asarray, eta)
        return EvolutionState(
            eta=eta,
            average=eta,
            momentum=jax.tree.map(jnp.zeros_like, eta),
            size=jnp.zeros(()),
            spreads=jnp.full(len(self.groups), jnp.nan),
            generation=jnp.int32(0),
            key=key,
        )

    def step(self, state: EvolutionState) -> tuple[EvolutionState, dict[str, float]]:
        """One generation: every group lives, and the parameters move."""
        config, generation = self.config, int(state.generation)
        decay = config.decay(generation / self._generations)
        spreads = np.array(state.spreads)
        rows: list[dict[str, float]] = []
        halves = []
        lengths = [
            config.length((i / len(self.groups) + GOLDEN * generation) % 1.0)
            for i in range(len(self.groups))
        ]
        size = config.noise * (0.5 + 0.5 * decay)
        place = 0
        started = []  # all groups before any is waited for: devices need not be idle
        for i, (group, length) in enumerate(zip(self.groups, lengths, strict=True)):
            key = jax.random.fold_in(jax.random.fold_in(state.key, generation), i)
            started.append(self._start(group, state.eta, key, size, length, place))
            place += -(-group.count // group.lives.size)
        for i, (length, (noise, scored)) in enumerate(zip(lengths, started, strict=True)):
            scores = scored()
            difference = np.clip(
                scores[0] - scores[1], -config.most_difference, config.most_difference
            )
            spreads[i] = _average(spreads[i], float(difference.std()))
            advantage = self._weights[i] * difference / (spreads[i] + 0.1)
            halves.append(self._gradient(noise, jnp.asarray(advantage, jnp.float32)))
            rows.append(
                {
                    SCORE: float(scores.mean()),
                    "life/length": length,
                    "meta/spread": float(spreads[i]),
                }
            )
        first, second = (
            functools.reduce(lambda x, y: jax.tree.map(jnp.add, x, y), half)
            for half in zip(*halves, strict=True)
        )
        rates = jnp.float32(decay * config.step), jnp.float32(generation + 1)
        state, moved = self._move(state, first, second, *rates)
        state = dataclasses.replace(state, spreads=jnp.asarray(spreads, jnp.float32))
        return state, {name: float(x) for name, x in moved.items()} | self._metrics(rows)

    def _metrics(self, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Metrics by the names of groups, and the score over all: families count equally."""
        names = [group.name for group in self.groups]
        metrics = {SCORE: float(self._weights @ [row[SCORE] for row in rows])}
        for name in dict.fromkeys(names):
            alike = [row for row, other in zip(rows, names, strict=True) if other == name]
            for column in alike[0]:
                metrics[f"{column}/{name}"] = float(np.mean([row[column] for row in alike]))
        return metrics

    def _start(
        self, group: LifeGroup, eta: Params, key: Key, noise: float, length: int, place: int
    ) -> tuple[Params, Callable[[], np.ndarray]]:
        """Lets a group live.

        Returns perturbations, leaves [P, ...], and a function that waits for the scores of both
        lives of each pair, [2, P].
        """
        lives, pairs = group.lives, group.count // 2
        noise_key, task_key, life_key = jax.random.split(key, 3)
        perturbations, etas = self._perturb(pairs, eta, noise_key, jnp.float32(noise))
        tasks = _twice(lives.tasks(jax.random.split(task_key, pairs), "train"))
        keys = _twice(jax.random.split(life_key, pairs))
        finish = lives.start(etas, tasks, keys, group.learning_rate, length, place=place)
        return perturbations, lambda: self.score(lives, tasks, finish()).reshape(2, pairs)

    def score(self, lives: Lives, tasks: PyTree, record: Record) -> np.ndarray:
        """What lives were worth, [L]."""
        parts = record.end(self.config.end_share), record.area()
        # A life in which nothing ends has earned nothing that is known of.
        end, area = (np.nan_to_num(lives.normalise(tasks, part)) for part in parts)
        end, area = (np.clip(part, LEAST_SCORE, MOST_SCORE) for part in (end, area))
        return self.config.end_weight * end + (1 - self.config.end_weight) * area

    # --- pure functions ---------------------------------------------------------------------------

    def _scale(self, path: tuple) -> float:
        return self._scales.get(part_of(path), 1.0)

    def _perturb_of(self, pairs: int, eta: Params, key: Key, noise: Array) -> tuple[Params, Params]:
        """Standard perturbations, leaves [P, ...], and perturbed parameters, leaves [2 P, ...]."""
        leaves, tree = jax.tree.flatten(eta)
        keys = jax.tree.unflatten(tree, list(jax.random.split(key, len(leaves))))
        draw = functools.partial(_draw, pairs=pairs, rank=self.config.rank)
        drawn = jax.tree.map(draw, keys, eta)

        def around(path: tuple, centre: Array, perturbation: Array) -> Array:
            moved = noise * self._scale(path) * perturbation
            return jnp.concatenate([centre + moved, centre - moved])

        return drawn, jax.tree_util.tree_map_with_path(around, eta, drawn)

    def _gradient_of(self, perturbations: Params, advantage: Array) -> tuple[Params, Params]:
        """Estimates from either half of the pairs, to be averaged.

        Perturbations have leaves [P, ...]. The advantage, [P], is that of the first life of each
        pair over the second.
        """
        half = advantage.shape[0] // 2

        def estimate(part: slice) -> Params:
            return jax.tree.map(
                lambda x: jnp.tensordot(advantage[part], x[part], 1) / max(1, half), perturbations
            )

        return estimate(slice(None, half)), estimate(slice(half, None))

    def _moved(
        self, state: EvolutionState, first: Params, second: Params, step: Array, count: Array
    ) -> tuple[EvolutionState, dict[str, Array]]:
        """Moves the parameters along the average of two estimates of the gradient."""
        beta = self.config.momentum

        def active(path: tuple, x: Array) -> Array:
            return x if self._scale(path) else jnp.zeros_like(x)

        first, second = (jax.tree_util.tree_map_with_path(active, part) for part in (first, second))
        gradient = jax.tree.map(lambda x, y: (x + y) / 2, first, second)
        momentum = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, state.momentum, gradient)
        size = beta * state.size + (1 - beta) * self._rms(gradient)
        # Momentum and size are biased alike while they are young.
        eta = jax.tree_util.tree_map_with_path(
            lambda path, x, m: x + step * self._scale(path) * m / (size + 1e-12),
            state.eta,
            momentum,
        )
        share = (1 + self.config.averaging) / (count + self.config.averaging)
        average = jax.tree.map(lambda x, y: x + share * (y - x), state.average, eta)
        metrics = {
            "meta/agreement": _cosine(first, second),
            "meta/momentum": self._rms(momentum) / (size + 1e-12),
            "meta/moved": _norm(jax.tree.map(jnp.subtract, eta, state.eta)),
        }
        moved = dataclasses.replace(
            state,
            eta=eta,
            average=average,
            momentum=momentum,
            size=size,
            generation=state.generation + 1,
        )
        return moved, metrics

    def _rms(self, gradient: Params) -> Array:
        """Root mean square over the parts that evolve."""
        sizes = jax.tree_util.tree_map_with_path(
            lambda path, x: x.size if self._scale(path) else 0, gradient
        )
        return _norm(gradient) / np.sqrt(max(1, sum(jax.tree.leaves(sizes))))


def part_of(path: tuple) -> str:
    """The part of `eta` that a leaf belongs to: the first name in its path."""
    return str(getattr(path[0], "key", path[0])) if path else ""


def _average(before: float, value: float, decay: float = 0.9) -> float:
    return value if np.isnan(before) else decay * before + (1 - decay) * value


def _draw(key: Key, leaf: Array, *, pairs: int, rank: int) -> Array:
    """Perturbations with unit variance, [pairs, *shape]; of low rank where that is less."""
    if rank == 0 or leaf.ndim != 2 or min(leaf.shape) <= rank:
        return jax.random.normal(key, (pairs, *leaf.shape))
    keys = jax.random.split(key)
    left, right = (
        jax.random.normal(k, (pairs, side, rank)) for k, side in zip(keys, leaf.shape, strict=True)
    )
    return jnp.einsum("pir,pjr->pij", left, right) / np.sqrt(rank)


def _twice(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.concatenate([x, x]), tree)


def _norm(tree: Params) -> Array:
    return jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)))


def _cosine(first: Params, second: Params) -> Array:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    product = sum(jnp.sum(x * y) for x, y in pairs)
    return product / (_norm(first) * _norm(second) + 1e-12)
