"""Untrusted JSON files: decoded, and checked against a schema before any use.

A schema is a type, `[SCHEMA]` for a list, `{"name": SCHEMA, "other?": SCHEMA}` for an object whose
"other" is optional, `Each(SCHEMA)` for an object with any names, or a tuple of alternatives.
`float` accepts integers.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

from discorl.runs.files import naming, read_text
from discorl.types import UserError

MAX_BYTES = 2**26

_WORDS = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    type(None): "null",
}


@dataclasses.dataclass(frozen=True)
class Each:
    """The schema of an object with arbitrary names."""

    value: Any


def read_json(path: str | os.PathLike[str], schema: Any) -> Any:
    """The content of a JSON file, checked against a schema."""
    text = read_text(path, MAX_BYTES)
    with naming(path):
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise UserError(f"is not JSON: {error}") from error
        check(value, schema)
    return value


def check(value: Any, schema: Any) -> None:
    """Rejects a value that does not match a schema; the message names the part that differs."""
    for problem in _problems(value, schema, ""):
        raise UserError(problem)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _problems(value: Any, schema: Any, where: str) -> Iterator[str]:
    """All mismatches, the outermost first."""
    if isinstance(schema, tuple):
        if all(any(_problems(value, each, where)) for each in schema):
            yield _mismatch(value, schema, where)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield _mismatch(value, schema, where)
            return
        for i, each in enumerate(value):
            yield from _problems(each, schema[0], f"{where}[{i}]")
    elif isinstance(schema, dict | Each):
        if not isinstance(value, dict):
            yield _mismatch(value, schema, where)
            return
        parts = schema if isinstance(schema, dict) else dict.fromkeys(value, schema.value)
        for key, part in parts.items():
            optional = isinstance(schema, dict) and key.endswith("?")
            name = key.removesuffix("?") if optional else key
            if optional and name not in value:
                continue
            if name not in value:
                yield f"{where and where + ' '}has no {name!r}"
            else:
                yield from _problems(value[name], part, f"{where}.{name}".lstrip("."))
    elif not _is(value, schema):
        yield _mismatch(value, schema, where)


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _mismatch(value: Any, schema: Any, where: str) -> str:
    return f"{where or 'it'} is {value!r:.60}; expected {_words(schema)}"


def _words(schema: Any) -> str:
    if isinstance(schema, tuple):
        return " or ".join(map(_words, schema))
    if isinstance(schema, list):
        return "a list"
    return "an object" if isinstance(schema, dict | Each) else _WORDS[schema]
