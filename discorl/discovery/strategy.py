"""An evolution strategy with antithetic pairs, as pure functions.

Two agents live with opposite perturbations of the rule (Rechenberg 1973; Salimans et al. 2017,
arXiv:1703.03864). The difference of their scores, times the perturbation, estimates the gradient of
the rule's score.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discorl.discovery.lives import Record
from discorl.rules import Rule
from discorl.types import Array, Key, Params, UserError, specs
from discorl.types.validation import Fields, bounded

LEAST_SCORE, MOST_SCORE = -0.25, 1.1  # clip of a life's score
LEAST_GAIN, MOST_GAIN = -0.2, 0.1  # clip of the gain that decides how much a family counts
POOL = 256  # members of a family among which the hardest are chosen


@dataclasses.dataclass(frozen=True)
class EvolutionConfig:
    """How a rule evolves over whole lives."""

    noise: float = bounded(0.25, above=0)
    """Standard deviation of the perturbations."""
    step: float = bounded(0.06, above=0)
    """Root mean square of the movement in one generation."""
    momentum: float = bounded(0.9, least=0, below=1)
    """Decay of the moving average of gradients."""
    cooldown: float = bounded(0.7, least=0, most=1)
    """Share of the generations, the last ones, in which steps decay; noise decays half as far."""
    least_decay: float = bounded(0.1, least=0, most=1)
    """Final size of steps, as a share of the first."""
    shortest_life: int = bounded(150, least=1)
    """Updates of the shortest lives."""
    longest_life: int = 1000
    """Updates of the longest lives; lengths are spread evenly on a logarithmic scale."""
    end_weight: float = bounded(0.6, least=0, most=1)
    """Weight of the end of a life in its score; the area under its curve has the rest."""
    end_share: float = bounded(0.25, above=0, most=1)
    """Share of a life that counts as its end."""
    most_difference: float = bounded(1.0, above=0)
    """Clip of the difference between the two lives of a pair."""
    parts: tuple[str, ...] = ()
    """Parts of the rule's parameters to evolve, by the first name in their path; by default those
    that the rule names (`Rule.noise_scales`)."""
    rank: int = bounded(0, least=0)
    """Rank of the perturbations of matrices; 0: full."""
    balance: float = bounded(0.0, least=0)
    """How strongly families count more in which the rule gains little over a new one: weights are
    proportional to exp(-balance * gain). Only for `es`; half as many new rules as pairs then
    live on the same tasks. 0: families count equally."""
    hardest: float = bounded(1.0, above=0, most=1)
    """Curriculum: the share of each family's tasks that agents live in, those in which a new rule
    scores lowest. Only for `es`, which picks them from 256 members before the first generation.
    1: all tasks."""
    averaging: float = bounded(4.0, least=0)
    """How strongly the average of the iterates favours the latest: weights grow with the generation
    to this power."""

    def __post_init__(self) -> None:
        fields = Fields(self).declared()
        fields.integer("longest_life", least=self.shortest_life)

    def length(self, place: float) -> int:
        """Updates of a life; `place` from 0 to 1 interpolates between shortest and longest."""
        return round(self.shortest_life * (self.longest_life / self.shortest_life) ** place)

    def new_rules(self, count: int) -> int:
        """Lives of new rules beside `count` lives in pairs."""
        return count // 4 if self.balance else 0

    @property
    def pool(self) -> int:
        """Members of each family that agents live in; 0: all."""
        return max(1, round(self.hardest * POOL)) if self.hardest < 1 else 0

    def noise_left(self, decay: float) -> float:
        """Size of perturbations when the step has decayed to a share; it decays half as far."""
        return self.noise * (0.5 + 0.5 * decay)

    def decay(self, progress: float) -> float:
        """Share that the step has decayed to after a share of the generations."""
        return min(1.0, max(self.least_decay, (1 - progress) / max(self.cooldown, 1e-9)))

    def score(
        self, record: Record, normalise: Callable[[np.ndarray], np.ndarray] = np.asarray
    ) -> np.ndarray:
        """Scores of lives, [L]; `normalise` turns the returns of a record into scores."""
        parts = record.end(self.end_share), record.area()
        # A life in which no episode ends has score 0.
        end, area = (np.nan_to_num(normalise(part)) for part in parts)
        end, area = (np.clip(part, LEAST_SCORE, MOST_SCORE) for part in (end, area))
        return self.end_weight * end + (1 - self.end_weight) * area

    def difference(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Score of the first life of each pair minus that of the second, clipped: [P]."""
        return np.clip(first - second, -self.most_difference, self.most_difference)

    def shares(self, weights: np.ndarray, gains: np.ndarray, kinds: np.ndarray) -> np.ndarray:
        """Weights of groups, [groups], that favour those with small gains.

        `gains`, [groups, kinds], are NaN where nothing is known; `kinds` is that of each group's
        lives now. Over all groups and kinds, the mean of the factors is 1.
        """
        clipped = np.clip(np.nan_to_num(gains), LEAST_GAIN, MOST_GAIN)
        factors = np.exp(-self.balance * clipped)
        return weights * factors[np.arange(len(gains)), kinds] / factors.mean()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Momentum:
    """Moving averages of past gradients."""

    mean: Params  # moving average of the gradients
    size: Array  # [], moving average of their root mean square

    @classmethod
    def zeros(cls, eta: Params) -> "Momentum":
        """The state before the first gradient."""
        return cls(jax.tree.map(jnp.zeros_like, eta), jnp.zeros(()))


class Strategy:
    """Perturbs parameters and moves them.

    `scales` of perturbations and steps are by part of `eta`, by default 1. Parts with scale 0 do
    not change.
    """

    def __init__(self, config: EvolutionConfig, scales: Mapping[str, float]) -> None:
        self.config, self._scales = config, dict(scales)

    def scale(self, path: tuple) -> float:
        """Scale of a leaf by its path."""
        return self._scales.get(part_of(path), 1.0)

    def perturb(self, pairs: int, eta: Params, key: Key, noise: Array) -> tuple[Params, Params]:
        """Standard perturbations, leaves [P, ...], and perturbed parameters, leaves [2 P, ...]."""
        drawn = self.draw(pairs, eta, key)

        def around(path: tuple, centre: Array, perturbation: Array) -> Array:
            moved = noise * self.scale(path) * perturbation
            return jnp.concatenate([centre + moved, centre - moved])

        return drawn, jax.tree_util.tree_map_with_path(around, eta, drawn)

    def draw(self, pairs: int, eta: Params, key: Key) -> Params:
        """Standard perturbations, leaves [P, ...]."""
        leaves, tree = jax.tree.flatten(eta)
        keys = jax.tree.unflatten(tree, list(jax.random.split(key, len(leaves))))
        return jax.tree.map(functools.partial(_draw, pairs=pairs, rank=self.config.rank), keys, eta)

    def gradient(self, perturbations: Params, advantage: Array) -> tuple[Params, Params]:
        """Estimates of the gradient from either half of the pairs, to be averaged.

        Perturbations have leaves [P, ...]. The advantage, [P], is that of the first life of each
        pair over the second.
        """
        pairs = advantage.shape[0]
        half = pairs // 2

        def estimate(part: slice) -> Params:
            # The same divisor in both halves, so that all pairs count equally.
            return jax.tree.map(
                lambda x: jnp.tensordot(advantage[part], x[part], 1) / (pairs / 2), perturbations
            )

        return estimate(slice(None, half)), estimate(slice(half, None))

    def move(
        self, eta: Params, momentum: Momentum, first: Params, second: Params, step: Array
    ) -> tuple[Params, Momentum, dict[str, Array]]:
        """Moves parameters along the average of two estimates of the gradient.

        Returns the parameters, the momentum, and metrics.
        """
        beta = self.config.momentum

        def active(path: tuple, x: Array) -> Array:
            return x if self.scale(path) else jnp.zeros_like(x)

        first, second = (jax.tree_util.tree_map_with_path(active, part) for part in (first, second))
        gradient = jax.tree.map(lambda x, y: (x + y) / 2, first, second)
        mean = jax.tree.map(lambda m, g: beta * m + (1 - beta) * g, momentum.mean, gradient)
        size = beta * momentum.size + (1 - beta) * self._rms(gradient)
        # Without debiasing: both averages have the same bias at first.
        moved = jax.tree_util.tree_map_with_path(
            lambda path, x, m: x + step * self.scale(path) * m / (size + 1e-12), eta, mean
        )
        metrics = {
            "meta/agreement": _cosine(first, second),
            "meta/momentum": self._rms(mean) / (size + 1e-12),
            "meta/moved": optax.tree.norm(jax.tree.map(jnp.subtract, moved, eta)),
        }
        return moved, Momentum(mean, size), metrics

    def _rms(self, gradient: Params) -> Array:
        """Root mean square over the parts that evolve."""
        sizes = jax.tree_util.tree_map_with_path(
            lambda path, x: x.size if self.scale(path) else 0, gradient
        )
        return optax.tree.norm(gradient) / np.sqrt(max(1, sum(jax.tree.leaves(sizes))))


def named_scales(named: Sequence[str], rule: Rule) -> Mapping[str, float]:
    """Scales of a rule's parts, 0 for parts that are not named; the rule's own if none is named."""
    if not named:
        return rule.noise_scales
    shapes = jax.eval_shape(rule.init_params, jax.random.key(0))
    parts = sorted({part_of(path) for path, _ in jax.tree.leaves_with_path(shapes)})
    specs.require_known("part of the rule", named, parts)
    return {part: (rule.noise_scales.get(part) or 1.0) * (part in named) for part in parts}


def require_pairs(name: str, agents: int) -> None:
    """Rejects an odd number of agents."""
    if agents % 2:
        raise UserError(
            f"{name} has {agents} agents; expected an even number: in evolution, they live in pairs"
        )


def equal_shares(names: Sequence[str]) -> np.ndarray:
    """Weights of groups such that names count equally, for any number of their groups."""
    shares = np.array([1 / names.count(name) for name in names])
    return shares / shares.sum()


def moving_average(before: float, value: float, decay: float = 0.9) -> float:
    """Updates a moving average; `before` is NaN at first."""
    return value if np.isnan(before) else decay * before + (1 - decay) * value


def part_of(path: tuple) -> str:
    """The part of `eta` that a leaf belongs to: the first key of its path."""
    return str(getattr(path[0], "key", path[0])) if path else ""


def _draw(key: Key, leaf: Array, *, pairs: int, rank: int) -> Array:
    """Perturbations with unit variance, [pairs, *shape]; of low rank if `rank` is below full."""
    if rank == 0 or leaf.ndim != 2 or min(leaf.shape) <= rank:
        return jax.random.normal(key, (pairs, *leaf.shape))
    keys = jax.random.split(key)
    left, right = (
        jax.random.normal(k, (pairs, side, rank)) for k, side in zip(keys, leaf.shape, strict=True)
    )
    return jnp.einsum("pir,pjr->pij", left, right) / np.sqrt(rank)


def _cosine(first: Params, second: Params) -> Array:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    product = sum(jnp.sum(x * y) for x, y in pairs)
    return product / (optax.tree.norm(first) * optax.tree.norm(second) + 1e-12)
