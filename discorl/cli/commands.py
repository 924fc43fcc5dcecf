"""What a command takes and hands back, and what commands that make runs share."""

import argparse
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro

from discorl.cli.tables import table
from discorl.types import UserError, settings

if TYPE_CHECKING:
    from discorl.runs.processes import Cluster
    from discorl.types.findings import Finding

RUNS = Path("runs")
# Options that say where a resumed run goes on, not how.
_WHERE = ("track", "coordinator", "processes", "process", "executor")

Arguments = TypeVar("Arguments", bound="RunOptions")
Made = TypeVar("Made")

# For options whose help says in words what happens without them.
UNSET: Any = tyro.conf.arg(help_behavior_hint="")
_POSITIONAL = get_args(tyro.conf.Positional[int])[1]  # how tyro marks an argument without a name
JSON_HINT = "With --json, the result is printed as JSON."

_registry = tyro.constructors.ConstructorRegistry()


@_registry.primitive_rule
def _optional(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec | None:
    """Shows an option that may be left out by its type, `PATH` and not `{None}|PATH`, or empty."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    if get_origin(info.type) is tuple and get_args(info.type)[1:] == (Ellipsis,):
        kinds = [info.type]
    if len(kinds) != 1 or len(get_args(info.type)) != 2:
        return None
    several = get_origin(kinds[0]) is tuple
    kind = get_args(kinds[0])[0] if several else kinds[0]
    choices = get_args(kind) if get_origin(kind) is Literal else None  # texts
    kind = str if choices else kind
    if kind not in (str, int, float, Path):
        return None
    name = f"{{{','.join(choices)}}}" if choices else kind.__name__.upper()
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*" if several else 1,
        metavar=f"[{name} [{name} ...]]" if several else name,
        instance_from_str=lambda words: tuple(map(kind, words)) if several else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, tuple if several else kind),
        choices=choices,
        str_from_instance=lambda value: (
            list(map(str, value or ["none"]))
            if several
            else ["none" if value is None else str(value)]
        ),
    )


_asked: set[Any] = set()  # dataclasses that `_one_paragraph` asks tyro's own rule about


@_registry.struct_rule
def _one_paragraph(
    info: tyro.constructors.StructTypeInfo,
) -> tyro.constructors.StructConstructorSpec | None:
    """Joins the lines of a field's docstring: tyro leaves breaks before those that are indented.

    If the docstring says in words what happens by default, `(default: none)` is left out.
    """
    if not dataclasses.is_dataclass(info.type) or info.type in _asked:
        return None
    _asked.add(info.type)
    try:
        spec = tyro.constructors.ConstructorRegistry.get_struct_spec(info)
    finally:
        _asked.remove(info.type)
    if not isinstance(spec, tyro.constructors.StructConstructorSpec):
        return None

    def joined(helptext: str | Callable[[], str | None] | None) -> str:
        return " ".join(((helptext() if callable(helptext) else helptext) or "").split())

    def improved(
        field: tyro.constructors.StructFieldSpec,
    ) -> tyro.constructors.StructFieldSpec:
        shown: Any = field.type
        if field.default in (None, ()) and "by default" in joined(field.helptext).lower():
            shown = Annotated[shown, UNSET]
        helptext = functools.partial(joined, field.helptext)
        return dataclasses.replace(field, helptext=helptext, type=shown)

    return dataclasses.replace(spec, fields=tuple(map(improved, spec.fields)))


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a command, for people and for programs."""

    data: dict[str, Any]  # printed with --json
    text: str = ""  # printed otherwise
    ok: bool = True  # False: the command exits with status 1
    silent: bool = False  # whether another process prints the same


# Takes the arguments after the command's name, and the program's name for messages.
Command = Callable[[list[str], str], Result]


def command(function: Callable[..., Result]) -> Command:
    """Makes a command of a function, whose signature and docstring say what it accepts."""

    @functools.wraps(function)
    def run(arguments: list[str], program: str) -> Result:
        return call(function, arguments, program)

    return run


def call(function: Callable[..., Result], arguments: list[str], program: str) -> Result:
    """Calls a function with what the arguments say; one that resumes takes no other settings."""
    document = (inspect.getdoc(function) or "").replace("\n        ", " ")  # continued lines
    about = document.partition("\n\nArgs:")[0]
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)

    def documented(*given: Any, **named: Any) -> Result:
        _refuse_other_settings(named.get("resume"), arguments, program)
        return function(*given, **named)

    # Not by functools.wraps, behind which tyro finds the docstring as it was.
    documented.__doc__ = document
    documented.__signature__ = signature  # type: ignore[attr-defined]
    documented.__annotations__ = {
        name: _shown(parameter, hints[name]) for name, parameter in signature.parameters.items()
    }
    return tyro.cli(
        documented,
        prog=program,
        description=f"{about}\n\n{JSON_HINT}",
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=_registry,
    )


def _shown(parameter: inspect.Parameter, hint: Any) -> Any:
    """How help shows a parameter.

    Docstrings say in words what happens without it. A positional argument has its name, `RUN`,
    where tyro would show its type, `PATH`.
    """
    if parameter.default in (None, (), parameter.empty):
        hint = Annotated[hint, UNSET]
    if _POSITIONAL not in get_args(hint):
        return hint
    shown = parameter.name.upper().replace("_", "-")
    if get_origin(get_args(hint)[0]) is tuple:
        shown = f"{shown.removesuffix('S')} [{shown.removesuffix('S')} ...]"
    elif parameter.default is not parameter.empty:
        shown = f"[{shown}]"
    return Annotated[hint, tyro.conf.arg(metavar=shown)]


# --- commands that make runs ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Where a run is kept; a command adds these options to those of its configuration."""

    out: Annotated[Path | None, UNSET] = None
    """Run directory to make; by default a new one in `runs`."""
    config: Annotated[Path | None, UNSET] = None
    """TOML file with settings by flat or nested names, or an earlier run (its directory or its
    config.json); options override it."""
    resume: Annotated[Path | None, UNSET] = None
    """Run directory to continue, with its own settings."""
    accept_changes: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """When resuming: continue even though files of the run were changed since it stopped."""
    track: Annotated[str | None, UNSET] = None
    """Send the metrics to `wandb` or `trackio` as well, optionally with arguments of their `init`
    (`wandb:project=mine,mode=offline`)."""
    resume_if_exists: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """If --out holds a run already, continue it with its own settings; for schedulers that start a
    command again."""
    distributed: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """This is one of several processes that a scheduler started with the same command."""
    coordinator: Annotated[str | None, UNSET] = None
    """Without a scheduler: HOST:PORT of process 0, the same for all processes."""
    processes: Annotated[int | None, UNSET] = None
    """How many processes there are."""
    process: Annotated[int | None, UNSET] = None
    """Number of this process, from 0."""

    def __post_init__(self) -> None:
        """Checks nothing: the function that configures a run does."""

    @property
    def cluster(self) -> "Cluster | bool":
        """The processes of the run; False: only this one."""
        from discorl.runs.processes import Cluster  # here: it would slow down `discorl --help`

        by_hand = Cluster(self.coordinator, self.processes, self.process)
        return self.distributed if by_hand == Cluster() else by_hand

    def run(self, function: Callable[..., Made], config: Any, name: str, **options: Any) -> Made:
        """Calls `train` or `discover` to resume a run, or to make one, by default after a name."""
        options |= {
            "accept_changes": self.accept_changes,
            "track": self.track,
            "distributed": self.cluster,
        }
        if self.resume is not None:
            return result_of(function, resume=self.resume, **options)
        again = self.resume_if_exists
        if self.out is None and (self.cluster or again):
            raise UserError("out is not given; expected a folder, the same for every start")
        out = self.out or free_directory(name)
        return result_of(function, config, out=out, resume_if_exists=again, **options)


def parse(
    kind: type[Arguments], default: Arguments, arguments: list[str], program: str, about: str | None
) -> Arguments:
    """Parses the settings of a run, whose options are flat names: `--learning-rate`.

    The default has the values of options that are not given, which `--help` shows. Options called
    as in another library are refused, and all settings besides `--resume`.
    """
    other_names = settings.other_names(kind)
    for argument in arguments:
        option = argument.partition("=")[0]
        ours = other_names.get(option.removeprefix("--").replace("-", "_"))
        if option.startswith("--") and ours is not None:
            raise UserError(f"no option {option}; did you mean --{ours.replace('_', '-')}?")
    parsed = tyro.cli(
        kind,
        prog=program,
        description=f"{about}\n\n{JSON_HINT}",
        default=default,
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed),
        registry=_registry,
    )
    _refuse_other_settings(parsed.resume, arguments, program)
    return parsed


def values_of(config: Any, kind: type) -> dict[str, Any]:
    """What an instance holds in the fields of a class that it extends."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(kind)}


def peek(arguments: list[str], program: str, *names: str) -> dict[str, str]:
    """Those of the named options that are given: they decide the defaults of all others."""
    return vars(_split(arguments, program, *names)[0])


def _refuse_other_settings(resume: Path | None, arguments: list[str], program: str) -> None:
    """Raises a `UserError` if a setting is given besides `--resume`, even a default."""
    if resume is None:
        return
    _, others = _split(arguments, program, "resume", *_WHERE)
    flags = ("--accept-changes", "--distributed")
    others = [argument for argument in others if argument not in flags]
    if others:
        raise UserError(
            f"--resume continues with the run's own settings and takes no others, got "
            f"{' '.join(others)}: run `{program} --resume {resume}`"
        )


def result_of(function: Callable[..., Made], *arguments: Any, **options: Any) -> Made:
    """What a long command returns, or has so far when it is stopped."""
    from discorl.runs.interrupts import Stopped  # here: it would slow down `discorl --help`

    try:
        return function(*arguments, **options)
    except Stopped as stopped:
        return stopped.result


def contract_result(name: str, findings: Sequence["Finding"]) -> Result:
    """The result of checking a rule or an environment."""
    ok = all(finding.ok for finding in findings)
    rows = [(each.verdict, each.check, each.detail) for each in findings]
    verdict = f"{name} keeps the contract" if ok else f"{name} breaks the contract"
    if ok and not all(finding.checked for finding in findings):
        verdict += ", as far as it was checked"
    data = {"name": name, "ok": ok, "findings": [vars(finding) for finding in findings]}
    return Result(data, f"{table(rows)}\n{verdict}", ok)


def tell(line: str) -> None:
    """Prints a line for people, apart from the result."""
    print(line, file=sys.stderr, flush=True)


def free_directory(name: str) -> Path:
    """`runs/NAME-N`, N being the first that is free."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-")
    return next(p for i in itertools.count() if not (p := RUNS / f"{name}-{i}").exists())


def _split(arguments: list[str], program: str, *names: str) -> tuple[argparse.Namespace, list[str]]:
    """The named options that are given, and all other arguments."""
    parser = argparse.ArgumentParser(
        prog=program, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    for name in names:
        parser.add_argument(f"--{name}")
    return parser.parse_known_args(arguments)
