"""The settings of a training run, and the presets they start from."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, get_args

from discorl import rules
from discorl.agent.optimiser import Schedule
from discorl.networks.standard import Torso
from discorl.types import UserError, specs

DEFAULT_RULE = "discorl4"  # discovered by us; docs/rules/discorl4.md
DEFAULT_ENVIRONMENT = "catch"
LONGEST_CALL = 256  # updates that one call of the compiled program may make


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of a training run; a run is a function of them."""

    rule: str = DEFAULT_RULE
    """Update rule: a name, with settings if wished (`ppo:epochs=8`), or an npz file."""
    env: str = DEFAULT_ENVIRONMENT
    """Environment: a name, with parameters if wished (`catch:rows=8,columns=8`)."""
    preset: str = "catch"
    """Where the other settings start from."""
    rules_path: str | None = None
    """Folder or file to look for the rule in first."""
    seed: int = 0
    """Seed of the run, or of the first of several."""
    seeds: int = 1
    """How many agents to train at once, with seeds `seed`, `seed + 1`, ..."""
    updates: int = 1000
    """How many updates to make."""
    environments: int = 2
    """Environments acted in at once; each yields one trajectory an update."""
    unroll: int = 28
    """Transitions of a trajectory."""
    batch: int = 64
    """Trajectories in the batch of an update."""
    replay: int = 1024
    """Trajectories that replay keeps."""
    replay_fraction: float = 1.0
    """Share of the batch drawn from replay; 0 learns from fresh trajectories only."""
    learning_rate: float = 1e-2
    """Learning rate, after warm-up."""
    end_learning_rate: float = 0.0
    """Learning rate at the end of a cosine schedule."""
    schedule: Schedule = "constant"
    """How the learning rate goes on after warm-up."""
    warmup_steps: int = 0
    """Environment steps over which the learning rate rises from zero."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_abs_update: float = 1.0
    """Clip of each element of Adam's step, before the learning rate."""
    max_gradient_norm: float = 0.0
    """Clip of the gradient's norm, before Adam; 0 for none."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon."""
    discount: float = 0.997
    """Discount of rewards."""
    reward_scale: float = 1.0
    """What rewards are multiplied by for learning; reported returns are not."""
    torso: Torso = "auto"
    """Torso of the network; auto takes `residual` for images of 16 pixels a side or more."""
    hidden: tuple[int, ...] = (512, 512)
    """Widths of the torso's layers, ReLU between them and none after the last. Heads are linear, so
    an MLP of one layer is a linear network."""
    filters: tuple[int, ...] = (16, 32, 32)
    """Filters of each section of a residual torso."""
    action_lstm: int = 128
    """Width of the action model's LSTM."""
    action_hidden: tuple[int, ...] = (128,)
    """Hidden widths of the action model's heads."""
    core: int = 0
    """Width of an LSTM between torso and heads, for tasks that need memory; 0: none."""
    frame_stack: int = 1
    """Latest frames that the network sees at once; a trajectory keeps each only once."""
    log_every: int = 1
    """Updates that one row of the metrics averages over."""
    checkpoint_every: int = 200
    """Updates between two checkpoints; a multiple of `log_every`."""

    def __post_init__(self) -> None:
        for name in ("hidden", "filters", "action_hidden"):
            self._require(isinstance(getattr(self, name), list | tuple), name, "a list of widths")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        counts = ("seeds", "updates", "environments", "unroll", "batch", "replay", "action_lstm")
        for name in (*counts, "frame_stack", "log_every", "checkpoint_every"):
            self._require(getattr(self, name) >= 1, name, "at least 1")
        self._require(self.seed + self.seeds <= 2**31, "seed", "below 2**31, with all seeds")
        self._require(self.torso in get_args(Torso), "torso", "auto, mlp or residual")
        self._require(self.log_every <= LONGEST_CALL, "log_every", f"at most {LONGEST_CALL}")
        amounts = ("seed", "core", "warmup_steps", "end_learning_rate", "weight_decay")
        for name in (*amounts, "max_gradient_norm"):
            self._require(getattr(self, name) >= 0, name, "at least 0")
        for name in ("learning_rate", "max_abs_update", "adam_epsilon", "reward_scale"):
            value = getattr(self, name)
            self._require(math.isfinite(value) and value > 0, name, "a positive number")
        for name in ("replay_fraction", "discount"):
            self._require(0 <= getattr(self, name) <= 1, name, "from 0 to 1")
        for name in ("hidden", "filters", "action_hidden"):
            self._require(all(w >= 1 for w in getattr(self, name)), name, "widths of at least 1")
        self._require(
            self.checkpoint_every % self.log_every == 0,
            "checkpoint_every",
            f"a multiple of log_every ({self.log_every})",
        )
        if self.batch - self.replayed > self.environments:
            raise UserError(
                f"batch {self.batch} with replay_fraction {self.replay_fraction} needs "
                f"{self.batch - self.replayed} fresh trajectories an update, but environments is "
                f"{self.environments}: raise environments or replay_fraction, or lower batch"
            )
        if not self.replayed and self.batch != self.environments:
            raise UserError(
                f"batch is {self.batch}; expected {self.environments}, the number of environments: "
                "without replay, an update learns from all fresh trajectories and nothing else"
            )
        if self.replayed and self.replay < self.environments:
            raise UserError(
                f"replay is {self.replay}; expected at least the number of environments, "
                f"{self.environments}, each of which adds a trajectory an update"
            )

    def _require(self, holds: bool, name: str, accepted: str) -> None:
        if not holds:
            raise UserError(f"{name} is {getattr(self, name)}; expected {accepted}")

    @property
    def replayed(self) -> int:
        """Trajectories of a batch that come from replay."""
        return round(self.batch * self.replay_fraction)

    def as_dict(self) -> dict[str, Any]:
        """The settings as JSON can hold them; `Config(**...)` reads them back."""
        return dataclasses.asdict(self)


def _paper(
    *, batch: int, replay_steps: int, replay_fraction: float, unroll: int = 29, **settings: Any
) -> dict[str, Any]:
    """A benchmark of the paper, whose tables count replay in steps and unrolls in observations."""
    fresh = batch - round(batch * replay_fraction)
    return {
        "environments": max(1, fresh),
        "unroll": unroll - 1,
        "batch": batch,
        "replay": replay_steps // unroll,
        "replay_fraction": replay_fraction,
        "torso": "residual",
        "hidden": (768,),
        "filters": (256, 384, 384, 256),
        "action_lstm": 1024,
        "action_hidden": (1024,),
        "log_every": 10,
        "checkpoint_every": 5000,
    } | settings


def _small(**settings: Any) -> dict[str, Any]:
    """Suites in JAX on a few CPU cores: many environments at once, half of every batch fresh."""
    return {
        "environments": 32,
        "batch": 64,
        "replay_fraction": 0.5,
        "learning_rate": 1e-3,
        "checkpoint_every": 200,
    } | settings


def _small_host(**settings: Any) -> dict[str, Any]:
    """Suites on the host on a few CPU cores: a small network, and half of every batch fresh."""
    return {
        "environments": 16,
        "batch": 32,
        "replay": 1024,
        "replay_fraction": 0.5,
        "learning_rate": 3e-4,
        "hidden": (256,),
        "frame_stack": 4,
        "log_every": 5,
        "checkpoint_every": 100,
    } | settings


# `steps` is the budget in environment steps, from which the number of updates follows. The paper's
# settings are from Oh et al., Nature 648 (2025); see `docs/presets.md` for each column.
PRESETS: dict[str, Mapping[str, Any]] = {
    "catch": {"steps": 56_000},
    # For tasks of a few numbers, trained in a minute.
    "small": {
        "steps": 40_000,
        "batch": 32,
        "hidden": (64, 64),
        "action_lstm": 32,
        "action_hidden": (32,),
    },
    "craftax": _small(steps=1_000_000, learning_rate=3e-4),
    "minatar": _small(steps=1_000_000),
    "minigrid": _small(steps=500_000),
    "sokoban_small": _small(steps=1_000_000),
    "gymnasium": _small_host(steps=200_000, learning_rate=1e-3, hidden=(128, 128), frame_stack=1),
    "atari_small": _small_host(steps=2_000_000),
    "crafter_small": _small_host(steps=1_000_000),
    "nethack_small": _small_host(steps=2_000_000, hidden=(256, 256), frame_stack=1),
    "procgen_small": _small_host(steps=2_000_000),
    "atari": _paper(
        steps=50_000_000,
        learning_rate=3e-4,
        schedule="cosine",
        warmup_steps=5_000_000,
        weight_decay=0.1,
        batch=96,
        replay_steps=1_760_000,
        replay_fraction=0.95,
        frame_stack=4,
    ),
    "crafter": _paper(
        steps=20_000_000,
        learning_rate=3e-4,
        weight_decay=0.3,
        batch=24,
        replay_steps=400_000,
        replay_fraction=0.99,
        frame_stack=32,
    ),
    "dmlab": _paper(
        steps=50_000_000,
        learning_rate=5e-4,
        schedule="cosine",
        warmup_steps=1_000_000,
        weight_decay=0.01,
        discount=0.99,
        batch=96,
        replay_steps=220_000,
        replay_fraction=0.9,
        unroll=100,
    ),
    "nethack": _paper(
        steps=50_000_000,
        learning_rate=1e-4,
        schedule="cosine",
        warmup_steps=10_000_000,
        weight_decay=0.03,
        max_abs_update=0.3,
        batch=96,
        replay_steps=1_760_000,
        replay_fraction=0.95,
        frame_stack=4,
    ),
    "procgen": _paper(
        steps=50_000_000,
        learning_rate=3e-4,
        schedule="cosine",
        warmup_steps=1_000_000,
        weight_decay=0.1,
        batch=192,
        replay_steps=880_000,
        replay_fraction=0.9,
        frame_stack=4,
    ),
    "sokoban": _paper(
        steps=50_000_000,
        learning_rate=3e-4,
        schedule="cosine",
        weight_decay=0.1,
        batch=96,
        replay_steps=880_000,
        replay_fraction=0.9,
        frame_stack=4,
    ),
}


def preset_for(env: str) -> str:
    """The preset called like the environment or its suite, `minatar` for MinAtar, or `catch`."""
    name, _, rest = env.partition(":")
    if rest.partition(",")[0].strip().endswith("-MinAtar"):
        return "minatar"
    return name.strip() if name.strip() in PRESETS else "catch"


def small_preset(preset: str) -> str | None:
    """The preset for a few CPU cores beside one of the paper's, if there is one."""
    small = f"{preset}_small"
    return small if small in PRESETS else None


def configure(
    rule: rules.Given = DEFAULT_RULE,
    env: str = DEFAULT_ENVIRONMENT,
    preset: str | None = None,
    **settings: Any,
) -> Config:
    """Puts a run's settings together: the given ones, the rule's own recipe, then the preset.

    Args:
        rule: the rule: its name or file, or an object, whose discount is then the default.
        env: name of the environment.
        preset: name of the preset; by default the one that suits the environment.
        **settings: any other field of `Config`.

    Raises:
        UserError: a name or a value is not accepted.
    """
    if preset is None:
        preset = preset_for(env)
    specs.require_known("preset", [preset], PRESETS)
    fields = dataclasses.fields(Config)
    specs.require_known("setting", settings, [field.name for field in fields])
    recipe = rules.recipe(rule, settings.get("rules_path"))
    if not isinstance(rule, str):
        settings.setdefault("discount", (rule[0] if isinstance(rule, tuple) else rule).discount)
    chosen = {"rule": rules.text_of(rule), "env": env, "preset": preset}
    values = chosen | dict(PRESETS[preset]) | dict(recipe) | settings
    steps = values.pop("steps")
    config = Config(**values)
    if "updates" in settings:
        return config
    updates = math.ceil(steps / (config.environments * config.unroll))
    return dataclasses.replace(config, updates=updates)
