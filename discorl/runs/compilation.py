"""A persistent cache of compiled programs, and a stopwatch that excludes compilation."""

import contextlib
import hashlib
import os
import stat
import time
import warnings
from pathlib import Path
from typing import Any, Self

import jax

from discorl.runs.files import cache_root, read_bytes, write_bytes
from discorl.types import UserError

_CHECKSUM = hashlib.sha256().digest_size
_LARGEST_PROGRAM = 2**32
SWITCH = "DISCORL_COMPILATION_CACHE"


def enable_cache() -> None:
    """Keeps compiled programs in the user's cache folder.

    `DISCORL_COMPILATION_CACHE=off` disables this. A folder chosen through JAX's own settings takes
    precedence.
    """
    if os.environ.get(SWITCH, "on").lower() in ("off", "0", "false", "no"):
        return
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = cache_root() / "programs"
    problem = _problem_with(folder)
    if problem is not None:
        warnings.warn(f"compiled programs are not cached: {folder} {problem}", stacklevel=2)
        return
    try:
        from jax._src import compilation_cache
    except ImportError:  # a private module, which may move between versions
        return
    replacement: Any = lambda path: (_CheckedCache(path), path)  # noqa: E731
    compilation_cache.get_file_cache = replacement
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _problem_with(folder: Path) -> str | None:
    """Why a folder cannot be trusted with compiled programs, which are code."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    if found.st_uid != os.getuid():
        return "belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by others: make it private with `chmod 700`"
    return None


class _CheckedCache:
    """JAX's cache of compiled programs, each with a checksum over its key and its content.

    An entry that is damaged, or belongs to another program, is dropped and compiled again. JAX's
    own cache would load it, or warn of it at every start, and never replace it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def get(self, key: str) -> bytes | None:
        try:
            content = read_bytes(self._folder / f"{key}.program", _LARGEST_PROGRAM)
        except UserError:
            return None
        checksum, program = content[:_CHECKSUM], content[_CHECKSUM:]
        return program if checksum == _checksum(key, program) else None

    def put(self, key: str, value: bytes) -> None:
        with contextlib.suppress(OSError, UserError):  # a run must not fail because of its cache
            write_bytes(self._folder / f"{key}.program", _checksum(key, value) + value)


def _checksum(key: str, program: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + program).digest()


class Stopwatch:
    """Measures the seconds of a block of code, without JAX's tracing and compilation.

    with Stopwatch() as watch:
        ...
    print(watch.seconds)
    """

    seconds: float

    def __init__(self) -> None:
        self._compiling: list[tuple[float, float]] = []  # start and end

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
        # An event includes the events nested in it.
        while self._compiling and self._compiling[-1][1] > start:
            start = min(start, self._compiling.pop()[0])
        self._compiling.append((start, now))
