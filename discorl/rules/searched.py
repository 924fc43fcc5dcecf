"""Settings of each rule for single presets, found by search; see `Rule.recipes`.

`benchmarks/recipe_search.py` found those for `classic` and `minigrid`, and a longer search in two
games those for `minatar`. Disco103's were tried one at a time. docs/records lists everything.
"""

from collections.abc import Mapping
from typing import Any

Recipes = Mapping[str, Mapping[str, Any]]

# The rate for `small`, which has few steps and a small network, is the best of three overall.
POLICY_AND_VALUE: Recipes = {
    "small": {"learning_rate": 3e-3},
    "classic": {
        "learning_rate": 3.7e-3,
        "num_envs": 32,
        "batch": 32,
        "unroll": 28,
        "discount": 0.97,
        "reward_scale": 0.1,
        "rule": {"entropy_cost": 0.003},
    },
    "minatar": {"learning_rate": 1.7e-3},
    "minigrid": {
        "learning_rate": 3.7e-3,
        "num_envs": 32,
        "batch": 32,
        "unroll": 28,
        "discount": 0.95,
        "reward_scale": 3.0,
        "rule": {"entropy_cost": 0.003},
    },
}

PPO: Recipes = {
    "small": {"learning_rate": 3e-3},
    "classic": {
        "learning_rate": 2.3e-3,
        "num_envs": 64,
        "batch": 64,
        "discount": 0.997,
        "reward_scale": 0.1,
        "rule": {"entropy_cost": 0.01, "epochs": 8},
    },
    "minatar": {
        "num_envs": 64,
        "batch": 64,
        "learning_rate": 2.3e-3,
        "rule": {"entropy_cost": 0.01, "epochs": 8},
    },
    # OpenAI's baselines clip at 0.1. Here the policy that acts is an update old, so ratios
    # start away from 1 and need more room.
    "atari_small": {
        "num_envs": 8,
        "batch": 8,
        "unroll": 128,
        "learning_rate": 5e-4,
        "discount": 0.99,
        "rule": {"entropy_cost": 0.01},
    },
    "minigrid": {
        "learning_rate": 2.6e-4,
        "num_envs": 64,
        "batch": 64,
        "reward_scale": 3.0,
        "rule": {"entropy_cost": 0.01, "epochs": 8},
    },
}

MUESLI: Recipes = {
    "small": {"learning_rate": 3e-3},
    "classic": {"learning_rate": 3.3e-3, "discount": 0.99, "reward_scale": 1.0},
    "minatar": {
        "learning_rate": 1.9e-3,
        "num_envs": 16,
        "unroll": 14,
        "batch": 64,
        "replay_fraction": 0.75,
        "discount": 0.99,
        "reward_scale": 30.0,
    },
    "minigrid": {
        "learning_rate": 3.3e-3,
        "num_envs": 8,
        "batch": 32,
        "replay_fraction": 0.75,
        "discount": 0.99,
        "reward_scale": 30.0,
    },
}

Q_LAMBDA: Recipes = {
    "small": {"learning_rate": 3e-3},
    "classic": {"learning_rate": 8.9e-3},
    "minatar": {
        "learning_rate": 1.9e-3,
        "num_envs": 16,
        "unroll": 14,
        "batch": 64,
        "replay_fraction": 0.75,
        "discount": 0.99,
        "reward_scale": 30.0,
        "rule": {"epsilon": 0.02},
    },
}

LEAN: Recipes = {
    "classic": {"learning_rate": 3.4e-3},
    "minatar": {
        "learning_rate": 7.8e-3,
        "num_envs": 16,
        "batch": 64,
        "replay_fraction": 0.75,
        "reward_scale": 1.0,
    },
    "minigrid": {
        "learning_rate": 2.5e-3,
        "num_envs": 16,
        "batch": 64,
        "replay_fraction": 0.75,
        "reward_scale": 3.0,
    },
}

# Reward scales are for bins one apart, as in Disco103.
DISCO: Recipes = {
    "classic": {"learning_rate": 1e-2},
    "minatar": {
        "learning_rate": 1e-2,
        "num_envs": 8,
        "batch": 32,
        "replay_fraction": 0.75,
        "discount": 0.97,
        "reward_scale": 30.0,
    },
    "minigrid": {
        "learning_rate": 3e-3,
        "num_envs": 8,
        "batch": 32,
        "replay_fraction": 0.75,
        "discount": 0.99,
        "reward_scale": 100.0,
    },
}
