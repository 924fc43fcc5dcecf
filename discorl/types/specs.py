"""Specs: a name and its settings as short text, `catch:rows=8,columns=8` or `ppo:epochs=4`.

The grammar is `NAME[:[ITEM][,KEY=VALUE]...]`. An item picks one thing out of a suite, as in
`atari:Pong,size=64`; it holds no `=` and no comma. A value may be a range, `LOW..HIGH`, where a
setting takes one: `grid:reward=0.1..2`.
"""

import dataclasses
import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from discorl.types import UserError

Built = TypeVar("Built")
Number = TypeVar("Number", bound=float)


class Range(NamedTuple, Generic[Number]):
    """The numbers from `low` to `high`, both included; a single number if they are equal."""

    low: Number
    high: Number

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


Value = bool | int | float | str | Range


@dataclasses.dataclass(frozen=True)
class Spec:
    """A parsed text: a name, optionally an item, and settings."""

    name: str
    item: str | None = None
    parameters: dict[str, Value] = dataclasses.field(default_factory=dict)


# --- text to spec ---------------------------------------------------------------------------------


def parse(text: str) -> Spec:
    """Parses a text such as `catch`, `catch:rows=8,columns=8` or `suite:item,key=value`.

    Whitespace around the parts is ignored. A value is an integer, a float, `true`, `false` or a
    `Range` of finite numbers if it reads as one, and otherwise a string.
    """
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if not name or any(symbol in name for symbol in "=,"):
        raise _malformed(text, f"the name {name!r} is empty or holds '=' or ','")
    if not colon:
        return Spec(name)
    parts = [part.strip() for part in rest.split(",")]
    item = parts.pop(0) if "=" not in parts[0] else None
    if item == "":
        raise _malformed(text, "nothing follows the colon")
    parameters: dict[str, Value] = {}
    for part in parts:
        key, _, value = (side.strip() for side in part.partition("="))
        if not key.isidentifier() or not value:
            raise _malformed(text, f"{part!r} is not KEY=VALUE")
        if key in parameters:
            raise _malformed(text, f"{key!r} is given twice")
        parameters[key] = read = _parse_value(value)
        if isinstance(read, Range) and read.low > read.high:
            raise UserError(
                f"{key}={read} in {text!r} ends below where it begins; expected "
                f"{key}={Range(read.high, read.low)}"
            )
    return Spec(name, item, parameters)


def _malformed(text: str, reason: str) -> UserError:
    return UserError(
        f"cannot read {text!r}: {reason}; expected NAME, NAME:KEY=VALUE,... or "
        "NAME:ITEM,KEY=VALUE,..."
    )


def _parse_value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    number = _parse_number(text)
    if number is not None:
        return number
    ends = [_parse_number(end) for end in text.split("..")]
    finite = [end for end in ends if end is not None and abs(end) < math.inf]
    return Range(*finite) if len(ends) == len(finite) == 2 else text


def _parse_number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if abs(number) < 2**1023 else float(text)  # huge integers become infinite
    return None


def _format_value(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def nearest(name: str, choices: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest choice, then all of them."""
    ordered = sorted(choices)
    close = difflib.get_close_matches(name.lower(), ordered, n=1, cutoff=0.5)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return f"{suggestion}known: {', '.join(ordered) or 'none'}"


def require_known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Rejects unknown names; the message suggests the nearest choice and lists all."""
    choices = list(known)
    for name in names:
        if name not in choices:
            raise UserError(f"no {kind} {name!r}; {nearest(name, choices)}")


# --- spec to object -------------------------------------------------------------------------------


def build(constructor: Callable[..., Built], spec: Spec) -> Built:
    """Calls a constructor with annotated parameters on the parameters of a spec.

    The spec's item becomes the argument `item`; a constructor without one takes no item. Unknown
    parameters go to `**parameters` if the constructor has them.
    """
    signature = inspect.signature(constructor, eval_str=True).parameters
    settable = {
        name: parameter
        for name, parameter in signature.items()
        if name != "item"
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and not dataclasses.is_dataclass(parameter.annotation)  # cannot be written as text
    }
    _check_item(spec, signature.get("item"))
    is_open = any(parameter.kind == parameter.VAR_KEYWORD for parameter in signature.values())
    accepted = f"{spec.name} accepts {_listing(settable.values())}"
    arguments: dict[str, Any] = {} if spec.item is None else {"item": spec.item}
    for name, value in spec.parameters.items():
        if name in settable:
            arguments[name] = _fit(name, value, settable[name].annotation, accepted)
        elif is_open and name != "item":
            arguments[name] = _fit(name, value, Any, accepted)
        else:
            close = difflib.get_close_matches(name, settable, n=1)
            suggestion = f", did you mean {close[0]!r}?" if close else ";"
            raise UserError(f"{spec.name} has no parameter {name!r}{suggestion} {accepted}")
    for name, parameter in settable.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise UserError(f"{spec.name} needs the parameter {name!r}; {accepted}")
    return constructor(**arguments)


def _check_item(spec: Spec, parameter: inspect.Parameter | None) -> None:
    if parameter is None and spec.item is not None:
        raise UserError(
            f"{spec.name} takes parameters only, got {spec.item!r}; write {spec.name}:KEY=VALUE,..."
        )
    if parameter is not None and parameter.default is parameter.empty and spec.item is None:
        raise UserError(
            f"{spec.name} needs an item: write {spec.name}:ITEM or {spec.name}:ITEM,..."
        )


def _listing(parameters: Iterable[inspect.Parameter]) -> str:
    """Names, types and defaults in readable form: `rows: int = 8`."""
    entries = []
    for parameter in parameters:
        entry = f"{parameter.name}: {_type_name(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            entry += f" = {_format_value(parameter.default)}"
        entries.append(entry)
    return ", ".join(entries) or "no parameters"


def _type_name(annotation: Any) -> str:
    if typing.get_origin(annotation) is Literal:
        return " | ".join(map(_format_value, typing.get_args(annotation)))
    if typing.get_origin(annotation) is Range:
        return f"{_type_name(typing.get_args(annotation)[0])} or range"
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(map(_type_name, typing.get_args(annotation)))
    if annotation is inspect.Parameter.empty:
        return "any"
    if annotation is types.NoneType:
        return "none"
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)


def _fit(name: str, value: Value, annotation: Any, accepted: str) -> Any:
    """Converts the value to the annotated type, if possible."""
    origin = typing.get_origin(annotation)
    choices = typing.get_args(annotation)
    kinds = choices if origin in (typing.Union, types.UnionType) else (annotation,)
    fits: list[Any]
    if origin is Range:
        fits = _as_range(value, choices[0])
    elif isinstance(value, Range) and str not in kinds:
        fits = []
    elif origin is Literal:
        fits = [choice for choice in choices if _format_value(choice) == _format_value(value)]
    elif annotation in (Any, inspect.Parameter.empty) or type(value) in kinds:
        fits = [value]
    elif type(None) in kinds and value == "none":
        fits = [None]
    elif float in kinds and type(value) is int:
        fits = [float(value)]
    else:
        # Text that happens to read as a number or a truth value is still a string.
        fits = [_format_value(value)] if str in kinds else []
    if not fits:
        raise UserError(f"{name}={_format_value(value)} {_misfit(value, annotation)}; {accepted}")
    return fits[0]


def _as_range(value: Value, kind: type) -> list[Range]:
    """Converts the value to a range of that type, if possible."""
    ends = value if isinstance(value, Range) else (value, value)
    readable = (int,) if kind is int else (int, float)
    return [Range(*map(kind, ends))] if all(type(end) in readable for end in ends) else []


def _misfit(value: Value, annotation: Any) -> str:
    """Why a value does not fit, and what is expected."""
    if isinstance(value, Range) and typing.get_origin(annotation) is not Range:
        any_kind = annotation in (Any, inspect.Parameter.empty)
        kind = "value" if any_kind else _type_name(annotation)
        return f"is a range; expected a single {kind}"
    if isinstance(value, str) and ".." in value:
        return "is not a range, LOW..HIGH with two finite numbers"
    return f"is not of the type {_type_name(annotation)}"
