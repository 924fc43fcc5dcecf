"""Train agents with discovered reinforcement-learning rules, and discover new ones, in JAX."""

import ast as _ast
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path
from typing import Any as _Any

__version__ = "0.1.0"

# Where each public name is defined: its module, and its name there, as the stub beside says. Names
# are imported when they are first used, so that `discorl --help` does not wait for JAX.
_HOMES = {
    alias.asname or alias.name: (node.module or "", alias.name)
    for node in _ast.parse(_Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, _ast.ImportFrom)
    for alias in node.names
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> _Any:
    module, original = _HOMES.get(name, (__name__, name))
    if module == __name__:  # a package of ours, or nothing
        if _find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _import_module(f"{__name__}.{name}")
    globals()[name] = found = getattr(_import_module(module), original)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
