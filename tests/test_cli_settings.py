"""The command line: help, and settings as the command and Python understand them."""

import itertools

import pytest
from commands import run

import discorl
from discorl import cli
from discorl.cli import tables
from discorl.training.config import configure

# --- help -----------------------------------------------------------------------------------------


def test_overview(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    for command in cli.COMMANDS:
        assert command in out
    without = run(capsys)
    assert without[0] == 2
    assert without[1] == out


@pytest.mark.parametrize("command", sorted(cli.COMMANDS.keys() - {"rules"}))
def test_help_shows_types_as_people_write_them(command, capsys):
    out = run(capsys, command, "--help")[1]
    assert "--json" in out
    assert "None" not in out
    assert "(default: )" not in out
    assert "--no-no" not in out


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"discorl {discorl.__version__}\n")


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        (("train",), ["--rule", "--learning-rate", "--resume", "Clip of each element"]),
        (("evaluate",), ["--episodes", "--greedy", "--gif"]),
        (("verify",), ["--rule", "golden"]),
        (("rules",), ["list", "show", "fetch", "import", "export"]),
        (("rules", "show"), ["--rules-path"]),
        (("rules", "import"), ["--name", "--force"]),
    ],
)
def test_every_command_has_help(capsys, command, mentions):
    status, out, _ = run(capsys, *command, "--help")
    assert status == 0
    for word in mentions:
        assert word in out


def test_help_breaks_lines_only_where_they_end(capsys, monkeypatch):
    """Docstrings of two lines are filled anew: no line ends where the next word would fit."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip("│╭╮╰╯─") for line in run(capsys, "train", "--help")[1].splitlines()]
    width = max(map(len, lines)) - 1  # within the frame's margin
    checked = 0
    for line, below in itertools.pairwise(lines):
        text = below.lstrip()
        indent = len(below) - len(text)
        if indent > 10 and text and len(line) - len(line.lstrip()) == indent:
            checked += 1
            assert len(line.rstrip()) + 1 + len(text.split()[0]) > width, f"{line}\n{below}"
    assert checked > 20


def test_defaults_in_the_help_follow_the_rule(capsys):
    _, out, _ = run(capsys, "train", "--rule", "ppo", "--help")
    assert "(default: 32)" in out, "the environments of PPO's own recipe"


def test_help_says_no_default_where_words_say_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    _, out, _ = run(capsys, "train", "--rule", "lean2", "--help")
    words = " ".join(out.replace("│", " ").split())
    assert "random and optimal play are known. --frame-stack" in words
    _, out, _ = run(capsys, "train", "--rule", "muesli", "--preset", "minatar", "--help")
    words = " ".join(out.replace("│", " ").split())
    assert "play are known. (default: 30.0) --frame-stack" in words


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_envs": 16, "batch": 16},
        {"num_envs": 16, "batch": 16, "updates": 7},
        {"unroll": 7, "updates": 500},
        {"rule": "ppo", "env": "grid:size=3", "hidden": (4, 5)},
        {"env": "catch", "preset": "crafter", "num_envs": 30, "batch": 30},
    ],
)
def test_the_command_and_python_make_the_same_of_the_same_settings(settings, monkeypatch):
    class Stop(BaseException):
        pass

    def stop(config, **_):
        raise Stop(config)

    monkeypatch.setattr("discorl.cli.train.train", stop)
    arguments = ["train"]
    for name, value in settings.items():
        arguments += [f"--{name}", *map(str, value if isinstance(value, tuple) else [value])]
    with pytest.raises(Stop) as stopped:
        cli.main(arguments)
    assert stopped.value.args == (configure(**settings),)


def test_a_large_preset_that_nobody_asked_for_is_pointed_out(capsys, monkeypatch):
    class Stop(BaseException):
        pass

    def stop(config, **_):
        raise Stop

    monkeypatch.setattr("discorl.cli.train.train", stop)
    for arguments, told in (
        (["--env", "sokoban:toy"], "for a few CPU cores: --preset sokoban_small"),
        (["--env", "atari:Pong"], "for a few CPU cores: --preset atari_small"),
        (["--env", "sokoban:toy", "--preset", "sokoban"], ""),
        (["--env", "catch"], ""),
    ):
        with pytest.raises(Stop):
            cli.main(["train", *arguments])
        err = capsys.readouterr().err
        assert told in err
        assert len(err.splitlines()) == bool(told)


def test_more_environments_need_fewer_updates():
    few = configure("actor_critic", num_envs=8, batch=8)
    assert few.updates == 2 * configure("actor_critic", num_envs=16, batch=16).updates


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("evaluate", "discorl evaluate [-h] [OPTIONS] RUN"),
        ("envs", "discorl envs [-h] [NAME]"),
        ("report", "discorl report [-h] RUN [RUN ...] [--out PATH]"),
    ],
)
def test_usage_names_positional_arguments(capsys, command, usage):
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert f"usage: {usage}\n" in out
    assert "(default: )" not in out


def test_paragraphs_fit_the_terminal(monkeypatch):
    text = "one two three four --an-option five"
    monkeypatch.setenv("COLUMNS", "16")
    assert tables.paragraph(text) == "one two three\nfour --an-option\nfive"
    assert tables.paragraph("a: 1; b: 2; c: 3", "  ") == "  a: 1; b: 2; c:\n    3"
    monkeypatch.delenv("COLUMNS")
    assert tables.paragraph(text) == text  # in a file lines stay whole
