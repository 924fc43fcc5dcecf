"""Suites of environments from other packages, by name.

A suite is an adapter module, imported only when the suite is used, so that unused packages are
neither needed nor imported. An adapter has two functions:

    def names() -> Sequence[str]: ...  # its items, in the order to show them
    def make(item: str, *, size: int = 84) -> Environment: ...

The settings of an environment are annotated keyword parameters of `make`: `suite:ITEM,size=64` sets
one, and `discorl.types.specs` checks its type. `make` is only called with an item of `names`, and
raises `UserError` for an invalid value. If an item itself names the module that registers it, the
adapter has `names_for(item)`, which replaces `names`.

Other packages add suites by entry points of the group `discorl.envs`. The entry point's name is the
suite's, and its object is an adapter: a module, or anything else with these functions.
"""

import dataclasses
import difflib
import importlib
import importlib.util
import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Literal

from discorl.types import UserError, imports, specs

Kind = Literal["native", "host", "plugin"]
GROUP = "discorl.envs"  # of entry points


@dataclasses.dataclass(frozen=True)
class Suite:
    """Environments of one package, behind one adapter."""

    name: str
    # native: written in JAX, compiled with training; host: stepped on the CPU; plugin: either, from
    # an entry point of another package
    kind: Kind
    licence: str  # of the packages
    summary: str  # one line
    # Distributions to import, by default that of the suite's name; the import name has _ for -.
    packages: tuple[str, ...] = ()
    default: str | None = None  # the item, if none is given
    requirement: str = ""  # what the system must have besides Python packages
    plugin: imports.Plugin | None = None  # entry point of the adapter in another package

    def missing(self) -> tuple[str, ...]:
        """The distributions that are not installed."""
        packages = () if self.plugin else self.packages or (self.name,)
        return tuple(p for p in packages if importlib.util.find_spec(p.replace("-", "_")) is None)

    @property
    def install(self) -> str:
        """The command that installs the suite and keeps the version of JAX.

        Another version would give other random numbers for the same seed.
        """
        return f'pip install "discorl[{self.name}]" jax=={metadata.version("jax")}'

    def adapter(self) -> Any:
        """The adapter: a module, or the object that an entry point names."""
        if self.plugin is not None:
            return _adapter(self.plugin)
        missing = self.missing()
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(
                f"{self.name} needs {' and '.join(missing)}, which {verb} not installed: "
                f"{self.install}"
            )
        return importlib.import_module(f"discorl.envs.{self.kind}.{self.name}")

    def names(self) -> list[str]:
        return list(self.adapter().names())

    def has(self, item: str) -> bool:
        return item in self._known(self.adapter(), item)

    @staticmethod
    def _known(adapter: Any, item: str) -> Sequence[str]:
        return adapter.names_for(item) if hasattr(adapter, "names_for") else adapter.names()

    def make(self, item: str | None = None, **parameters: specs.Value) -> Any:
        adapter = self.adapter()
        item = self.default if item is None else item
        if item is None:
            raise UserError(f"{self.name} needs an item; {_show(self.name, adapter.names())}")
        check_item(self.name, item, self._known(adapter, item))
        return specs.build(adapter.make, specs.Spec(self.name, item, parameters))


def _adapter(plugin: imports.Plugin) -> Any:
    adapter = plugin.load()
    for function in ("names", "make"):
        if not callable(getattr(adapter, function, None)):
            raise UserError(
                f"{plugin.name!r} of the package {plugin.package} is not a suite of environments: "
                f"{plugin.entry.value} has no function {function!r}; expected names() and make()"
            )
    return adapter


def plugins() -> dict[str, Suite]:
    """Suites of other packages by name; nothing is imported."""
    return {
        name: Suite(
            name, "plugin", plugin.licence, f"from the package {plugin.package}", plugin=plugin
        )
        for name, plugin in imports.plugins(GROUP).items()
    }


def check_item(suite: str, item: str, names: Sequence[str]) -> None:
    """Raises a `UserError` that suggests the nearest items, unless the item is one of them."""
    if item not in names:
        raise UserError(f"{suite} has no item {item!r}; {_show(suite, _nearest(item, names))}")


def _nearest(item: str, names: Sequence[str]) -> Sequence[str]:
    """The items most similar to the given one; all items if none is similar."""
    by_lower = {name.lower(): name for name in names}
    wanted = item.lower()
    holding = [name for lower, name in by_lower.items() if wanted in lower]
    close = difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.5)
    return list(dict.fromkeys([*(by_lower[lower] for lower in close), *holding])) or names


def _show(suite: str, names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(f"{suite}:{name}" for name in names[:most])
    return f"for example {shown} (all: discorl envs {suite})"


_SUITES = (
    Suite("gymnax", "native", "Apache-2.0", "MinAtar, classic control, bsuite and small worlds"),
    Suite(
        "craftax",
        "native",
        "MIT",
        "Craftax and Craftax-Classic: survival in procedurally generated worlds",
        default="Craftax-Classic-Symbolic-v1",
    ),
    Suite(
        "minigrid",
        "native",
        "Apache-2.0",
        "MiniGrid's rooms, doors and keys, seen from within (XLand-MiniGrid)",
        packages=("xminigrid",),
    ),
    Suite(
        "sokoban",
        "native",
        "Apache-2.0",
        "Push boxes onto targets (Jumanji)",
        packages=("jumanji",),
        default="toy",
    ),
    Suite(
        "jumanji",
        "native",
        "Apache-2.0",
        "Puzzles, packing and routing with action masks (Jumanji)",
    ),
    Suite(
        "navix",
        "native",
        "Apache-2.0",
        "MiniGrid's tasks, the whole grid or seen from within (NAVIX)",
    ),
    Suite(
        "pgx",
        "native",
        "Apache-2.0, MinAtar GPL-3.0",
        "2048, and MinAtar with sticky actions (Pgx)",
    ),
    Suite(
        "gymnasium",
        "host",
        "MIT",
        "Any environment registered with Gymnasium that has discrete actions",
    ),
    Suite(
        "atari",
        "host",
        "GPL-2.0",
        "Atari 2600 games from pixels (Arcade Learning Environment)",
        packages=("ale-py", "gymnasium"),
    ),
    Suite(
        "procgen",
        "host",
        "Apache-2.0",
        "The 16 procedurally generated ProcGen games from pixels (EnvPool)",
        packages=("envpool",),
        requirement="the Qt 5 libraries: the wheel PyQt5-Qt5, or a system package (qtbase5-dev)",
    ),
    Suite(
        "crafter",
        "host",
        "MIT",
        "Crafter: survival in an open world, from pixels",
        default="reward",
    ),
    Suite(
        "nethack",
        "host",
        "NetHack General Public License",
        "NetHack, by the NetHack Learning Environment",
        packages=("nle",),
        default="NetHackChallenge-v0",
    ),
)
SUITES = {suite.name: suite for suite in _SUITES}

# Names of environments in other libraries, and the suites that may have them, best first.
_KNOWN_AS = (
    ("atari", r"ALE/(\w+)-v5"),
    ("atari", r"(\w+)NoFrameskip-v4"),
    ("minigrid", r"MiniGrid-(.+?)(?:-v0)?"),
    ("craftax", r"(Craftax-.+)"),
    ("nethack", r"(NetHack.*-v0)"),
    ("gymnax", r"(?!MiniGrid-)(.+-(?:MinAtar|bsuite|misc|v\d+))"),
    ("gymnasium", r"(.+-v\d+)"),
)
# Modules that register names with Gymnasium only when they are imported.
_REGISTERED_BY = (("minigrid", r"(?:MiniGrid|BabyAI)-.+"),)


def canonical(text: str) -> str:
    """Translates names such as `CartPole-v1`, `ALE/Pong-v5` and `Asterix-MinAtar` to discorl's.

    Any other text is returned unchanged.

    Raises:
        UserError: a suite that would have it is not installed.
    """
    name, colon, parameters = text.partition(":")
    matches = [(SUITES[suite], re.fullmatch(pattern, name)) for suite, pattern in _KNOWN_AS]
    absent = []
    for suite, match in matches:
        if match is None:
            continue
        if suite.missing():
            absent.append(suite)
            if suite.name not in ("gymnax", "gymnasium", "minigrid"):
                break  # no other suite has it
        elif suite.has(match[1]):
            return f"{suite.name}:{match[1]}" + (f",{parameters}" if colon else "")
    for module, pattern in _REGISTERED_BY:
        if re.fullmatch(pattern, name) and importlib.util.find_spec(module):
            gymnasium = SUITES["gymnasium"]
            if not gymnasium.missing() and gymnasium.has(f"{module}:{name}"):
                return f"gymnasium:{module}:{name}" + (f",{parameters}" if colon else "")
    if absent:
        if SUITES["minigrid"] in absent:
            absent = [SUITES["minigrid"]]  # Gymnasium alone doesn't have its tasks
        installs = " or ".join(f"`{suite.install}`" for suite in absent)
        raise UserError(f"no installed suite has {name!r}; run {installs}")
    asked = [(suite, match[1]) for suite, match in matches if match is not None]
    if asked:
        # Of suites that have the same item, the best wins.
        items = {
            x.lower(): f"{suite.name}:{x}" for suite, _ in reversed(asked) for x in suite.names()
        }
        close = difflib.get_close_matches(asked[0][1].lower(), items, n=1, cutoff=0.75)
        if close:
            raise UserError(f"no environment {name!r}; did you mean {items[close[0]]!r}?")
    return text


# Suites without an adapter that users may look for, with the reason.
UNAVAILABLE = {
    "dmlab": "DeepMind Lab (DMLab-30) has no package that can be installed, only sources to build "
    "with Bazel. If you have built it, wrap it as an environment of your own, "
    "package.module:factory, and train with --preset dmlab",
}
