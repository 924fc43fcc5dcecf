"""A discovery so small that tests can afford it: running it, and telling its results apart."""

import contextlib
import csv
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from timing import assert_same_tables

import discorl
from discorl import cli
from discorl.discovery import loop, methods
from discorl.discovery.population import Population
from discorl.discovery.scoring import Scoring
from discorl.discovery.start import starting_rule
from discorl.rules.files import weights
from discorl.runs import npz

# So eager that what they earn depends on the rule soon.
EAGER = {"learning_rate": 0.5}
TINY = {
    "preset": "laptop",
    "seed": 0,
    "start": "scratch",
    "meta_schedule": "constant",
    "ema": 0.0,
    "entropy_cost": 0.01,
    "target_kl_cost": 0.01,
    "target_improvement": 0.0,
    "replay_fraction": 0.75,
    "population": ("bandit",),
    "agents": 2,
    "meta_steps": 8,
    "window": 2,
    "meta_learning_rate": 0.05,
    "lifetimes": (30, 60),
    "num_envs": 2,
    "unroll": 3,
    "batch": 4,
    "replay": 16,
    "validation_envs": 2,
    "validation_unroll": 3,
    "learning_rate": 1e-2,
    "hidden": (6,),
    "action_lstm": 4,
    "action_hidden": (4,),
    "value_hidden": (6,),
    "prediction_size": 4,
    "bins": 5,
    "trajectory_lstm": 6,
    "meta_lstm": 4,
    "net_width": 4,
    "evaluate_on": (
        discorl.TaskConfig("bandit:seed=1,split=held_out", EAGER),
        discorl.TaskConfig("bandit:seed=2,split=held_out", EAGER),
    ),
    "evaluate_every": 3,
    "evaluate_seeds": 2,
    "evaluate_updates": 8,
    "checkpoint_every": 2,
}
CONFIG = discorl.configure_discovery(**TINY)
RULE, ETA = starting_rule(CONFIG)


def numbers(tree):
    """The tree with keys as numbers."""

    def leaf(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return jax.tree.map(leaf, tree)


def assert_same(one, two):
    jax.tree.map(np.testing.assert_array_equal, numbers(one), numbers(two))


def assert_all_close(one, two, tolerance):
    """Each array close relative to the largest value of all."""
    scale = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(two))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale), one, two
    )


def poisoned(tree):
    """The tree with one number that is none."""
    leaves, structure = jax.tree.flatten(tree)
    leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].set(jnp.nan)
    return jax.tree.unflatten(structure, leaves)


def table(run, name):
    with (run / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def assert_same_runs(one, two):
    for name in ("metrics", "agents", "evaluation"):
        assert_same_tables(one / f"{name}.csv", two / f"{name}.csv")
    for name in ("rule.npz", "best.npz"):
        assert_same(weights.load(one / name), weights.load(two / name))
        first, second = npz.read(one / name), npz.read(two / name)
        # The source may be committed while these tests run.
        commits = [file.metadata.pop("commit") for file in (first, second)]
        assert commits[0] != commits[1] or first.sha256 == second.sha256
        assert first.metadata == second.metadata


@contextlib.contextmanager
def sharing_programs():
    """Runs in this process that differ in no program share the compiled ones."""

    def plain(config):
        return dataclasses.replace(
            config, start="scratch", meta_steps=1, evaluate_every=1, checkpoint_every=1
        )

    populations = functools.cache(lambda config, rule: Population(config, rule))
    scorings = {}

    def population(config, rule, costs=()):
        unseen = {"evaluate_on": ("catch",), "evaluate_updates": 1, "evaluate_seeds": 1}
        return populations(dataclasses.replace(plain(config), **unseen), rule)

    def scoring(config, rule, key):
        config = plain(config)
        if (config, rule) not in scorings:
            scorings[config, rule] = Scoring(config, rule, key)
        return scorings[config, rule]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "Population", population)
        patch.setattr(loop, "Scoring", scoring)
        yield


def outcome(capsys, *arguments):
    """What `discorl discover` exits with, prints, and prints as errors."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(["discover", *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err
