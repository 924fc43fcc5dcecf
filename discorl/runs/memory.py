"""Available memory."""

import contextlib
import os
from pathlib import Path

import jax

from discorl.types import PyTree, UserError

GIB = 2**30
PROCESS = GIB // 4  # of a process that imports JAX and compiles a small program
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Bytes left for arrays, summed over this process's devices; None if unknown."""
    devices = jax.local_devices()
    if devices[0].platform != "cpu":
        found = [device.memory_stats() or {} for device in devices]
        known = all("bytes_limit" in each for each in found)
        left = (each["bytes_limit"] - each.get("bytes_in_use", 0) for each in found)
        return sum(left) if known else None
    return _of_host()


def size_of(tree: PyTree) -> int:
    """Bytes of arrays, or of the shapes that `jax.eval_shape` returns."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def check(tree: PyTree, what: str) -> None:
    """Rejects arrays that do not fit into memory; `what` begins the message."""
    needed, free = size_of(tree), available()
    if free is not None and needed > free:
        raise UserError(
            f"{what} take {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB of memory are "
            "available: make them fewer or smaller"
        )


def check_processes(name: str, count: int) -> None:
    """Rejects more processes than fit into memory; each imports JAX and compiles."""
    free = _of_host()
    if free is not None and count > max(1, most := free // PROCESS):
        raise UserError(
            f"{name} is {count}; expected at most {max(1, most)}: a process takes at least "
            f"{PROCESS / GIB:.2f} GiB, and {free / GIB:.1f} GiB of memory are available"
        )


def runtime_reason(error: Exception) -> str:
    """One line about an error of JAX's runtime: exhausted memory, or what a callback raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "RESOURCE_EXHAUSTED" in lines[0] or "Out of memory" in lines[0]:
        return f"out of memory ({lines[0][:200]})"
    # A callback's traceback follows the first line, and what it raised comes last.
    raised = [line for line in lines if not line.startswith(("File ", "At:", "/", "^", "~"))]
    return raised[-1][:300] if "callback" in lines[0].lower() else lines[0][:300]


def _of_host() -> int | None:
    limits = [limit for limit in (_of_machine(), _of_container()) if limit is not None]
    return min(limits, default=None)


def _of_machine() -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) * 1024
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return None


def _of_container() -> int | None:
    """Bytes left in a container with a memory limit."""
    try:
        left = int((_CGROUP / "memory.max").read_text())
        left -= int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no container, or no limit ("max")
        return None
    with contextlib.suppress(OSError, ValueError):  # the kernel frees the page cache on demand
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        left += int(dict(line.split() for line in lines).get("inactive_file", 0))
    return left
