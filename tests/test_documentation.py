"""Every snippet of the documentation works: Python is run, commands are parsed, links lead on."""

import functools
import importlib
import json
import re
import shutil
import sys

import documents
import pytest
from documents import PAGES, ROOT

import discorl
from discorl import cli
from discorl.cli import commands, inspect, running
from discorl.reports.inspection import ANALYSES
from discorl.rules.files import library

REPOSITORY = "https://github.com/discorl/discorl"
LONG = {  # pages whose snippets are left to the long tests, for the time that they take
    "docs/how-to/action-masks.md",
    "docs/how-to/checkpoints.md",
    "docs/how-to/inspecting.md",
    "docs/how-to/tracking.md",
    "docs/how-to/truncation.md",
    "docs/tutorial/compare.md",
    "docs/tutorial/discover.md",
    "docs/tutorial/inspect.md",
    "docs/tutorial/own-rule.md",
}
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder, from which modules can be imported as from a reader's."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


# --- Python ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if page in LONG else [])
        for page in PAGES
        if documents.scripts(page)
    ],
)
def test_snippets_run(page, folder):
    for name, text in documents.files(page).items():
        (folder / name).write_text(text)
    exec(compile(documents.scripts(page), page, "exec"), {"__name__": "__main__"})


FEWER = {"updates": 10, "meta_steps": 2, "evaluate_updates": 10, "agents": 4, "longest_life": 60}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook, folder, monkeypatch):
    """Every cell, with fewer updates than a reader makes."""
    for name in ("train", "discover"):
        monkeypatch.setattr(discorl, name, with_fewer_updates(getattr(discorl, name)))
    run(notebook)


@pytest.mark.long
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_whole_notebooks_run(notebook, folder):
    run(notebook)


def with_fewer_updates(function):
    def call(**settings):
        return function(**settings | {name: FEWER[name] for name in FEWER if name in settings})

    return call


def run(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 3
    exec(compile("\n".join(code), notebook.name, "exec"), {"__name__": "__main__"})


# --- commands -------------------------------------------------------------------------------------


class Parsed(Exception):
    """A command got as far as to do its work."""


def stop(*_, **__):
    raise Parsed


@pytest.fixture
def parsing_only(monkeypatch):
    """Commands check what they are given and do nothing."""
    working = {"train": "train", "discover": "discover", "compare": "compare", "sweep": "compare"}
    for command, name in working.items():
        monkeypatch.setattr(importlib.import_module(f"discorl.cli.{command}"), name, stop)
    monkeypatch.setattr("discorl.comparison.search._optuna", lambda: None)  # an extra
    launch = importlib.import_module("discorl.cli.launch")
    monkeypatch.setattr(launch, "supervise", lambda command, *_: running.run(list(command[3:])))

    def parse(function, arguments, program):
        if function.__module__.rpartition(".")[2] in working:  # it checks its settings, then stops
            return call(function, arguments, program)
        idle = functools.wraps(function)(lambda *_, **__: stop())
        return call(idle, arguments, program)

    call = commands.call
    monkeypatch.setattr(commands, "call", parse)


def check(words, folder):
    """Raises if a command cannot be what was meant."""
    for path in re.findall(r"runs/\S+?\.npz", " ".join(words)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library.find("discorl5"), folder / path)
    for earlier in re.findall(r"--config (runs/\S+)", " ".join(words)):
        (folder / earlier).mkdir(parents=True, exist_ok=True)
        described = {"kind": words[1], "config": discorl.configure().as_dict()}
        (folder / earlier / "config.json").write_text(json.dumps(described))
    if words[0] == "discorl":
        try:
            (running.run if words[1] in cli.COMMANDS else cli.main)(words[1:])
        except Parsed:
            return
        except SystemExit as exit_:
            assert exit_.code in (0, None), words
    elif words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), words
    elif words[0].endswith("python") and words[1].endswith(".py"):
        assert (ROOT / words[1]).exists() or (folder / words[1]).exists(), words


@pytest.mark.parametrize("page", [page for page in PAGES if any(documents.commands(page))])
def test_commands_are_understood(page, folder, parsing_only):
    in_tutorial = [other for other in PAGES if other.startswith("docs/tutorial/")]
    if page not in in_tutorial:  # whose reader has nothing but the files that its pages show
        for source in ROOT.glob("examples/*.*"):
            (folder / source.name).write_bytes(source.read_bytes())
    for source in ROOT.glob("docs/records/*/*.toml"):
        file = folder / source.relative_to(ROOT)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(source.read_bytes())
    for shown in in_tutorial if page in in_tutorial else [page]:
        for name, text in documents.files(shown).items():
            (folder / name).write_text(text)
    for words in documents.commands(page):
        check(words, folder)


def test_commands_that_are_wrong_are_found(folder, parsing_only, capsys):
    for command in ("discorl trian", "discorl train --lerning-rate 1", "discorl evaluate"):
        with pytest.raises((SystemExit, discorl.UserError, AssertionError)):
            check(command.split(), folder)
    with pytest.raises(discorl.UserError, match="preset"):
        check(["discorl", "train", "--preset", "tiny"], folder)
    with pytest.raises(AssertionError):
        check(["make", "coffee"], folder)
    assert list(documents._split("A=1 discorl envs | head  # all\ncd x && make \\\n  test")) == [
        ["discorl", "envs"],
        ["head"],
        ["cd", "x"],
        ["make", "test"],
    ]


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_links_into_the_repository_lead_somewhere(page):
    """Links from page to page are checked by `make docs`."""
    text = documents.text_of(page)
    raw = REPOSITORY.replace("github.com", "raw.githubusercontent.com")
    links = re.findall(rf"\]\((?:{REPOSITORY}/(?:blob|tree)|{raw})/main/([^)]+)\)", text)
    if not page.startswith("docs/"):
        links += re.findall(r"\]\((?!http|#)([^)]+)\)", text)
    for link in links:
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
            known = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
            assert anchor in known, link


def test_no_page_takes_the_address_of_another():
    """The site has `records/minatar.md` at `records/minatar/index.html`."""
    for page in (ROOT / "docs").rglob("*.md"):
        folder = page.parent if page.stem == "index" else page.with_suffix("")
        assert not (folder / "index.html").exists(), page


def test_the_readme_has_no_relative_links():
    """A package index shows it, too, and knows no other files."""
    assert re.findall(r"\]\((?!http|#)([^)]+)\)", documents.text_of("README.md")) == []


def test_the_reference_names_every_command():
    text = documents.text_of("docs/reference/cli.md")
    for name, (module, _) in cli.COMMANDS.items():
        for action in importlib.import_module(module).COMMANDS:
            assert f"`discorl {name} {action}".rstrip() in text


def test_a_star_import_brings_the_public_names():
    names: dict = {}
    exec("from discorl import *", names)
    assert set(names) - {"__builtins__"} == set(discorl.__all__)
    assert {"train", "PRESETS", "networks"} <= set(discorl.__all__)


def test_help_lists_every_analysis():
    words = " ".join((inspect.inspect_command.__doc__ or "").split())
    assert f"analyses to run: {', '.join(ANALYSES)};" in words
