"""Command lines and TOML files with values that must be refused by name."""

import dataclasses
import random
import typing
from collections.abc import Iterator
from typing import Any

from trials import Campaign

from discorl.discovery.config import DiscoverConfig
from discorl.training.config import TrainConfig
from discorl.types import settings

COMMANDS = {"train": TrainConfig, "discover": DiscoverConfig}
NUMBERS = {
    int: ("nan", "x", "1.5", "-1", "99999999999999999999999", "1e400", "0x10"),
    float: ("nan", "inf", "-inf", "x", "-1", "1e400", "1e300"),
}
TEXTS = ("", "no such thing", "../..", "a" * 5000, "\u2603", "::", "=", "x:y:z", "-")
SPECS = (
    "catch:rows={}",
    "catch:rows=3,columns={}",
    "grid:size={}",
    "grid:seed={}",
    "grid:objects={}",
    "chain:length={}",
    "bandit:arms={}",
    "memory:delay={}",
    "tabular:states={}",
    "gymnax:{}",
    "gymnasium:{}",
    "{}:thing",
    "catch:{}=3",
)
WORDS = (
    "-1",
    "0",
    "nan",
    "inf",
    "1e9",
    "99999999999999999999",
    "x",
    "",
    "3..1",
    "none",
    "[]",
    "\u00e9",
)
BIG = "99999999999999999999999"
TOML_VALUES = (
    "'no'", "true", "nan", "inf", "-inf", "-1", "[]", "{}", "[[1]]", "''", "1979-05-27", "1e400",
    BIG, '"\\u0000"', "{ a = 1 }",
)  # fmt: skip
OTHERS = (
    ["train", "--out", ""],
    ["train", "--resume="],
    ["train", "--resume", "."],
    ["train", "--schedule", "zzz"],
    ["train", "--lr", "1"],
    ["train", "--updates"],
    ["train", "--seeds", "100000000"],
    ["train", "--hidden", "1000000000"],
    ["train", "--unroll", "100000000"],
    ["train", "--frame-stack", "1000000"],
    ["train", "--env", "catch:rows=1000000,columns=1000000"],
    ["discover", "--value-hidden", "0"],
    ["discover", "--value-discount", "7"],
    ["discover", "--bins", "4"],
    ["compare"],
    ["compare", "--rules", "ppo", "--envs", "catch", "--learning-rates", "nan"],
    ["compare", "--rules", "ppo", "--envs", "catch", "--seeds", "-1"],
    ["compare", "--suite", "nowhere.toml"],
    ["evaluate", "."],
    ["evaluate", "nowhere", "--seed", "99999999999999999999999"],
    ["evaluate", "nowhere", "--episodes", "-1"],
    ["envs", "check", "catch", "--seed", "99999999999999999999999"],
    ["envs", "check", "catch", "--steps", "-1"],
    ["envs", "check", "a" * 5000],
    ["rules", "show", "nothing"],
    ["rules", "export", "discorl5", ""],
    ["rules", "export", "discorl5", "."],
    ["rules", "export", "discorl5", "no/such/folder.npz"],
    ["rules", "check", "ppo", "--seed", "-1"],
    ["rules", "import", "nowhere.npz", "--name", "a/b"],
    ["rules", "fetch", "disco103", "--address", "ftp://x"],
    ["report", "nowhere"],
    ["verify", "nowhere"],
    ["nothing"],
    ["rules", "nothing"],
    ["train", "--config", "/dev/null"],
    ["train", "--eval-episodes", "2000000000", "--eval-every", "1"],
    ["train", "--track", "nothing"],
    ["train", "--track", "wandb:nonsense"],
    ["train", "--env", "windy_catch:wind=" + "9" * 400],
    ["sweep"],
    ["sweep", "--over", "learning-rate"],
    ["sweep", "--over", "learning-rate=nan,1"],
    ["sweep", "--over", "learning-rate=1e-3,0.001"],
    ["sweep", "--over", "learning-rate=1..2", "--trials", "-1"],
    ["sweep", "--over", "learning-rate=1..2", "--trials", "2", "--seed", "-1"],
    ["sweep", "--over", "learning-rate=1,2", "--settings", "learning-rate=3"],
    ["sweep", "--over", "learning-rate=1,2", "--executor", "processes:0"],
    ["sweep", "--over", "learning-rate=1,2", "--executor", "processes:1000000"],
    ["sweep", "--over", "learning-rate=1,2", "--executor", "nothing"],
    ["sweep", "--over", "nothing=1,2"],
    ["sweep", "--resume", "nowhere"],
    ["play", "nowhere"],
    ["play", ".", "--fps", "nan"],
    ["play", ".", "--max-steps", "0"],
    ["inspect", "nothing"],
    ["inspect", "ppo", "--agents", "7"],
    ["inspect", "ppo", "--only", "nothing"],
    ["inspect", "ppo", "--seeds", "0"],
    ["launch", "-n", "1000000", "discover", "--out", "x"],
    ["launch", "-n", "2", "discover"],
    ["launch", "-n", "2", "discover", "--out", "x", "--process", "1"],
    ["launch", "-n", "2", "train"],
    ["discover", "--coordinator", "nowhere", "--processes", "2", "--process", "0"],
    ["rules", "push", "discorl5", "nowhere"],
    ["rules", "pull", "hf:a/b", "--name", "../x"],
    ["evaluate", "nowhere", "--mp4", "/dev/null"],
)


def numeric_settings(kind: type) -> Iterator[tuple[str, type]]:
    """Names of all numbers among the settings of a configuration, and their types."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        part = settings.parts(kind).get(field.name)
        if part is not None:
            yield from numeric_settings(part)
        elif hints[field.name] in (int, float):
            yield field.name, hints[field.name]


def command_lines(campaign: Campaign, generator: random.Random, count: int) -> None:
    """Options with bad values, and whatever else somebody may type."""
    bad = [
        ([command, f"--{name.replace('_', '-')}={value}"], f"refused: {name}")
        for command, config in COMMANDS.items()
        for name, kind in numeric_settings(config)
        for value in NUMBERS[kind]
    ]
    texts = [
        ([command, f"--{name}", text], "refused")
        for command, names in {
            "train": ("rule", "env", "preset", "config"),
            "discover": ("rule", "start", "preset", "config"),
        }.items()
        for name in names
        for text in TEXTS
    ]
    specs = [(["envs", spec.format(word)], "anything") for spec in SPECS for word in WORDS]
    others = [(list(arguments), "refused") for arguments in OTHERS]
    for cases, share in ((others, 0.07), (texts, 0.1), (specs, 0.15), (bad, 0.68)):
        generator.shuffle(cases)
        for arguments, expect in _some(cases, round(count * share)):
            campaign.command("command lines", arguments, expect)


def _some(cases: list[Any], count: int) -> list[Any]:
    return (cases * (1 + count // len(cases)))[:count]


def toml_files(campaign: Campaign, generator: random.Random, count: int) -> None:
    """Files of settings and suites with wrong types, wrong names and what is no TOML at all."""
    for _ in range(count):
        folder = campaign.new_folder()
        command = generator.choice(["train", "discover", "compare"])
        text, expect = _toml(generator, command)
        (folder / "a.toml").write_bytes(text)
        option = "--suite" if command == "compare" else "--config"
        campaign.command("TOML files", [command, option, "a.toml"], expect, cwd=folder)


def _toml(generator: random.Random, command: str) -> tuple[bytes, str]:
    what = generator.randrange(6)
    if what == 0:
        return generator.randbytes(50) + b"\xff", "refused: a.toml"
    if what == 1:
        return b"a = " + b"[" * 20_000, "refused: a.toml"
    if what == 2:
        return b"nothing_of_the_kind = 3\n", "refused: nothing_of_the_kind"
    value = generator.choice(TOML_VALUES)
    if command == "compare":
        name = generator.choice(
            [
                "steps",
                "seeds",
                "seed",
                "keep_checkpoints",
                "tune",
                "learning_rates",
                "rules",
                "environments",
                "settings",
                "name",
                "seeds_at_once",
            ]
        )
        good = 'rules = ["ppo"]\nenvironments = ["catch:rows=1"]\n'  # refused in any case
        lines = [line for line in good.splitlines() if not line.startswith(f"{name} ")]
        return "\n".join([*lines, f"{name} = {value}"]).encode(), "refused"
    config = COMMANDS[command]
    name, kind = generator.choice(list(numeric_settings(config)))
    if kind is float and value == BIG:  # which a float can hold
        value = "1e39"
    return f"{name} = {value}\n".encode(), f"refused: {name}"
