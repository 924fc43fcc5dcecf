"""One validator for settings, and settings by flat names in nested dataclasses."""

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np
import pytest

from discorl.types import UserError, settings, validation
from discorl.types.specs import Range
from discorl.types.validation import bounded


@pytest.mark.parametrize(
    ("check", "value", "bounds", "message"),
    [
        (validation.integer, 0, {"least": 1}, "x is 0; expected at least 1"),
        (validation.integer, 9, {"least": 1, "most": 8}, "x is 9; expected from 1 to 8"),
        (validation.integer, True, {}, "x is True; expected an integer"),
        (validation.integer, 2.0, {}, "x is 2.0; expected an integer"),
        (validation.integer, "2", {}, "x is '2'; expected an integer"),
        (validation.number, math.nan, {"least": 0, "most": 1}, "x is nan; expected from 0 to 1"),
        (validation.number, math.inf, {"above": 0}, "x is inf; expected a positive number"),
        (validation.number, -math.inf, {}, "x is -inf; expected a finite number"),
        (validation.number, 0, {"above": 0}, "x is 0; expected a positive number"),
        (validation.number, 1, {"least": 0, "below": 1}, "x is 1; expected at least 0 and below 1"),
        (validation.number, 0, {"above": 0, "most": 1}, "x is 0; expected above 0 and at most 1"),
        (validation.number, False, {}, "x is False; expected a number"),
        (validation.number, None, {}, "x is None; expected a number"),
        (validation.integers, (1, 0), {"least": 1}, r"x is \(1, 0\); expected integers of at le"),
        (validation.integers, (), {"least": 1, "empty": False}, r"x is \(\); expected integers"),
        (validation.integers, "12", {"least": 1}, "x is '12'; expected integers of at least 1"),
    ],
)
def test_values_that_are_refused(check, value, bounds, message):
    with pytest.raises(UserError, match=f"^{message}"):
        check("x", value, **bounds)
    with pytest.raises(UserError, match=f"^ppo: {message}"):
        check("x", value, **bounds, owner="ppo")


def test_values_become_plain_numbers():
    made = validation.integer("x", np.int64(3)), validation.number("x", np.float32(0.5))
    assert made == (3, 0.5)
    assert [type(x) for x in made] == [int, float]
    assert validation.integers("x", 4) == (4,)
    assert validation.integers("x", [np.int8(4), 5]) == (4, 5)
    assert type(validation.number("x", 1)) is float


@dataclasses.dataclass(frozen=True)
class Inner:
    depth: int = bounded(1, least=1)
    width: tuple[int, ...] = bounded((2,), least=1)

    other_names: ClassVar = {"layers": "depth"}

    def __post_init__(self):
        validation.Fields(self).declared()


@dataclasses.dataclass(frozen=True)
class Outer:
    part: Inner = Inner(depth=3)
    span: Range = bounded(Range(0.0, 1.0), least=0, most=1)
    dry: bool = False
    kind: Literal["short", "long"] = "short"
    label: str = ""
    name: str = "outer"
    path: str | None = None
    mode: Literal["near", "far"] | None = None
    order: Literal[1, 2] = 1
    size: str | int = 3

    def __post_init__(self):
        validation.Fields(self, "outer").declared()


def test_flat_names_reach_nested_parts():
    others = ("dry", "kind", "label", "name", "path", "mode", "order", "size")
    assert settings.names(Outer) == ("depth", "width", "span", *others)
    config = settings.replace(Outer(), width=[4, 5], span=Range(0, 1))
    assert config == Outer(Inner(3, (4, 5)))
    for values in ({"depth": 7}, {"part": {"depth": 7}}, {"part": Inner(7)}):
        assert settings.build(Outer, values) == Outer(Inner(7))
    assert settings.build(Outer, dataclasses.asdict(config)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dept": 1}, "file: no setting 'dept'; did you mean 'depth'"),
        ({"layers": 1}, r"file: no setting 'layers'; did you mean 'depth'\?$"),
        ({"part": {"layers": 1}}, r"file: part: no setting 'layers'; did you mean 'depth'\?$"),
        ({"part": 3}, "file: part: got 3; expected a table of settings"),
        ({"part": {"depth": 1}, "depth": 2}, "file: depth is given twice"),
        ({"depth": 0}, "depth is 0; expected at least 1"),
        ({"width": [1, 0]}, r"width is \(1, 0\); expected integers of at least 1"),
        ({"span": Range(0.5, 2.0)}, r"outer: span is 0.5\.\.2.0; expected from 0 to 1"),
        ({"span": Range(1.0, 0.5)}, r"outer: span is 1.0\.\.0.5; expected 0.5\.\.1.0"),
        ({"span": Range(0.5, math.nan)}, "outer: span is 0.5..nan; expected from 0 to 1"),
        ({"span": (0.1, 0.2, 0.3)}, r"outer: span is \(0.1, 0.2, 0.3\); expected a number, or a r"),
        ({"span": 2.0}, r"outer: span is 2.0\.\.2.0; expected from 0 to 1"),
        ({"dry": 1}, "outer: dry is 1; expected true or false"),
        ({"kind": "wide"}, "outer: kind is 'wide'; expected one of short, long"),
        ({"kind": None}, "outer: kind is None; expected one of short, long"),
        ({"label": 3}, "outer: label is 3; expected a text"),
        ({"name": ""}, "outer: name is ''; expected a text"),
        ({"name": None}, "outer: name is None; expected a text"),
        ({"path": "a\0b"}, r"outer: path is 'a\\x00b'; expected a text"),
        ({"mode": "zzz"}, "outer: mode is 'zzz'; expected one of near, far"),
        ({"order": 3}, "outer: order is 3; expected one of 1, 2"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(UserError, match=f"^{message}"):
        settings.build(Outer, values, "file: ")


def test_annotations_accept_what_they_say():
    values = {"dry": True, "kind": "long", "label": "", "name": "x", "path": None}
    assert settings.flatten(Outer, settings.build(Outer, values)).items() >= values.items()
    assert settings.build(Outer, {"path": "y"}).path == "y"
    assert settings.build(Outer, {"mode": "far", "order": 2, "size": "wide"}).size == "wide"
    assert settings.build(Outer, {"size": 5}).size == 5


@dataclasses.dataclass(frozen=True)
class Later:
    """Annotations are texts, as in modules that import them from `__future__`."""

    dry: "bool" = False
    other: "Missing" = None  # noqa: F821

    def __post_init__(self):
        validation.Fields(self).declared()


def test_annotations_may_be_texts(monkeypatch):
    Later(dry=3)  # nothing can be looked up
    monkeypatch.setitem(globals(), "Missing", int)
    with pytest.raises(UserError, match="dry is 3; expected true or false"):
        Later(dry=3)
