"""The cache of compiled programs, which makes the second start of a run quick."""

import os

import jax

from discorl.runs.files import cache_root

SWITCH = "DISCORL_COMPILATION_CACHE"


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
