"""Train agents with discovered reinforcement-learning rules, and discover new ones, in JAX."""

import ast
import functools
import importlib.util
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


@functools.cache
def _homes() -> dict[str, tuple[str, str]]:
    """Where each public name is defined: its module, and its name there, as the stub beside says.

    Names are imported when they are first used, so that `discorl --help` does not wait for JAX.
    """
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def __getattr__(name: str) -> Any:
    module, original = _homes().get(name, (__name__, name))
    if module == __name__:  # a package of ours, or nothing
        if importlib.util.find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")
    globals()[name] = found = getattr(importlib.import_module(module), original)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
