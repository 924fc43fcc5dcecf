"""Results of conformance checks, and the messages they share."""

import dataclasses
import sysconfig
import traceback
from pathlib import Path

import jax

from discorl.types import PyTree

_BRANCHES = jax.errors.TracerBoolConversionError  # Python's `if` on a traced array


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    ok: bool  # also true if nothing could be checked
    detail: str
    checked: bool = True

    @property
    def verdict(self) -> str:
        if not self.checked:
            return "not checked"
        return "ok" if self.ok else "FAILED"


def judge(check: str, problems: list[str], detail: str) -> Finding:
    """Fails with the problems if there are any, else passes with the detail."""
    return Finding(check, not problems, "; ".join(problems) or detail)


def not_checked(check: str, reason: str) -> Finding:
    """A check that neither passed nor failed."""
    return Finding(check, ok=True, detail=reason, checked=False)


def raised(what: str, error: BaseException) -> str:
    """One line about an exception in the user's code: what it says and where it was raised."""
    lines = str(error).strip().splitlines()
    said = f": {lines[0].rstrip('.')}" if lines else ""
    advice = "; use jnp.where or jax.lax.cond" if isinstance(error, _BRANCHES) else ""
    return f"{what} raised {type(error).__name__}{said}{_place(error)}{advice}"


def _place(error: BaseException) -> str:
    """The innermost line of the user's code, such as ` (my_tasks.py, line 12)`."""
    paths = sysconfig.get_paths()
    installed = tuple(paths[name] for name in ("stdlib", "purelib", "platlib"))
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        ours = frame.f_globals.get("__name__", "").partition(".")[0] == "discorl"
        if not (ours or file.startswith((*installed, "<"))):
            place = f" ({Path(file).name}, line {line})"
    return place


def describe(tree: PyTree) -> str:
    """Readable shapes and dtypes: `[10, 10, 4] float32`."""
    if isinstance(tree, dict):
        return ", ".join(f"{name} {describe(part)}" for name, part in tree.items())
    leaves = jax.tree.leaves(tree)
    return ", ".join(f"[{', '.join(map(str, leaf.shape))}] {leaf.dtype}" for leaf in leaves)


def mismatch(what: str, found: PyTree, expected: PyTree) -> list[str]:
    """Differences in structure, shapes and dtypes."""
    structures = [str(jax.tree.structure(tree)) for tree in (found, expected)]
    if structures[0] != structures[1]:
        return [f"{what} has the structure {structures[0]}; expected {structures[1]}"]
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return [
        f"{what} is {describe(x)}; expected {describe(y)}"
        for x, y in pairs
        if (x.shape, x.dtype) != (y.shape, y.dtype)
    ]
