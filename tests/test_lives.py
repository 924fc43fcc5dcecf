"""Whole lives as one program, against plain training runs."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discorl.agent.config import AgentConfig, NetworkConfig, OptimiserConfig
from discorl.agent.optimiser import with_learning_rate
from discorl.discovery.lives import BINS, Lives, Record
from discorl.envs.families.chain import Chain
from discorl.rules.lean import Lean
from discorl.rules.ppo import PPO
from discorl.runs.metrics import EPISODES, RETURN
from discorl.training.compiled.agent import CompiledAgent
from discorl.types import UserError

FAMILY = Chain(length=4)
SIZES = {"network": NetworkConfig(hidden=(8,)), "num_envs": 2, "unroll": 5}
OPTIMISER = OptimiserConfig(max_gradient_norm=1.0)
AGENT = AgentConfig(**SIZES, optimiser=OPTIMISER, batch=4, replay=8, replay_fraction=0.5)
RATES = np.array([0.01, 0.1], np.float32)


def etas_of(rule, count, slope=0.5):
    """Parameters that differ from life to life, and schedules that differ from one another."""
    rng = np.random.default_rng(0)
    eta = rule.init_params(jax.random.key(0))
    return jax.tree.map(
        lambda x: x + slope * jnp.asarray(rng.normal(size=(count, *x.shape)), x.dtype), eta
    )


@pytest.fixture(scope="module")
def lives():
    return Lives(FAMILY, AGENT, Lean(), size=2)


@pytest.fixture(scope="module")
def start(lives):
    return start_of(lives)


def start_of(lives):
    """Parameters, tasks and keys of two lives."""
    return (
        etas_of(Lean(), 2),
        lives.tasks(jax.random.split(jax.random.key(1)), "train"),
        jax.random.split(jax.random.key(2), 2),
    )


def plain_run(lives, agent, rule_eta, task, key, rate, updates):
    """Sums of returns and numbers of episodes, of every update, by a run like any other."""
    trainer = CompiledAgent(agent, FAMILY.environment(task), lives._learner)
    state = with_learning_rate(trainer.init(key, updates), float(rate))
    _, metrics = jax.jit(trainer.run)(state, rule_eta, updates)
    counts = np.asarray(metrics[EPISODES][:updates])
    return np.where(counts > 0, metrics[RETURN][:updates] * counts, 0), counts


def binned(x, updates):
    return np.bincount(np.arange(updates) * BINS // updates, weights=x, minlength=BINS)


@pytest.mark.parametrize("updates", [40, 31])
def test_a_life_is_a_training_run(lives, start, updates):
    """The number of updates is data: to a plain run it is a constant."""
    etas, tasks, keys = start
    record = lives.run(etas, tasks, keys, RATES, updates)
    for i in range(2):
        eta, task = jax.tree.map(lambda x, i=i: x[i], (etas, tasks))
        sums, counts = plain_run(lives, AGENT, eta, task, keys[i], RATES[i], updates)
        np.testing.assert_array_equal(record.episodes[i], binned(counts, updates))
        np.testing.assert_allclose(record.return_sum[i], binned(sums, updates), rtol=1e-5)
    assert record.episodes.sum() > 40


def test_the_length_of_a_life_reaches_the_rule(lives, start):
    """A rule that stops learning after half of its life has lived as long as it knew."""
    etas, tasks, keys = start
    first = lives.run(etas, tasks, keys, RATES, 40)
    longer = lives.run(etas, tasks, keys, RATES, 80)
    assert (first.return_sum[:, 1] != longer.return_sum[:, 0]).any()


def test_lives_in_several_calls(lives, start):
    etas, tasks, keys = start
    again = jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), (etas, tasks))
    record = lives.run(*again, jnp.concatenate([keys, keys[:1]]), 0.01, 20)
    assert record.episodes.shape == (3, BINS)
    np.testing.assert_array_equal(record.return_sum[2], record.return_sum[0])
    assert (record.return_sum[1] != record.return_sum[0]).any()


def test_hand_made_rules_live_too():
    """For a few updates: many small steps turn rounding into other actions soon."""
    agent = AgentConfig(**SIZES, batch=2, replay_fraction=0.0)
    lives = Lives(FAMILY, agent, PPO(minibatches=2), size=2)
    tasks = lives.tasks(jax.random.split(jax.random.key(1)), "train")
    keys = jax.random.split(jax.random.key(2), 2)
    record = lives.run((), tasks, keys, RATES, 4)
    task = jax.tree.map(lambda x: x[0], tasks)
    sums, counts = plain_run(lives, agent, (), task, keys[0], RATES[0], 4)
    np.testing.assert_array_equal(record.episodes[0], binned(counts, 4))
    np.testing.assert_allclose(record.return_sum[0], binned(sums, 4), rtol=1e-5)


def test_the_number_of_devices_changes_no_life():
    """In a process of its own: the number of devices is fixed when JAX starts."""
    script = (
        "import jax, numpy as np, test_lives as t\n"
        "from discorl.runs import processes\n"
        "first, second = jax.devices()\n"
        "lives = t.Lives(t.FAMILY, t.AGENT, t.Lean(), size=1)\n"
        "start = t.start_of(lives)\n"
        "both = lives.run(*start, t.RATES, 40)\n"
        "processes.devices = lambda: [first]\n"
        "one = lives.run(*start, t.RATES, 40)\n"
        "np.testing.assert_array_equal(both.return_sum, one.return_sum)\n"
        "np.testing.assert_array_equal(both.episodes, one.episodes)\n"
        "assert one.episodes.sum() > 0\n"
    )
    tests = Path(__file__).parent
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    environment = dict(os.environ, XLA_FLAGS=flags, PYTHONPATH=f"{tests}{os.pathsep}{tests.parent}")
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_scores_are_between_random_and_optimal_play(lives, start):
    tasks = start[1]
    reference = [FAMILY.reference(jax.tree.map(lambda x, i=i: x[i], tasks)) for i in range(2)]
    random, optimal = (np.array([getattr(r, n) for r in reference]) for n in ("random", "optimal"))
    np.testing.assert_allclose(lives.normalise(tasks, random), 0, atol=1e-6)
    np.testing.assert_allclose(lives.normalise(tasks, (random + optimal) / 2), 0.5, rtol=1e-5)


def test_what_a_record_tells():
    sums, counts = np.zeros((2, BINS)), np.zeros((2, BINS))
    sums[0, [0, 18, 19]], counts[0, [0, 18, 19]] = [1.0, 6.0, 6.0], [1, 2, 1]
    record = Record(sums, counts)
    np.testing.assert_allclose(record.end(0.1), [4.0, np.nan])
    np.testing.assert_allclose(record.end(0.01), [6.0, np.nan])
    np.testing.assert_allclose(record.area(), [(1 + 3 + 6) / 3, np.nan])


def test_no_lives():
    with pytest.raises(UserError, match="size is 0"):
        Lives(FAMILY, AGENT, Lean(), size=0)
