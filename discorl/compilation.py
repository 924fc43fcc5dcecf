"""The cache of compiled programs, which makes the second start of a run quick."""

import os
from pathlib import Path

import jax

SWITCH = "DISCORL_COMPILATION_CACHE"


def cache_root() -> Path:
    """The user's cache folder for discorl: `$DISCORL_CACHE`, or below the system's own."""
    if root := os.environ.get("DISCORL_CACHE"):
        return Path(root).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "discorl"


def enable_cache() -> None:
    """Keeps compiled programs in the user's cache folder.

    `DISCORL_COMPILATION_CACHE=off` prevents it, and a folder chosen through JAX's own settings is
    left as it is.
    """
    if os.environ.get(SWITCH, "on").lower() in ("off", "0", "false", "no"):
        return
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_root() / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
