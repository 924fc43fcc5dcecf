"""Trackers: what they receive, and what Weights & Biases keeps of it."""

import inspect
import json
import struct
import sys

import numpy as np
import pytest
from run_samples import child, finish

import discorl
from discorl.runs import Run
from discorl.runs.trackers import Subject
from discorl.runs.tracking import Trackio, following, make
from discorl.types import UserError

CONFIG = {"rule": "ppo", "seed": 3, "seeds": 2}


def rows(update, loss=0.5):
    place = {"update": update, "global_step": 10 * update}
    return [place | {"seed": 3 + i, "losses/total": loss + i} for i in (0, 1)]


class Notes(discorl.Tracker):
    """Writes down every call."""

    def __init__(self):
        self.calls = []

    def start(self, subject):
        self.calls.append(("start", subject))

    def log(self, rows, table="metrics"):
        self.calls.append((table, rows))

    def close(self):
        self.calls.append(("close", None))


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", CONFIG) as made:
        yield made


def test_a_tracker_receives_what_the_run_directory_receives(run):
    notes, seen = Notes(), []
    with following(make([notes, seen.extend]), run, CONFIG, "ppo", (3, 4)) as log:
        log(rows(1))
        log([{"update": 1, "score": 0.25}], "evaluation")
    assert [name for name, _ in notes.calls] == ["start", "metrics", "evaluation", "close"]
    assert notes.calls[1][1] == seen == rows(1)  # a function receives the main table only
    assert run.metrics()["losses/total"].tolist() == [0.5, 1.5]
    assert run.metrics("evaluation")["score"].tolist() == [0.25]
    subject = notes.calls[0][1]
    assert (subject.name, subject.seeds, subject.folder) == ("run", (3, 4), run.path)


def test_the_identity_of_a_run_is_its_own_and_survives_a_resume(run, tmp_path):
    run.close()

    def identity(path):
        notes = Notes()
        with Run.open(path) as opened, following([notes], opened, CONFIG, "ppo"):
            return notes.calls[0][1].identity

    Run.create(tmp_path / "other", CONFIG).close()
    assert identity(run.path) == identity(run.path) != identity(tmp_path / "other")


def test_trackers_close_when_training_fails(run):
    notes = Notes()
    with pytest.raises(RuntimeError), following([notes], run, CONFIG, "ppo"):
        raise RuntimeError
    assert notes.calls[-1] == ("close", None)


@pytest.mark.parametrize(
    ("track", "words"),
    [
        ("wandbb", r"no tracker 'wandbb'; did you mean 'wandb'"),
        ("wandb:mine", r"track is 'wandb:mine'; expected .*, such as wandb:project=mine"),
        (3, r"track is 3; expected one of wandb, trackio, a function of rows or a Tracker"),
    ],
)
def test_other_trackers_are_refused_before_a_run_is_made(track, words, tmp_path):
    with pytest.raises(UserError, match=words):
        discorl.train(env="catch", updates=1, track=[track], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match=r'pip install "discorl\[trackio\]"'):
        make("trackio")


# --- a service ------------------------------------------------------------------------------------


class FakeTrackio:
    """The part of trackio's interface that is used, as of version 0.43."""

    def __init__(self):
        self.logged = {}

    def init(
        self, project, name=None, group=None, space_id=None, config=None, resume="never", embed=True
    ):
        assert (project, group, resume, embed) == ("discorl", "run", "allow", False)
        assert config["seed"] in (3, 4)
        outer = self.logged.setdefault(name, [])

        class Run:
            def log(self, metrics, step=None):
                if step == 3:
                    raise ConnectionError("gone")
                outer.append((step, metrics))

            def finish(self):
                outer.append("finished")

        return Run()


def test_each_seed_is_a_run_and_a_lost_connection_ends_the_tracking_alone(run, monkeypatch, capsys):
    service = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", service)
    monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
    with following(make("trackio"), run, CONFIG, "ppo", (3, 4)) as log:
        log(rows(1))
        log([{"update": 1, "seed": 4, "agent": 7, "score": 0.5}], "evaluation")
        log(rows(2, loss=np.nan))
        log(rows(3))
        log(rows(4))
    (first, second) = service.logged
    assert first.startswith("run-")
    assert first.removesuffix("-seed3") == second.removesuffix("-seed4")
    assert service.logged[first] == [
        (1, {"global_step": 10.0, "losses/total": 0.5}),
        (2, {"global_step": 20.0}),
    ]
    assert service.logged[second][1] == (1, {"evaluation/agent_7/score": 0.5})
    assert capsys.readouterr().err.count("trackio failed and is no longer used: gone") == 1
    assert run.metrics()["update"].max() == 4


def test_trackio_takes_the_arguments_it_is_given():
    trackio = pytest.importorskip("trackio")
    subject = Subject("run", "abc", CONFIG, (3,), None)
    given = {"project", "group", "config", "resume", *Trackio({})._arguments(subject, "")}
    assert given <= set(inspect.signature(trackio.init).parameters)


# --- Weights & Biases -----------------------------------------------------------------------------


def records(file):
    """The records of a wandb file: LevelDB's log format, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, pieces = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        pieces += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(pieces)
            pieces = b""
            yield record


def history(file):
    """The rows that were logged, without wandb's own columns but the step."""
    found = []
    for record in records(file):
        if record.HasField("history"):
            items = record.history.item
            row = {item.key or "/".join(item.nested_key): item.value_json for item in items}
            row = {name: json.loads(value) for name, value in row.items()}
            found.append({n: x for n, x in row.items() if n == "_step" or not n.startswith("_")})
    return found


def offline_file(folder, ending):
    (file,) = folder.glob(f"wandb/offline-run-*/run-*{ending}.wandb")
    return file


WANDB = """
import sys, types
from pathlib import Path
import wandb
from discorl.runs import Run
from discorl.runs.tracking import following, make
folder = Path(sys.argv[1])
sys.path.insert(0, sys.argv[2])
from test_tracking import CONFIG, rows
with Run.create(folder / "run", CONFIG) as run:
    trackers = make("wandb:mode=offline,project=mine")
    with following(trackers, run, CONFIG, "ppo", (3, 4)) as log:
        log(rows(1))
        log(rows(2))
        log([{"update": 2, "seed": 4, "global_step": 20, "score": 0.75}], "evaluation")

sys.modules["tensorboard"] = types.ModuleType("tensorboard")  # wandb asks whether it is installed
theirs = wandb.init(mode="offline", dir=folder, sync_tensorboard=True)
with Run.create(folder / "synced", CONFIG) as run:
    for update in (1, 2, 3):
        run.log(rows(update)[:1])
theirs.finish()
"""


@pytest.fixture(scope="module")
def offline(tmp_path_factory, request):
    """A folder with a run that wandb follows offline, and one whose events it reads by itself."""
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    finish(child(WANDB, folder, request.path.parent))
    return folder


def test_wandb_offline_has_a_run_per_seed_with_the_same_numbers(offline):
    folder = offline / "run"
    expected = {"global_step": 10, "losses/total": 1.5, "_step": 1}
    last = {"global_step": 20, "losses/total": 1.5, "evaluation/score": 0.75, "_step": 2}
    assert history(offline_file(folder, "-seed4")) == [expected, last]
    first = offline_file(folder, "-seed3")
    assert [row["losses/total"] for row in history(first)] == [0.5, 0.5]
    (described,) = (record.run for record in records(first) if record.HasField("run"))
    assert (described.project, described.run_group) == ("mine", "run")
    assert described.display_name == "run-seed3"
    config = {x.key: json.loads(x.value_json) for x in described.config.update}
    assert config["rule"] == "ppo"
    assert config["seed"] == 3


def test_wandb_syncs_our_tensorboard_events(offline):
    logged = [row for row in history(offline_file(offline, "")) if "losses/total" in row]
    assert [(row["global_step"], row["losses/total"]) for row in logged] == [
        (10, 0.5),
        (20, 0.5),
        (30, 0.5),
    ]
