"""The command line: results for programs, and messages instead of stack traces."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from commands import run
from PIL import Image

from discorl.cli import train
from discorl.runs import Run

TRAIN = [
    "--rule=actor_critic",
    "--env=catch:rows=4,columns=5",
    "--num-envs=2",
    "--unroll=3",
    "--batch=2",
    "--hidden=4",
    "--updates=3",
]
ROWS = 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of three updates, made by the command itself, and what it printed."""
    folder = tmp_path_factory.mktemp("cli")
    command = [sys.executable, "-c", "from discorl.cli import main; main()", "train", *TRAIN]
    done = subprocess.run(
        [*command, "--seeds", "2", "--out", "run", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder / "run", done


# --- results --------------------------------------------------------------------------------------


def test_train_prints_json_and_nothing_else_without_a_terminal(trained):
    path, done = trained
    data = json.loads(done.stdout)
    assert data["updates"] == 3
    assert data["seeds"] == [0, 1]
    assert len(data["recent_return"]) == 2
    # Catch of five columns: random play catches one in five and misses the others.
    for value, score in zip(data["recent_return"], data["recent_score"], strict=True):
        assert score == pytest.approx((value + 0.6) / 1.6)
    assert data["steps"] == 3 * 2 * 3
    assert done.stderr == ""
    for name in ("config.json", "metrics.csv", "curve.png", "checkpoints"):
        assert (path / name).exists(), name


def test_train_in_words_and_in_a_directory_of_its_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        status, out, err = run(capsys, "train", *TRAIN[:-1], "--updates=1")
        assert (status, err) == (0, "")
        assert "1 updates, 6 environment steps" in out
        assert re.search(r"^as a score: .* \(0: random, 1: optimal\)$", out, re.MULTILINE)
        directory = f"runs/actor_critic-catch-rows-4-columns-5-{number}"
        assert f"next: discorl evaluate {directory}" in out
        assert (tmp_path / directory / "metrics.csv").exists()


def test_a_directory_is_named_after_the_rule_as_given(tmp_path):
    (tmp_path / "ppo.toml").write_text('rule = "ppo:epochs=2"')
    config = ["--config", str(tmp_path / "ppo.toml")]
    assert train._rule_given([*config, "--seed=3"], "discorl train") == "ppo:epochs=2"
    assert train._rule_given([*config, "--rule", "muesli"], "discorl train") == "muesli"
    assert train._rule_given([], "discorl train") == "lean2"


def test_evaluate(capsys, trained, tmp_path):
    path, _ = trained
    film = tmp_path / "film.gif"
    status, out, err = run(
        capsys, "evaluate", path, "--episodes", 7, "--gif", film, "--seed", 3, "--json"
    )
    assert (status, err) == (0, "")
    data = json.loads(out)
    assert data["episodes"] == 14
    assert data["update"] == 3
    assert -1 <= data["low"] <= data["mean_return"] <= data["high"] <= 1
    assert data["mean_length"] == ROWS - 1
    assert data["unfinished"] == 0
    for name, value in (("score", "mean_return"), ("score_low", "low"), ("score_high", "high")):
        assert data[name] == pytest.approx((data[value] + 0.6) / 1.6)
    with Image.open(film) as picture:
        assert picture.format == "GIF"
        assert picture.is_animated
        # Equal pictures in a row become one, so that an agent that stands still has fewer.
        assert picture.n_frames == ROWS
        assert picture.info["loop"] == 0
        for frame in range(picture.n_frames):
            picture.seek(frame)
            assert picture.convert("RGB").getbbox() is not None


def test_play(capsys, trained):
    path, _ = trained
    status, out, _ = run(capsys, "play", path, "--seed", 3)
    assert (status, out) == (0, f"an episode of {ROWS} frames\n")  # off a terminal, no pictures
    status, _, err = run(capsys, "play", path, "--max-steps", 0)
    assert (status, "max_steps is 0; expected" in err) == (2, True)


def test_a_film_that_cannot_be_written_costs_no_result(capsys, trained, tmp_path):
    path, _ = trained
    (tmp_path / "file").touch()
    film = tmp_path / "file" / "film.gif"
    status, out, _ = run(capsys, "evaluate", path, "--episodes", 2, "--gif", film, "--json")
    data = json.loads(out)
    assert (status, data["episodes"], data["gif"]) == (0, 4, None)
    assert str(film) in data["no_film"]
    status, out, _ = run(capsys, "evaluate", path, "--episodes", 2, "--gif", film)
    assert f"no film: {data['no_film']}" in out.splitlines()


def test_one_film_that_cannot_be_written_does_not_cost_the_other(capsys, trained, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    path, _ = trained
    (tmp_path / "file").touch()
    gif, mp4 = tmp_path / "film.gif", tmp_path / "file" / "film.mp4"
    films = ["--gif", gif, "--mp4", mp4]
    status, out, _ = run(capsys, "evaluate", path, "--episodes", 2, *films, "--json")
    data = json.loads(out)
    assert (status, data["gif"], data["mp4"]) == (0, str(gif), None)
    assert gif.exists()
    assert str(mp4) in data["no_film"]
    _, out, _ = run(capsys, "evaluate", path, "--episodes", 2, *films)
    assert {f"an episode: {gif}", f"no other film: {data['no_film']}"} < set(out.splitlines())


@pytest.mark.parametrize(("option", "ending"), [("gif", "mp4"), ("mp4", "gif")])
def test_the_ending_of_a_film_must_be_that_of_its_option(capsys, trained, option, ending):
    path, _ = trained
    status, _, err = run(capsys, "evaluate", path, f"--{option}", f"film.{ending}")
    message = f"{option} is film.{ending}; expected a file ending in .{option}"
    assert (status, err) == (2, f"discorl: {message}\n")


def test_evaluate_in_words(capsys, trained):
    path, _ = trained
    status, out, _ = run(capsys, "evaluate", path, "--episodes", 5, "--no-gif", "--greedy")
    assert status == 0
    assert "mean return" in out
    assert re.search(r"^score -?\d\.\d{3}, \[.*\] \(0: random, 1: optimal\)$", out, re.MULTILINE)
    assert "seed 1:" in out
    assert not (path / "episode.gif").exists()


def test_rules_list_and_show(capsys):
    status, out, _ = run(capsys, "rules", "list", "--json")
    listed = {row["name"]: row["kind"] for row in json.loads(out)["rules"]}
    assert status == 0
    assert listed["ppo"] == "hand-designed"
    assert listed["disco103"] == "learned"
    status, out, _ = run(capsys, "rules", "show", "ppo", "--json")
    shown = json.loads(out)
    assert (status, shown["kind"]) == (0, "hand-designed")
    assert (shown["settings"]["clip"], shown["recipe"]["learning_rate"]) == (0.2, 4e-4)
    lines = run(capsys, "rules", "show", "ppo")[1].splitlines()
    assert "settings, as in `ppo:NAME=VALUE`, and their defaults:" in lines
    assert ["clip", "0.2"] in [line.split() for line in lines]


def test_rules_import_export_and_show_a_file(capsys, golden, tmp_path, monkeypatch):
    monkeypatch.setenv("DISCORL_CACHE", str(tmp_path / "cache"))
    source = golden / "meta_network.npz"
    status, out, _ = run(capsys, "rules", "import", source, "--name", "mine", "--json")
    assert (status, json.loads(out)["name"]) == (0, "mine")
    status, out, _ = run(capsys, "rules", "show", "mine", "--json")
    shown = json.loads(out)
    assert (status, shown["kind"]) == (0, "learned")
    status, out, _ = run(capsys, "rules", "export", "mine", tmp_path / "out.npz", "--json")
    exported = json.loads(out)
    assert (status, exported["path"]) == (0, str(tmp_path / "out.npz"))
    _, out, _ = run(capsys, "rules", "show", tmp_path / "out.npz", "--json")
    assert json.loads(out)["sizes"] == shown["sizes"]


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tran"], "no command 'tran'; did you mean 'train'?"),
        (["rules", "lst"], "no command of `discorl rules` 'lst'; did you mean 'list'?"),
        (["rules", "show", "disco13"], "disco13"),
        (["train", "--rule", "pop"], "no rule 'pop'; did you mean 'ppo'?"),
        (["train", "--rule", "ppo:clip=high"], "clip=high is not of the type float"),
        (["train", "--rule", "missing.npz"], "missing.npz"),
        (["train", "--env", "cart"], "no environment 'cart'"),
        (["train", "--env", "dmlab:rooms_watermaze"], "has no package that can be installed"),
        (["train", "--preset", "pong"], "no preset 'pong'"),
        (["train", "--batch", "0"], "batch is 0; expected at least 1"),
        (["train", "--resume", "nowhere"], "nowhere"),
        (["train", "--resume", "nowhere", "--seed", "3"], "takes no others, got --seed 3"),
        (["train", "--resume=nowhere", "--seed=7"], "takes no others, got --seed=7"),
        (["train", "--resume=nowhere", "--seed=0"], "takes no others, got --seed=0"),
        (["train", "--rule=ppo", "--resume=nowhere"], "run `discorl train --resume nowhere`"),
        (["discover", "--resume=nowhere", "--seed=7"], "takes no others, got --seed=7"),
        (["discover", "--resume=nowhere"], "nowhere is not a run directory"),
        (["evaluate", "nowhere"], "nowhere"),
        (["verify", "nowhere"], "nowhere: there is no such directory"),
    ],
)
def test_mistakes_get_a_message_and_no_trace(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("discorl: ")
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [], "a mistake leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["train", "--learning-rte", "1"], "--learning-rate"),
        (["train", "--batch", "many"], "--batch"),
        (["evaluate"], "required"),
        (["train", "--rule"], "usage: discorl train"),
        (["discover", "--preset"], "usage: discorl discover"),
    ],
)
def test_unknown_and_unreadable_options(capsys, tmp_path, monkeypatch, arguments, mentions):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert mentions in out + err
    assert "Traceback" not in out + err


def test_evaluate_what_is_no_run(capsys, tmp_path):
    (tmp_path / "folder").mkdir()
    status, _, err = run(capsys, "evaluate", tmp_path / "folder")
    assert status == 2
    assert "folder" in err


def test_evaluate_a_run_without_a_checkpoint(capsys, trained, tmp_path):
    path, _ = trained
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    for checkpoint in (copy / "checkpoints").iterdir():
        checkpoint.unlink()
    status, _, err = run(capsys, "evaluate", copy)
    assert status == 2
    assert "has no checkpoint yet" in err
    status, _, err = run(capsys, "evaluate", path, "--episodes", 0)
    assert (status, "episodes is 0; expected from 1 to" in err) == (2, True)


def test_train_into_a_directory_that_exists(capsys, trained):
    path, _ = trained
    before = (path / "metrics.csv").read_bytes()
    status, _, err = run(capsys, "train", *TRAIN, "--out", path)
    assert status == 2
    assert str(path) in err
    assert (path / "metrics.csv").read_bytes() == before


def test_resume_a_run_that_is_being_written(capsys, trained):
    path, _ = trained
    with Run.open(path):
        status, _, err = run(capsys, "train", "--resume", path)
    assert status == 2
    assert "another process is writing the run" in err


def test_a_reader_that_leaves_early():
    """As in `discorl ... | head -1`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from discorl.cli import main; main()", "rules", "list"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=600)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version", "--json"]])
def test_an_overview_does_not_wait_for_jax(arguments):
    check = "import atexit, sys; atexit.register(lambda: print('jax' in sys.modules)); "
    command = [sys.executable, "-c", check + "from discorl.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == (0 if arguments else 2)
    assert done.stdout.startswith("discorl " if "--version" in arguments else "usage: discorl ")
    assert done.stdout.endswith("\nFalse\n")


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        (["envs"], 80),
        (["envs"], 120),
        (["rules", "list"], 80),
        (["rules", "list"], 120),
        (["rules", "show", "discorl5"], 80),
    ],
)
def test_tables_fit_the_terminal(monkeypatch, capsys, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, narrow, _ = run(capsys, *command)
    assert max(map(len, narrow.splitlines())) <= columns
    monkeypatch.delenv("COLUMNS")
    _, whole, _ = run(capsys, *command)
    assert max(map(len, whole.splitlines())) > columns  # in a file lines stay whole

    def letters(text):
        return sorted(text.replace(" ", "").replace("\n", ""))

    assert letters(narrow) == letters(whole)  # wrapped, not cut
