import dataclasses
from typing import Any, Literal

import pytest

from discorl.types import UserError, specs
from discorl.types.specs import Range, Spec


@dataclasses.dataclass(frozen=True)
class Thing:
    count: int
    rate: float = 0.5
    loud: bool = False
    label: str = "plain"
    mode: Literal["fast", "slow"] = "fast"
    limit: int | None = None


@dataclasses.dataclass(frozen=True)
class Ranges:
    weight: Range[float] = Range(0.5, 1.0)
    steps: Range[int] = Range(1, 6)


def suite(item: str, frames: int = 1) -> tuple[str, int]:
    return item, frames


def passes_on(item: str = "first", **parameters: Any) -> tuple[str, dict[str, Any]]:
    return item, parameters


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("catch", Spec("catch")),
        ("catch:rows=8,columns=9", Spec("catch", None, {"rows": 8, "columns": 9})),
        ("gymnax:Breakout-MinAtar", Spec("gymnax", "Breakout-MinAtar")),
        ("gymnax:Breakout,frames=4", Spec("gymnax", "Breakout", {"frames": 4})),
        ("gym:ALE/Pong-v5:hard,a=x", Spec("gym", "ALE/Pong-v5:hard", {"a": "x"})),
        (" ppo : epochs = 4 , rate=1e-3 ", Spec("ppo", None, {"epochs": 4, "rate": 1e-3})),
        ("disco:path=a=b,on=true", Spec("disco", None, {"path": "a=b", "on": True})),
    ],
)
def test_parse_reads_the_grammar(text: str, spec: Spec) -> None:
    assert specs.parse(text) == spec


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("8", 8),
        ("-3", -3),
        ("8.0", 8.0),
        ("1e3", 1000.0),
        ("inf", float("inf")),
        ("9" * 400, float("inf")),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("8x8", "8x8"),
        ("4..6", Range(4, 6)),
        ("-1..0.4", Range(-1, 0.4)),
        ("1e-3 .. .5", Range(0.001, 0.5)),
        ("../rule", "../rule"),
        ("a..b", "a..b"),
        ("4..", "4.."),
        ("1..2..3", "1..2..3"),
        ("0..inf", "0..inf"),
        ("nan..1", "nan..1"),
    ],
)
def test_values_are_typed(value: str, expected: Any) -> None:
    read = specs.parse(f"thing:key={value}").parameters["key"]
    assert read == expected
    assert type(read) is type(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a,b",
        "rows=8",
        ":rows=8",
        "catch:",
        "catch:=8",
        "catch:,a=1",
        "catch:rows=",
        "catch:rows=8,",
        "catch:rows=8,x",
        "catch:2rows=8",
        "catch:item,,a=1",
        "catch:rows=8,rows=9",
    ],
)
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected NAME"):
        specs.parse(text)


def test_a_range_that_ends_below_its_beginning_is_refused() -> None:
    with pytest.raises(UserError) as error:
        specs.parse("thing:count=6..4")
    assert "count=6..4 in 'thing:count=6..4' ends below" in str(error.value)
    assert "expected count=4..6" in str(error.value)
    assert specs.parse("thing:count=4..4").parameters["count"] == Range(4, 4)


def test_nearest_suggests_a_name_and_lists_all() -> None:
    assert specs.nearest("cach", ["pong", "catch"]) == "did you mean 'catch'? known: catch, pong"
    assert specs.nearest("zzz", ["pong", "catch"]) == "known: catch, pong"


def test_build_calls_the_constructor_with_fitting_types() -> None:
    text = "thing:count=2,rate=1,loud=true,label=7,mode=slow,limit=3"
    thing = specs.build(Thing, specs.parse(text))
    assert thing == Thing(2, 1.0, True, "7", "slow", 3)
    assert type(thing.rate) is float
    assert specs.build(Thing, specs.parse("thing:count=2,limit=none")) == Thing(2)


def test_build_makes_ranges_of_ranges_and_of_numbers() -> None:
    built = specs.build(Ranges, specs.parse("ranges:weight=0..2,steps=3"))
    assert built == Ranges(Range(0.0, 2.0), Range(3, 3))
    assert all(type(end) is float for end in built.weight)
    assert specs.build(Ranges, specs.parse("ranges:weight=0.25")).weight == Range(0.25, 0.25)
    # What a text is told back with can be read again.
    assert specs.build(Ranges, specs.parse(f"ranges:weight={built.weight}")).weight == built.weight
    assert specs.build(Thing, specs.parse("thing:count=1,label=1..2")).label == "1..2"


def test_build_hands_over_items_and_open_parameters() -> None:
    assert specs.build(suite, specs.parse("suite:pong,frames=4")) == ("pong", 4)
    assert specs.build(passes_on, specs.parse("open:a=1,b=x")) == ("first", {"a": 1, "b": "x"})


@pytest.mark.parametrize(
    ("constructor", "text", "message"),
    [
        (Thing, "thing:count=2,rat=1", "no parameter 'rat', did you mean 'rate'?"),
        (Thing, "thing:count=2.5", "count=2.5 is not of the type int"),
        (Thing, "thing:count=true", "count=true is not of the type int"),
        (Thing, "thing:count=2,loud=1", "loud=1 is not of the type bool"),
        (Thing, "thing:count=2,rate=high", "rate=high is not of the type float"),
        (Thing, "thing:count=2,mode=still", "mode=still is not of the type fast | slow"),
        (Thing, "thing:rate=1", "needs the parameter 'count'"),
        (Thing, "thing:pong,count=2", "takes parameters only, got 'pong'"),
        (Thing, "thing:count=2..3", "count=2..3 is a range; expected a single int; thing accepts"),
        (Thing, "thing:count=2,rate=0..1", "rate=0..1 is a range; expected a single float"),
        (Thing, "thing:count=2,loud=0..1", "loud=0..1 is a range; expected a single bool"),
        (Thing, "thing:count=a..b", "count=a..b is not a range, LOW..HIGH with two finite"),
        (passes_on, "open:a=1..2", "a=1..2 is a range; expected a single value"),
        (Ranges, "ranges:steps=1..2.5", "steps=1..2.5 is not of the type int or range"),
        (Ranges, "ranges:steps=true", "steps=true is not of the type int or range"),
        (Ranges, "ranges:weight=0..x", "weight=0..x is not a range"),
        (Ranges, "ranges:wait=1", "accepts weight: float or range = 0.5..1.0, steps: int or range"),
        (suite, "suite:frames=4", "needs an item"),
        (suite, "suite:pong,item=4", "no parameter 'item'"),
    ],
)
def test_build_refuses_with_a_reason(constructor: Any, text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        specs.build(constructor, specs.parse(text))
    assert message in str(error.value)


def test_build_names_what_it_accepts() -> None:
    with pytest.raises(UserError) as error:
        specs.build(Thing, specs.parse("thing:size=2"))
    accepted = (
        "thing accepts count: int, rate: float = 0.5, loud: bool = false, label: str = plain, "
        "mode: fast | slow = fast, limit: int | none = none"
    )
    assert accepted in str(error.value)
