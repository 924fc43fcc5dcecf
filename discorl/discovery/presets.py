"""Where the settings of a discovery run start from."""

import os
from collections.abc import Mapping
from typing import Any

from discorl.discovery.config import DiscoverConfig
from discorl.runs import config_files
from discorl.types import UserError, settings, specs

# A rule and agents that fit small tasks and few cores.
_COMPACT: dict[str, Any] = {
    "learning_rate": 5e-3,
    # An agent's first gradients are tiny where the rule asks for little; divided by the root of
    # their own square alone, they make the meta-gradient of a new life explode.
    "adam_epsilon": 1e-5,
    "hidden": (64, 64),
    "action_lstm": 32,
    "action_hidden": (32,),
    "value_hidden": (64, 64),
    "prediction_size": 32,
    "bins": 51,
    "trajectory_lstm": 64,
    "meta_lstm": 32,
}

PRESETS: dict[str, dict[str, Any]] = {
    # The reduced loop that the paper's authors published, one environment and two agents without
    # replay, made quick: a compact rule and small agents that learn fast. Their learning rate
    # matters: where the action value is not learned, nothing says which targets are good. The
    # targets of a new rule are uniform, and agents that learn nothing say nothing about them: hence
    # the pull toward a policy that is improved by the action values.
    "demo": {
        "agents": 2,
        "meta_steps": 800,
        "window": 5,
        "lifetimes": (100_000, 250_000, 500_000),
        "meta_learning_rate": 6e-3,
        "meta_schedule": "cosine",
        "ema": 0.95,
        "target_kl_cost": 0.3,
        "target_improvement": 1.0,
        "num_envs": 32,
        "unroll": 16,
        "batch": 32,
        "replay_fraction": 0.0,
        "validation_envs": 32,
        "validation_unroll": 32,
        "value_learning_rate": 1e-3,
        "value_discount": 0.99,
        "value_lambda": 0.96,
        "evaluate_updates": 400,
        **_COMPACT,
    },
    # A compact rule for many kinds of small task, in about an hour on one core. Agents differ far
    # more in what they ask of the rule than their data do, so there are many with small batches.
    # A short window sees what greed brings and not what it costs: hence the entropy cost.
    "laptop": {
        "population": ("chain", "tabular", "grid:flat=true", "windy_catch:rows=6,columns=6"),
        "seed": 9,
        "start": "muesli",
        "agents": 8,
        "meta_steps": 200,
        "window": 10,
        "lifetimes": (10_000, 20_000, 40_000),
        "meta_learning_rate": 5e-4,
        "meta_schedule": "cosine",
        "ema": 0.99,
        "entropy_cost": 0.04,
        "target_kl_cost": 0.3,
        "target_improvement": 1.0,
        "num_envs": 2,
        "unroll": 20,
        "batch": 16,
        "validation_envs": 32,
        "validation_unroll": 20,
        "value_learning_rate": 1e-3,
        "evaluate_on": tuple(
            f"{family}seed={seed},split=held_out"
            for family in ("chain:", "tabular:", "grid:flat=true,", "windy_catch:rows=6,columns=6,")
            for seed in (1, 2)
        ),
        "evaluate_every": 50,
        "evaluate_seeds": 4,
        "evaluate_updates": 700,
        "checkpoint_every": 25,
        **_COMPACT,
        "learning_rate": 1e-2,
        # Few bins are learned sooner, and returns of small tasks are small: from -4 to 4 here.
        "bins": 21,
        "bin_spacing": 1 / 30,
    },
    # A lean rule over whole lives of many lengths, on eight kinds of small task: from Muesli's
    # update to a better one in 40 minutes on one core. Evolution's gradient is mostly noise, so
    # there are many short lives of small agents; `agents` live side by side, in pairs.
    "lean": {
        "rule": "lean",
        "method": "es",
        "population": (
            "chain",
            {"env": "tabular", "agent": {"hidden": (64, 64)}},
            "grid:flat=true",
            {"env": "cliff", "agent": {"learning_rate": 5e-3}},
            "river_swim:length=8",
            "deep_sea:size=9",
            "four_rooms",
            "key_door",
        ),
        "agents": 32,
        "meta_steps": 64,
        "end_weight": 0.5,
        "num_envs": 4,
        "unroll": 16,
        "batch": 16,
        "replay": 256,
        "replay_fraction": 0.75,
        "learning_rate": 1e-2,
        "adam_epsilon": 1e-5,
        "max_gradient_norm": 1.0,
        "hidden": (32, 32),
        "evaluate_on": tuple(
            f"{family}seed={seed}"
            for family in ("bandit:", "windy_catch:rows=6,columns=6,")
            for seed in (1, 2)
        ),
        "evaluate_every": 20,
        "evaluate_seeds": 8,
        "evaluate_updates": 300,
        "checkpoint_every": 5,
    },
    # The paper's settings (Oh et al., Nature 648, 2025), on the families of this package. Those not
    # listed here are the defaults of `DiscoverConfig`. What the paper leaves open, the networks and
    # replay, is as in the published demo and its evaluations.
    "paper": {
        "agents": 4,
        "population": (
            "grid:size=9",
            "tabular",
            "chain",
            "windy_catch",
            {"env": "memory", "agent": {"lstm": 256}},
        ),
        "meta_steps": 100_000,
        "lifetimes": (20_000_000, 50_000_000, 100_000_000, 200_000_000),
        "evaluate_on": (
            "grid:size=9,seed=1,split=held_out",
            "tabular:seed=1,split=held_out",
            "windy_catch:seed=1,split=held_out",
        ),
        "evaluate_updates": 2000,
        "evaluate_every": 1000,
        "checkpoint_every": 500,
    },
}


def configure_discovery(
    preset: str | None = None, *, config: str | os.PathLike[str] | None = None, **given: Any
) -> DiscoverConfig:
    """Puts a discovery run's settings together: those given, the file's, then the preset's.

    Args:
        preset: name of the preset; by default `demo`.
        config: a TOML file with settings by flat or nested names, or an earlier run (its directory
            or its config.json).
        **given: settings of `DiscoverConfig` and its parts by their names, such as
            `learning_rate`; and `envs`, environments whose agents are all like the default one, in
            place of `population`.

    Raises:
        UserError: a name or a value is not accepted.
    """
    flat = {} if config is None else _read(config_files.read_settings(config, "discover"), config)
    flat |= _read(given) | ({} if preset is None else {"preset": preset})
    start = flat.setdefault("preset", "demo")
    specs.require_known("preset", [start], PRESETS)
    built = settings.build(DiscoverConfig, PRESETS[start] | flat)
    built.groups(), built.tasks()  # which refuse what their environments do not accept
    return built


def _read(values: Mapping[str, Any], file: str | os.PathLike[str] = "") -> dict[str, Any]:
    """Settings by flat names, with `envs` as a population."""
    where = f"{file}: " if file else ""
    if "envs" in values and "population" in values:
        raise UserError(f"{where}envs and population are given; expected one of them")
    renamed = {"population" if name == "envs" else name: x for name, x in values.items()}
    return settings.flatten(DiscoverConfig, renamed, where)
