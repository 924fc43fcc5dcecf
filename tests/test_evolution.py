"""Evolution over lives, of which the worth is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discorl.discovery.evolution import Evolution, LifeGroup
from discorl.discovery.lives import BINS, Record
from discorl.discovery.strategy import EvolutionConfig, Strategy
from discorl.types import UserError

OPTIMUM = {"a": np.array([0.5, -0.3]), "b": np.array([[0.2, 0.4], [-0.4, 0.1]])}
START = jax.tree.map(np.zeros_like, OPTIMUM)


@dataclasses.dataclass
class Quadratic:
    """Lives that earn less the further the parameters are from an optimum, times the task."""

    size: int = 16
    family: str = "quadratic"
    share: float = 1.0  # of the worth
    luck: float = 0.3  # its spread; as in real lives, it is the same for both lives of a pair
    fails: bool = False  # no episode ends

    def __post_init__(self):
        self.calls = []

    def tasks(self, keys, split):
        assert split == "train"
        return jax.vmap(lambda key: jax.random.uniform(key, minval=0.5, maxval=1.0))(keys)

    def start(self, etas, tasks, keys, learning_rates, updates, *, place):
        count = len(tasks)
        distance = sum(
            np.sum((np.asarray(etas[n]) - OPTIMUM[n]).reshape(count, -1) ** 2, 1) for n in OPTIMUM
        )
        luck = self.luck * np.asarray(jax.vmap(jax.random.normal)(keys))
        worth = self.share * np.asarray(tasks) * (0.6 - distance) + luck
        self.calls.append((etas, tasks, keys, updates))
        counts = np.zeros((count, BINS)) if self.fails else np.ones((count, BINS))
        return lambda: Record(np.repeat(worth[:, None], BINS, 1), counts)

    def normalise(self, tasks, returns):
        return returns

    def repeat(self, eta, count):
        return jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], count, 0), eta)


def distance(eta):
    return float(np.sqrt(sum(np.sum((np.asarray(eta[n]) - OPTIMUM[n]) ** 2) for n in OPTIMUM)))


def evolve(evolution, state, generations):
    for _ in range(generations):
        state, metrics = evolution.step(state)
    return state, metrics


CONFIG = EvolutionConfig(step=0.05, noise=0.1, cooldown=0.3)


def make(*lives, config=CONFIG, **options):
    groups = [LifeGroup(each.family, each, each.size, learning_rate=0.1) for each in lives]
    return Evolution(groups, config, generations=60, **options)


def test_evolution_finds_the_optimum():
    evolution = make(Quadratic(), Quadratic(size=8, family="other"))
    state, metrics = evolve(evolution, evolution.init(START, jax.random.key(0)), 60)
    assert distance(START) > 0.8
    assert distance(state.average) < 0.1
    assert distance(state.eta) < 0.15
    assert -1 <= metrics["meta/agreement"] <= 1
    assert metrics["charts/score/quadratic"] > 0.2
    assert metrics["charts/score"] == pytest.approx(
        (metrics["charts/score/quadratic"] + metrics["charts/score/other"]) / 2
    )


def test_evolution_resumes_bit_for_bit():
    whole = make(Quadratic())
    expected, _ = evolve(whole, whole.init(START, jax.random.key(3)), 6)
    first = make(Quadratic())
    state, _ = evolve(first, first.init(START, jax.random.key(3)), 3)
    kept = [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(state)
    ]
    like, tree = jax.tree.flatten(first.init(START, jax.random.key(0)))
    restored = [
        jax.random.wrap_key_data(x) if jnp.issubdtype(y.dtype, jax.dtypes.prng_key) else x
        for x, y in zip(kept, like, strict=True)
    ]
    second = make(Quadratic())
    found, _ = evolve(second, jax.tree.unflatten(tree, restored), 3)
    jax.tree.map(
        np.testing.assert_array_equal, (found.eta, found.average), (expected.eta, expected.average)
    )
    np.testing.assert_array_equal(found.spreads, expected.spreads)


def test_pairs_are_opposite_on_the_same_task_and_key():
    lives = Quadratic(size=6)
    evolution = make(lives)
    evolve(evolution, evolution.init(OPTIMUM, jax.random.key(0)), 2)
    (etas, tasks, keys, _), (_, other_tasks, other_keys, _) = lives.calls
    np.testing.assert_allclose(etas["b"][:3] + etas["b"][3:], 2 * OPTIMUM["b"][None].repeat(3, 0))
    np.testing.assert_array_equal(tasks[:3], tasks[3:])
    data, other = jax.random.key_data(keys), jax.random.key_data(other_keys)
    np.testing.assert_array_equal(data[:3], data[3:])
    assert len(np.unique(data[:3], axis=0)) == 3
    assert (data != other).any(axis=1).all()
    assert (tasks != other_tasks).all()


def test_parts_can_be_left_out():
    evolution = make(Quadratic(), scales={"b": 0.0})
    state, _ = evolve(evolution, evolution.init(START, jax.random.key(0)), 30)
    np.testing.assert_array_equal(state.eta["b"], START["b"])
    assert np.abs(state.eta["a"] - OPTIMUM["a"]).max() < 0.25


def test_families_count_equally():
    """Two groups of one family weigh as much as one of another; tiny differences count, too."""
    groups = [Quadratic(), Quadratic(), Quadratic(family="other")]
    np.testing.assert_allclose(make(*groups)._weights, [0.25, 0.25, 0.5])


def test_families_with_small_gains_count_more():
    """With factors exp(-2 gain): gains are clipped at -0.2 and 0.1, and are 0 while unknown."""
    config = dataclasses.replace(CONFIG, balance=2.0)
    gains = np.array([[0.05, -0.05], [0.7, -0.6], [np.nan, 0.0]])
    factors = np.exp([[-0.1, 0.1], [-0.2, 0.4], [0.0, 0.0]])
    found = config.shares(np.array([0.25, 0.25, 0.5]), gains, np.array([1, 0, 0]))
    expected = np.array([0.25, 0.25, 0.5]) * [factors[0, 1], factors[1, 0], 1] / factors.mean()
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    equal = CONFIG.shares(np.array([0.25, 0.25, 0.5]), gains, np.array([1, 0, 0]))
    np.testing.assert_array_equal(equal, [0.25, 0.25, 0.5])


def test_gains_are_over_new_rules_on_the_same_tasks_and_keys():
    config = dataclasses.replace(CONFIG, balance=10.0, shortest_life=100, longest_life=400)
    weak, strong = Quadratic(size=16, share=0.1), Quadratic(size=16, family="other")
    for lives in (weak, strong):
        lives.size = 20  # 8 pairs and 4 new rules
    groups = [LifeGroup(each.family, each, 16, learning_rate=0.1) for each in (weak, strong)]
    evolution = Evolution(groups, config, generations=60, new=START)
    state, metrics = evolve(evolution, evolution.init(OPTIMUM, jax.random.key(0)), 40)
    etas, tasks, keys, _ = weak.calls[0]
    data = jax.random.key_data(keys)
    np.testing.assert_array_equal(tasks[16:], tasks[:4])
    np.testing.assert_array_equal(data[16:], data[:4])
    np.testing.assert_array_equal(etas["b"][16:], 0 * etas["b"][:4])
    # The optimum is better than the start by 0.67 times the task, 0.75 on average, and the share;
    # perturbations cost 6 * 0.1 ** 2.
    gain = 0.75 * (distance(START) ** 2 - 6 * 0.1**2)
    np.testing.assert_allclose(state.gains[0], 0.1 * gain, atol=0.02)
    np.testing.assert_allclose(state.gains[1], gain, atol=0.2)
    assert metrics["meta/gain/other"] > metrics["meta/gain/quadratic"]
    assert metrics["meta/share/other"] < 0.45 < 0.5 < metrics["meta/share/quadratic"]


def test_a_curriculum_keeps_the_tasks_in_which_a_new_rule_scores_lowest():
    """A new rule scores the task times a negative number, and luck, which belongs to the member."""
    lives = Quadratic(size=32, luck=0.05)
    config = dataclasses.replace(CONFIG, hardest=0.25)
    evolution = make(lives, config=config, new=START)
    state, _ = evolve(evolution, evolution.init(OPTIMUM, jax.random.key(0)), 5)
    first, *later = lives.calls
    np.testing.assert_array_equal(first[0]["a"], np.zeros((256, 2)))
    scores = lives.start(*first[:3], 0.1, 390, place=0)().return_sum[:, 0]
    hardest = np.sort(np.asarray(first[1])[np.argsort(scores)[:64]])
    np.testing.assert_array_equal(np.sort(np.asarray(first[1])[state.pools[0]]), hardest)
    assert len(later) == 5
    lived = np.concatenate([call[1] for call in later])
    assert np.isin(lived, hardest).all()
    assert len(np.unique(lived)) > 32


def test_life_lengths_are_spread_between_the_shortest_and_the_longest():
    lives = [Quadratic(size=2), Quadratic(size=2)]
    config = dataclasses.replace(CONFIG, shortest_life=100, longest_life=1000)
    evolution = make(*lives, config=config)
    evolve(evolution, evolution.init(START, jax.random.key(0)), 30)
    lengths = np.array([call[3] for group in lives for call in group.calls])
    assert lengths.min() >= 100
    assert lengths.max() <= 1000
    shares = np.histogram(np.log10(lengths), bins=4, range=(2, 3))[0] / len(lengths)
    np.testing.assert_allclose(shares, 0.25, atol=0.05)


def test_lives_in_which_nothing_ends_move_nothing():
    evolution = make(Quadratic(fails=True))
    state, _ = evolve(evolution, evolution.init(START, jax.random.key(0)), 3)
    jax.tree.map(np.testing.assert_array_equal, state.eta, START)


def test_perturbations_of_low_rank():
    evolution = make(Quadratic(), config=dataclasses.replace(CONFIG, rank=2))
    eta = {"w": jnp.zeros((12, 9)), "v": jnp.zeros(5)}
    drawn, etas = evolution._perturb(200, eta, jax.random.key(0), jnp.float32(0.1))
    assert np.linalg.matrix_rank(np.asarray(drawn["w"][0])) == 2
    np.testing.assert_allclose(np.var(drawn["w"]), 1, rtol=0.05)
    np.testing.assert_allclose(etas["w"][:200], 0.1 * drawn["w"], rtol=1e-6)
    assert drawn["v"].shape == (200, 5)


def test_steps_decay_at_the_end():
    config = EvolutionConfig(cooldown=0.4, least_decay=0.1)
    assert [config.decay(x) for x in (0, 0.6, 0.8, 1)] == [1.0, 1.0, pytest.approx(0.5), 0.1]


@pytest.mark.parametrize(
    "wrong", [{"noise": 0.0}, {"momentum": 1.5}, {"shortest_life": 0}, {"longest_life": 10}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        EvolutionConfig(**wrong)


def test_an_odd_number_of_lives():
    with pytest.raises(UserError, match="quadratic has 3 agents"):
        make(Quadratic(size=3))


@pytest.mark.parametrize("pairs", [1, 3, 4])
def test_the_gradient_is_the_mean_over_pairs(pairs):
    perturbations = {"a": np.arange(2.0 * pairs).reshape(pairs, 2)}
    advantage = np.linspace(-1, 2, pairs)
    first, second = Strategy(EvolutionConfig(), {}).gradient(perturbations, advantage)
    expected = sum(a * x for a, x in zip(advantage, perturbations["a"], strict=True)) / pairs
    np.testing.assert_allclose((first["a"] + second["a"]) / 2, expected, rtol=1e-6)
