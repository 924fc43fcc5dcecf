"""The examples run as they are printed, with few updates and with other rules."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from discorl import cli
from discorl.rules.files import weights

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_a_rule_of_ones_own_learns(monkeypatch, capsys):
    out = run("own_rule.py", monkeypatch, capsys)
    assert float(re.search(r"the updates: (-?\d\.\d\d)", out)[1]) > 0.9
    assert len((EXAMPLES / "own_rule.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize(
    "name",
    ["own_loop.py", "own_environment.py", "flax_network.py", "equinox_network.py", "use_agent.py"],
)
def test_example_runs(name, monkeypatch, capsys):
    out = run(name, monkeypatch, capsys, "--updates", "5")
    assert re.search(
        r"mean (reward|return|return of the last tenth of the updates:) -?\d\.\d\d", out
    )


def test_the_environment_is_used_by_its_name_as_documented(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_tasks.py").write_text((EXAMPLES / "own_environment.py").read_text())
    monkeypatch.chdir(tmp_path)
    documented = (EXAMPLES.parent / "docs" / "tutorial" / "own-environment.md").read_text()
    (command,) = re.findall(r"^discorl (envs check my_tasks:.*)$", documented, re.MULTILINE)
    with pytest.raises(SystemExit) as exit_:
        cli.main([*command.split(), "--steps", "20"])
    out = capsys.readouterr().out
    assert (exit_.value.code, out.splitlines()[-1]) == (
        0,
        "my_tasks:Corridor,length=9 keeps the contract",
    )


def test_no_example_is_left_out():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "own_loop.py",
        "own_environment.py",
        "own_rule.py",
        "flax_network.py",
        "equinox_network.py",
        "use_agent.py",
    }


def test_own_loop_is_short():
    """At most 15 lines of code between the imports and the report."""
    code = (EXAMPLES / "own_loop.py").read_text().split("import discorl\n")[1].splitlines()
    lines = [line for line in code if line.strip() and not line.strip().startswith("#")]
    assert len(lines) - 1 <= 15


def test_own_loop_learns(monkeypatch, capsys):
    out = run("own_loop.py", monkeypatch, capsys, "--updates", "300")
    assert float(re.search(r"mean reward (\d\.\d\d)", out)[1]) > 0.6


@pytest.mark.parametrize(
    "name", ["flax_network.py", pytest.param("equinox_network.py", marks=pytest.mark.long)]
)
def test_networks_of_other_libraries_with_a_discovered_rule(
    name, golden, tmp_path, monkeypatch, capsys
):
    rule = tmp_path / "tiny.npz"
    weights.save(rule, weights.load(golden / "meta_network.npz"), {"bins": 21})
    out = run(name, monkeypatch, capsys, "--updates", "2", "--rule", str(rule))
    assert "mean return" in out


@pytest.mark.long
@pytest.mark.parametrize("name", ["flax_network.py", "equinox_network.py"])
def test_networks_of_other_libraries_learn(name, monkeypatch, capsys):
    out = run(name, monkeypatch, capsys)
    assert float(re.search(r"the updates: (-?\d\.\d\d)", out)[1]) > 0.8


def test_the_recipes_name_files_and_tests_that_exist():
    root = EXAMPLES.parent
    text = (root / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`(tests/\w+\.py)::(\w+)`", text)
    assert len(named) == 9
    for path, test in named:
        assert f"\ndef {test}(" in (root / path).read_text(), test
    files = re.findall(r"`((?:discorl|docs|examples)/[\w./]+)`", text)
    assert len(files) >= 8
    assert [path for path in files if not (root / path).exists()] == []
