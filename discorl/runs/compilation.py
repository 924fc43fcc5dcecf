"""Compilation: a cache that makes the second start quick, and a watch that leaves it out."""

import os
import time
from typing import Self

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


class Stopwatch:
    """Measures the seconds of a block of code, less what JAX takes in it to trace and compile.

    with Stopwatch() as watch:
        ...
    print(watch.seconds)
    """

    seconds: float

    def __init__(self) -> None:
        self._compiling: list[tuple[float, float]] = []  # from when to when

    def __enter__(self) -> Self:
        jax.monitoring.register_event_duration_secs_listener(self._note)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        whole = time.perf_counter() - self._start
        jax.monitoring.unregister_event_duration_listener(self._note)
        self.seconds = max(1e-9, whole - sum(end - start for start, end in self._compiling))

    def _note(self, event: str, duration_secs: float, **_: str | int) -> None:
        if not event.startswith("/jax/core/compile/"):
            return
        now = time.perf_counter()
        start = now - duration_secs
        # What was traced or compiled within is part of it.
        while self._compiling and self._compiling[-1][1] > start:
            start = min(start, self._compiling.pop()[0])
        self._compiling.append((start, now))
