"""Meta-gradients and evolution in one population: each moves its own part of the rule."""

import dataclasses
import functools

import discoveries
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discoveries import assert_same
from timing import untimed

import discorl
from discorl.discovery import loop, methods
from discorl.discovery.agents import Agents, AgentState
from discorl.discovery.population import Population
from discorl.discovery.scoring import Score
from discorl.discovery.start import keys_of
from discorl.rules import PolicyGradient
from discorl.runs.metrics import EPISODES, LENGTH, RETURN, SCORE
from discorl.types import UserError

OPTIMUM = {"felt": 0.6, "lived": jnp.array([-0.5, 0.4])}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoParts(PolicyGradient):
    """Stands for a rule of which one part has a gradient and the other shows in whole lives."""

    def init_params(self, key):
        return {"felt": jnp.zeros(()), "lived": jnp.zeros(2)}


class Known(Agents):
    """Agents whose meta-gradients and scores are known functions of the rule.

    The gradient of "felt" leads to its optimum, and that of "lived" away from its own, which only
    scores lead to. Luck, equal in a pair, is most of a score.
    """

    def __init__(self, group, config, rule):
        self._in_pairs = config.in_pairs

    def begin(self, key, lives):
        key, budget_key = jax.random.split(key)
        budget = jax.random.randint(budget_key, (), 2, 5)
        return AgentState(training=jnp.int32(0), meta_value=(), key=key, budget=budget, lives=lives)

    def meta_step(self, eta, state):
        key, luck_key = jax.random.split(state.key)
        distance = jax.tree.map(jnp.subtract, eta, OPTIMUM)
        worth = 0.5 - jnp.sum(distance["lived"] ** 2) + 0.2 * jax.random.normal(luck_key)
        gradient = {"felt": distance["felt"], "lived": -5 * distance["lived"]}
        steps = state.training + 1
        metrics = {
            "life/steps": steps,
            "life/budget": state.budget,
            "life/number": state.lives,
            "life/finite": jnp.array(True),
            "life/key": jax.random.key_data(key)[-1],
            "life/lived": eta["lived"][0],
            "life/felt": eta["felt"],
            RETURN: worth,
            LENGTH: jnp.float32(1),
            EPISODES: jnp.float32(1),
        }
        metrics |= {SCORE: worth} if self._in_pairs else {}
        return gradient, dataclasses.replace(state, key=key, training=steps), metrics


def settings(**changes):
    return discoveries.TINY | {
        "rule": "test_pairs:TwoParts",
        "method": "both",
        "parts": ("lived",),
        "population": ("bandit", "chain"),
        "agents": 8,
        "meta_steps": 120,
        "meta_learning_rate": 0.02,
        "ema": 0.5,
        "noise": 0.15,
        "step": 0.05,
        "evaluate_every": 1000,
        "checkpoint_every": 30,
        **changes,
    }


@functools.cache
def population_of(**changes):
    """A population and its first state, whose arrays the caller must not use up."""
    config = discorl.configure_discovery(**settings(**changes))
    population = Population(config, TwoParts(), agents=Known)
    return population, population.init(TwoParts().init_params(None), jax.random.key(1))


@pytest.fixture
def unscored(monkeypatch):
    """Nothing is evaluated or drawn."""
    score = Score({"bandit": 0.0}, {"bandit": 0.0})
    monkeypatch.setattr(loop, "Scoring", lambda *_: lambda eta: score)
    monkeypatch.setattr(loop.curves, "discovery_curve", lambda *_, **__: None)


@pytest.fixture
def known_agents(monkeypatch, unscored):
    """Every discovery has agents of which all is known."""
    monkeypatch.setattr(
        methods, "Population", lambda *given, **named: Population(*given, **named, agents=Known)
    )


def test_each_method_moves_its_own_part_to_its_optimum(known_agents):
    found = discorl.discover(**settings(block_size=3)).eta  # pairs need not be in one block
    assert float(found["felt"]) == pytest.approx(OPTIMUM["felt"], abs=0.02)
    np.testing.assert_allclose(found["lived"], OPTIMUM["lived"], atol=0.1)


def test_neighbours_live_the_same_life_with_opposite_perturbations():
    population, state = population_of()
    state = jax.tree.map(jnp.copy, state)
    lives = {}
    for _ in range(8):
        eta = state.eta
        state, whole, by_agent = population.meta_step(state)
        for name in ("life/key", "life/budget", "life/number"):
            np.testing.assert_array_equal(by_agent[name][::2], by_agent[name][1::2])
        np.testing.assert_array_equal(by_agent["life/felt"], float(eta["felt"]))
        moved = by_agent["life/lived"] - float(eta["lived"][0])
        np.testing.assert_allclose(moved[::2], -moved[1::2], atol=1e-6)
        for pair, size in enumerate(moved[::2]):  # which stays over a life, and no longer
            lives.setdefault((pair, int(by_agent["life/number"][2 * pair])), []).append(size)
        ended = by_agent["life/steps"] == by_agent["life/budget"]
        np.testing.assert_array_equal(np.isfinite(by_agent["life/score"]), ended)
    assert len({number for _, number in lives}) >= 2
    sizes = [sizes[0] for sizes in lives.values()]
    assert len(np.unique(np.round(sizes, 5))) == len(lives)
    for sizes in lives.values():
        np.testing.assert_allclose(sizes, sizes[0], atol=1e-6)
    assert whole["meta/generations"] >= 1


def test_evolved_parts_wait_for_the_ends_of_lives():
    population, state = population_of()
    state = jax.tree.map(jnp.copy, state)
    ended = 0
    for _ in range(6):
        before, average = state.eta, state.eta_ema
        state, whole, by_agent = population.meta_step(state)
        ended += int(np.isfinite(by_agent["life/score"]).sum()) // 2
        is_due = ended >= 8  # pairs
        ended = 0 if is_due else ended
        assert bool((state.eta["lived"] != before["lived"]).any()) == is_due
        assert np.isfinite(whole["meta/moved"]) == is_due
        assert state.eta["felt"] != before["felt"]
        expected = jax.tree.map(lambda x, y: (x + y) / 2, average, state.eta)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8),
            state.eta_ema,
            expected,
        )


def test_the_step_of_a_generation_by_hand():
    """One group and one generation: the step is along the mean of difference x perturbation."""
    population, state = population_of(population=("bandit",), agents=4, momentum=0.0)
    state = jax.tree.map(jnp.copy, state)
    pairs, products = {0: None, 1: None}, []
    for _ in range(4):
        eta = state.eta
        rule = population._pairs.perturbed(
            state.pairs, eta, population.blocks[0], state.blocks[0].lives
        )
        noise = (np.asarray(rule["lived"][::2]) - np.asarray(eta["lived"])) / 0.15
        state, whole, by_agent = population.meta_step(state)
        scores = by_agent["life/score"]
        for pair in pairs:
            if np.isfinite(scores[2 * pair]):
                products.append(noise[pair] * (scores[2 * pair] - scores[2 * pair + 1]))
        if whole["meta/generations"]:
            break
    assert len(products) >= 2
    step = np.mean(products, axis=0)
    expected = 0.05 * step / np.sqrt(np.mean(step**2))
    np.testing.assert_allclose(state.eta["lived"] - eta["lived"], expected, rtol=1e-3)


def test_a_life_that_breaks_ends_its_pair_with_the_least_score():
    population, state = population_of(population=("bandit",), agents=4, momentum=0.0)
    by_agent = {
        "life/steps": np.array([1, 1, 1, 1]),
        "life/budget": np.array([4, 4, 4, 4]),
        "life/number": np.zeros(4, np.int32),
        "life/finite": np.array([True, False, True, True]),
        SCORE: np.array([0.75, np.nan, 0.5, 0.5], np.float32),
        EPISODES: np.array([1, 0, 1, 1], np.float32),
    }
    over = np.array([True, True, False, False])
    evolution, _, _, scores = population._pairs.learn(state.pairs, state.eta, by_agent, over)
    # The sound life has no end either, which would weigh 0.6, and an area of 0.75.
    np.testing.assert_allclose(scores, [0.4 * 0.75, -0.25, np.nan, np.nan])
    np.testing.assert_allclose(evolution.differences, [[1, 0.55, 0.55**2]])
    np.testing.assert_array_equal(evolution.episodes.sum(axis=1), [0, 0, 1, 1])


def test_without_parts_that_evolve_it_is_the_gradient_method(known_agents):
    few = {"meta_steps": 6}
    both = discorl.discover(**settings(**few, parts=()))
    gradient = discorl.discover(**settings(**few, method="meta_gradient"))
    assert_same(both.eta, gradient.eta)
    assert_same(untimed(both.metrics), untimed(gradient.metrics))


def test_a_killed_run_resumes_bit_for_bit(known_agents, tmp_path, monkeypatch):
    given = settings(meta_steps=24, checkpoint_every=9)
    whole = discorl.discover(**given, out=tmp_path / "whole")

    def killed(self, done, state):
        save(self, done, state)
        raise KeyboardInterrupt

    save = loop._Loop._save
    with monkeypatch.context() as patch:
        patch.setattr(loop._Loop, "_save", killed)
        with pytest.raises(KeyboardInterrupt):
            discorl.discover(**given, out=tmp_path / "killed")
    resumed = discorl.discover(resume=tmp_path / "killed")
    assert_same(resumed.eta, whole.eta)
    assert_same(untimed(resumed.metrics), untimed(whole.metrics))
    assert whole.metrics["meta/generations"][-1] > whole.metrics["meta/generations"][8] >= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agents": 3}, "bandit has 3 agents; expected an even number"),
        ({"parts": ("live",)}, "no part of the rule 'live'; did you mean 'lived'"),
    ],
)
def test_what_cannot_evolve_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        population_of(**changes)


def test_real_agents_of_a_lean_rule(unscored):
    """Gradients move the network and evolution the coefficients, in a family with exact scores."""
    tiny = discoveries.TINY | {
        "rule": "lean",
        "method": "both",
        "parts": ("coefficients",),
        "population": ("bandit",),
        "agents": 2,
        "meta_steps": 6,
        "noise": 1.0,
        "learning_rate": 0.05,
    }
    result = discorl.discover(**tiny)
    assert result.metrics["meta/generations"][-1] >= 1
    assert np.abs(result.eta["coefficients"]).max() > 0
    assert np.abs(result.eta["output"]).max() > 0
    start = jax.jit(result.rule.init_params)(keys_of(result.config).rule)
    assert np.abs(result.eta["hidden"] - start["hidden"]).max() > 0
