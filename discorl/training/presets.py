"""The presets that the settings of a training run start from."""

from collections.abc import Mapping
from typing import Any


def _paper(
    *,
    replay_steps: int,
    batch: int = 96,
    replay_fraction: float = 0.9,
    unroll: int = 29,
    **settings: Any,
) -> dict[str, Any]:
    """A benchmark of the paper; its tables count replay in steps and unrolls in observations."""
    fresh = batch - round(batch * replay_fraction)
    return {
        "steps": 50_000_000,
        "learning_rate": 3e-4,
        "schedule": "cosine",
        "weight_decay": 0.1,
        "frame_stack": 4,
        "num_envs": max(1, fresh),
        "unroll": unroll - 1,
        "batch": batch,
        "replay": replay_steps // unroll,
        "replay_fraction": replay_fraction,
        "torso": "residual",
        "hidden": (768,),
        "filters": (256, 384, 384, 256),
        "action_lstm": 1024,
        "action_hidden": (1024,),
        "reward_scale": 1.0,
        "log_every": 10,
        "checkpoint_every": 5000,
    } | settings


def _small(**settings: Any) -> dict[str, Any]:
    """Suites in JAX on a few CPU cores: many environments at once, half of every batch fresh."""
    return {
        "num_envs": 32,
        "batch": 64,
        "replay_fraction": 0.5,
        "learning_rate": 1e-3,
        "checkpoint_every": 200,
    } | settings


def _small_host(**settings: Any) -> dict[str, Any]:
    """Suites on the host on a few CPU cores: a small network, and half of every batch fresh."""
    return {
        "num_envs": 16,
        "batch": 32,
        "replay": 1024,
        "replay_fraction": 0.5,
        "learning_rate": 3e-4,
        "hidden": (256,),
        "frame_stack": 4,
        "log_every": 5,
        "checkpoint_every": 100,
    } | settings


# `steps`, the budget of environment steps, determines the number of updates. The paper's settings
# are from Oh et al., Nature 648 (2025); see `docs/reference/presets.md` for each column.
PRESETS: dict[str, Mapping[str, Any]] = {
    # The settings published with Disco103's weights: the defaults of `AgentConfig`.
    "published": {"steps": 56_000},
    # For small vector tasks: seconds with a lean or hand-designed rule, a minute with others.
    "small": {
        "steps": 40_000,
        "num_envs": 4,
        "batch": 32,
        "replay_fraction": 0.875,
        "hidden": (64, 64),
        "action_lstm": 32,
        "action_hidden": (32,),
    },
    # Classic control: the network of `small`, and fewer environments than the others.
    "classic": _small(
        steps=200_000,
        num_envs=8,
        batch=32,
        replay_fraction=0.75,
        hidden=(64, 64),
        action_lstm=32,
        action_hidden=(32,),
    ),
    "craftax": _small(steps=1_000_000, learning_rate=3e-4),
    # The convolution of MinAtar's authors, then an MLP and a small action model.
    "minatar": _small(
        steps=2_000_000,
        torso="conv",
        filters=(16,),
        hidden=(128, 128),
        action_lstm=64,
        action_hidden=(64,),
    ),
    "minigrid": _small(
        steps=500_000,
        num_envs=16,
        batch=32,
        hidden=(128, 128),
        action_lstm=64,
        action_hidden=(64,),
    ),
    "sokoban_small": _small(steps=1_000_000),
    "gymnasium": _small_host(steps=200_000, learning_rate=1e-3, hidden=(128, 128), frame_stack=1),
    # On a CPU, the residual torso takes several times as long as DQN's convolutions.
    "atari_small": _small_host(
        steps=2_000_000, torso="nature", filters=(16, 32, 32), hidden=(256, 128)
    ),
    "crafter_small": _small_host(steps=1_000_000),
    "nethack_small": _small_host(steps=2_000_000, hidden=(256, 256), frame_stack=1),
    "procgen_small": _small_host(steps=2_000_000),
    "atari": _paper(warmup_steps=5_000_000, replay_steps=1_760_000, replay_fraction=0.95),
    "crafter": _paper(
        steps=20_000_000,
        schedule="constant",
        weight_decay=0.3,
        batch=24,
        replay_steps=400_000,
        replay_fraction=0.99,
        frame_stack=32,
    ),
    "dmlab": _paper(
        learning_rate=5e-4,
        warmup_steps=1_000_000,
        weight_decay=0.01,
        discount=0.99,
        replay_steps=220_000,
        unroll=100,
        frame_stack=1,
    ),
    "nethack": _paper(
        learning_rate=1e-4,
        warmup_steps=10_000_000,
        weight_decay=0.03,
        max_abs_update=0.3,
        replay_steps=1_760_000,
        replay_fraction=0.95,
    ),
    "procgen": _paper(warmup_steps=1_000_000, batch=192, replay_steps=880_000),
    "sokoban": _paper(replay_steps=880_000),
}


_CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")


def preset_for(env: str) -> str:
    """The preset with the name of the environment or its suite, or else that of its kind."""
    name, _, rest = (part.strip() for part in env.partition(":"))
    item = rest.partition(",")[0].strip()
    if item.endswith("-MinAtar") or (name == "pgx" and item.startswith("minatar-")):
        return "minatar"
    if name == "gymnax" and item in _CLASSIC:
        return "classic"
    return name if name in PRESETS else "small"


def small_preset(preset: str) -> str | None:
    """The preset for a few CPU cores that corresponds to one of the paper's, if any."""
    small = f"{preset}_small"
    return small if small in PRESETS else None
