"""Checks of settings and arguments, all with one form of message: `NAME is VALUE; expected ...`.

The functions check a value and return it as a plain `int`, `float` or `tuple`, which JSON can
store. `Fields` does the same for the fields of a frozen dataclass. Bounds stand beside defaults,
and annotations say what else is accepted:

    unroll: int = bounded(28, least=1)
    discount: float = bounded(0.997, least=0, most=1)
    schedule: Literal["constant", "cosine"] = "constant"

    def __post_init__(self) -> None:
        Fields(self).declared()
"""

import dataclasses
import math
import numbers
import types
import typing
from collections.abc import Sequence
from typing import Any, NoReturn, Self

from discorl.types.errors import UserError
from discorl.types.specs import Range

MOST_INTEGER = MOST_SEED = 2**31 - 1  # of int32, JAX's default
LEAST_NUMBER, MOST_NUMBER = 1e-45, 3.4e38  # of float32
_CHECK = "check"  # in the metadata of fields


def refuse(name: str, value: Any, accepted: str, owner: str = "") -> NoReturn:
    """Raises a `UserError` that names a setting, its value and what would be accepted.

    `owner` is the rule or environment that has the setting.
    """
    shown = str(value) if isinstance(value, Range) else repr(value)
    raise UserError(f"{owner + ': ' if owner else ''}{name} is {shown}; expected {accepted}")


def integer(
    name: str, value: Any, *, least: float = -math.inf, most: float = math.inf, owner: str = ""
) -> int:
    """An integer within bounds; booleans and floats are rejected."""
    if not _is_integer(value):
        refuse(name, value, "an integer", owner)
    if not least <= value <= most:
        refuse(name, value, _bounds(least, most), owner)
    if value > MOST_INTEGER:
        refuse(name, value, f"at most {MOST_INTEGER}", owner)
    return int(value)


def number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    owner: str = "",
) -> float:
    """A finite number within bounds; `above` and `below` are exclusive."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        refuse(name, value, "a number", owner)
    try:
        plain = float(value)
    except OverflowError:  # a huge integer
        refuse(name, value, _bounds(least, most, above, below), owner)
    within = least <= plain <= most and above < plain < below
    held = math.isfinite(plain) and abs(plain) <= MOST_NUMBER
    if not (within and held) or (above == 0 and plain < LEAST_NUMBER):
        refuse(name, value, _bounds(least, most, above, below), owner)
    return plain


def integers(
    name: str, value: Any, *, least: float = -math.inf, empty: bool = True, owner: str = ""
) -> tuple[int, ...]:
    """Integers of at least `least`, from a sequence or a single integer."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    fits = all(_is_integer(x) and least <= x <= MOST_INTEGER for x in values)
    if not fits or not (values or empty):
        refuse(name, value, f"integers of {_bounds(least, math.inf)}", owner)
    return tuple(int(x) for x in values)


def choice(name: str, value: Any, choices: Sequence[Any], owner: str = "") -> Any:
    """One of several values, texts as a rule."""
    if value not in choices:
        refuse(name, value, f"one of {', '.join(map(str, choices))}", owner)
    return value


def bounded(default: Any, **bounds: float) -> Any:
    """A field that `Fields.declared` checks, by the type of its default and by its bounds."""
    sample = default.low if isinstance(default, Range) else default
    check = {int: integer, float: number, tuple: integers}[type(sample)]
    return dataclasses.field(default=default, metadata={_CHECK: (check, bounds)})


class Fields:
    """Checks the fields of a frozen dataclass and sets them to what the checks return.

    Used in `__post_init__`; messages call the dataclass `owner`. A field whose default is a `Range`
    may also be given as a pair or a single number.
    """

    def __init__(self, config: Any, owner: str = "") -> None:
        self._config, self._owner = config, owner
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            if isinstance(field.default, Range) and not isinstance(value, Range):
                ends = value if isinstance(value, tuple | list) else (value, value)
                self.require(len(ends) == 2, field.name, "a number, or a range of two")
                self._set(field.name, Range(*ends))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self._config, name, value)

    def declared(self) -> Self:
        """Checks what fields declare: bounds, and by annotation truth values, texts and choices.

        A field that a subclass gives another default keeps its bounds.
        """
        checks: dict[str, Any] = {}
        for kind in reversed(type(self._config).__mro__):
            own = vars(kind).get("__dataclass_fields__", {})
            checks |= {n: f.metadata[_CHECK] for n, f in own.items() if _CHECK in f.metadata}
        for name, (check, bounds) in checks.items():
            self._set(name, self._check(check, name, **bounds))
        hints = _hints(type(self._config))
        for field in dataclasses.fields(self._config):
            if getattr(self._config, field.name) is not field.default:
                self._check_hint(field, hints.get(field.name, Any))
        return self

    def _check_hint(self, field: dataclasses.Field, hint: Any) -> None:
        name, value = field.name, getattr(self._config, field.name)
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            if value is None and types.NoneType in typing.get_args(hint):
                return
            kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
            hint = kinds[0] if len(kinds) == 1 else Any
        if typing.get_origin(hint) is typing.Literal:
            choice(name, value, typing.get_args(hint), self._owner)
        elif hint is bool:
            self.require(isinstance(value, bool), name, "true or false")
        elif hint is str:
            fits = isinstance(value, str) and (value or field.default == "") and "\0" not in value
            self.require(bool(fits), name, "a text")

    def integer(self, *names: str, **bounds: float) -> None:
        """See `integer`, also for the bounds; both ends of a `Range` must fit."""
        for name in names:
            self._set(name, self._check(integer, name, **bounds))

    def number(self, *names: str, **bounds: float) -> None:
        """See `number`; both ends of a `Range` must fit."""
        for name in names:
            self._set(name, self._check(number, name, **bounds))

    def require(self, holds: bool, name: str, accepted: str) -> None:
        """Rejects the value of a field unless a condition holds."""
        if not holds:
            refuse(name, getattr(self._config, name), accepted, self._owner)

    def _check(self, check: Any, name: str, **bounds: float) -> Any:
        value = getattr(self._config, name)
        if not isinstance(value, Range) or check is integers:
            return check(name, value, owner=self._owner, **bounds)
        try:
            ends = Range(*(check(name, end, **bounds) for end in value))
        except UserError as error:
            refuse(name, value, str(error).rpartition("; expected ")[2], self._owner)
        if ends.low > ends.high:
            refuse(name, value, f"{Range(ends.high, ends.low)}", self._owner)
        return ends


def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass; none if they name what only a type checker can find."""
    try:
        return typing.get_type_hints(kind)
    except (NameError, AttributeError):
        return {}


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _bounds(least: float, most: float, above: float = -math.inf, below: float = math.inf) -> str:
    """The bounds in words."""
    if math.isfinite(least) and math.isfinite(most):
        return f"from {least} to {most}"
    if above == 0 and below == most == math.inf:
        return "a positive number"
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    words = [f"{word} {bound}" for word, bound in bounds.items() if math.isfinite(bound)]
    return " and ".join(words) or "a finite number"
