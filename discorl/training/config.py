"""The settings of a training run."""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from discorl import envs, rules
from discorl.agent.config import AgentConfig
from discorl.runs import config_files
from discorl.training.presets import PRESETS, preset_for
from discorl.types import UserError, settings, specs, validation
from discorl.types.validation import MOST_SEED, Fields, bounded

DEFAULT_RULE = "lean2"  # discovered by us; docs/records/lean2.md
DEFAULT_ENVIRONMENT = "catch"
MOST_UPDATES = 2**31 - 1  # a state counts them in 32 bits
MOST_EPISODES = 1_000_000  # of an evaluation
LONGEST_CALL = 256  # updates that one call of the compiled program may make
CALL_SECONDS = 1.0  # duration of a call, between which progress shows and Ctrl-C is handled
BUDGETS = ("updates", "steps", "total_timesteps")  # a run has one of these


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; a run is a function of them."""

    rule: str = DEFAULT_RULE
    """Update rule: a name, optionally with settings (`ppo:epochs=8`), or an npz file."""
    env: str = DEFAULT_ENVIRONMENT
    """Environment: a name, optionally with parameters (`catch:rows=8,columns=8`)."""
    preset: str = "published"
    """Defaults of the other settings."""
    rules_path: str | None = None
    """Folder or file to look for the rule in first."""
    agent: AgentConfig = AgentConfig()
    """The agent."""
    seed: int = bounded(0, least=0, most=MOST_SEED)
    """Seed of the run, or of the first of several."""
    seeds: int = bounded(1, least=1)
    """Number of agents to train at once, with seeds `seed`, `seed + 1`, ..."""
    updates: int = bounded(1000, least=1, most=MOST_UPDATES)
    """Number of updates."""
    log_every: int = bounded(1, least=1)
    """Updates that one row of the metrics averages over."""
    checkpoint_every: int = bounded(200, least=1)
    """Updates between two checkpoints; a multiple of `log_every`."""
    eval_every: int = bounded(0, least=0)
    """Updates between two evaluations, which keep the best agent; 0: none."""
    eval_episodes: int = bounded(20, least=1, most=MOST_EPISODES)
    """Episodes that each agent plays in an evaluation during training."""

    other_names: ClassVar[Mapping[str, str]] = {
        "algo": "rule",
        "algorithm": "rule",
        "env_id": "env",
        "eval_freq": "eval_every",
        "eval_interval": "eval_every",
        "n_eval_episodes": "eval_episodes",
        "num_eval_episodes": "eval_episodes",
        "environment_name": "env",
        "log_interval": "log_every",
        "num_seeds": "seeds",
        "num_updates": "updates",
        "save_interval": "checkpoint_every",
        "timesteps": "steps",
        "num_timesteps": "steps",
    }

    def __post_init__(self) -> None:
        fields = Fields(self).declared()
        fields.require(self.seed + self.seeds <= 2**31, "seeds", "below 2**31, with the seed")
        fields.require(self.log_every <= LONGEST_CALL, "log_every", f"at most {LONGEST_CALL}")
        for name in ("checkpoint_every", "eval_every"):
            whole = getattr(self, name) % self.log_every == 0
            fields.require(whole, name, f"a multiple of log_every, {self.log_every}")

    def call_length(self, done: int, rate: float) -> int:
        """Updates of the next call: about a second's worth, in whole rows of metrics.

        `rate` is the number of updates per second, 0 if unknown.
        """
        every = self.log_every
        wanted = max(1, round(rate * CALL_SECONDS / every)) * every
        stops = [self.checkpoint_every, *([self.eval_every] if self.eval_every else [])]
        to_stop = min(stop - done % stop for stop in stops)
        return min(wanted, LONGEST_CALL // every * every, to_stop, self.updates - done)

    def as_dict(self) -> dict[str, Any]:
        """The settings for JSON; `settings.build` reads them back."""
        return dataclasses.asdict(self)


def configure(
    rule: rules.Given | None = None,
    env: str | None = None,
    preset: str | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    **given: Any,
) -> TrainConfig:
    """Merges the settings given, those of a file, the rule's recipe and the preset, in this order.

    Args:
        rule: the rule: its name or file, or an object, whose discount is then the default.
        env: name of the environment.
        preset: name of the preset; by default the one that suits the environment.
        config: a TOML file with settings by flat or nested names, or an earlier run (its directory
            or its config.json).
        **given: any other settings of `TrainConfig` and its parts by name, such as `learning_rate`;
            and `steps` or `total_timesteps`, a budget of environment steps, instead of `updates`.

    Raises:
        UserError: a name or a value is invalid.
    """
    first = {"rule": rule, "env": env, "preset": preset}
    given |= {name: value for name, value in first.items() if value is not None}
    flat, steps = _read(given)
    if config is not None:
        table = config_files.read_settings(config, "train")
        table.pop("own", None)  # which objects the run was given in Python
        from_file, file_steps = _read(table, f"{config}: ")
        if steps is not None:
            from_file.pop("updates", None)
        else:
            steps = file_steps
        flat = from_file | flat
    env = envs.canonical(flat.get("env", DEFAULT_ENVIRONMENT))
    preset = flat.get("preset") or preset_for(env)
    specs.require_known("preset", [preset], PRESETS)
    named = flat.get("rule", DEFAULT_RULE)
    start = {**PRESETS[preset], **rules.recipe(named, flat.get("rules_path"), preset)}
    own = start.pop("rule", {})
    if isinstance(named, str):
        named = rules.with_defaults(named, own)
    else:
        start["discount"] = (named[0] if isinstance(named, tuple) else named).discount
    preset_steps = start.pop("steps")
    chosen = {"rule": rules.text_of(named), "env": env, "preset": preset}
    built = settings.build(TrainConfig, start | flat | chosen)
    if "updates" in flat:
        return built
    return with_steps(built, preset_steps if steps is None else steps)


def with_steps(config: TrainConfig, steps: int) -> TrainConfig:
    """The settings with the number of updates that takes at least `steps` environment steps."""
    updates = math.ceil(steps / config.agent.steps_per_update)
    return dataclasses.replace(config, updates=updates)


def _read(values: Mapping[str, Any], where: str = "") -> tuple[dict[str, Any], int | None]:
    """Settings by flat names, and a budget of environment steps if there is one."""
    named = [name for name in BUDGETS if name in values]
    if len(named) > 1:
        known = ", ".join(BUDGETS)
        raise UserError(f"{where}{' and '.join(named)} are given; expected one of {known}")
    others = {name: value for name, value in values.items() if name not in BUDGETS[1:]}
    flat = settings.flatten(TrainConfig, others, where)
    if not named or named == ["updates"]:
        return flat, None
    return flat, validation.integer(named[0], values[named[0]], least=1)
