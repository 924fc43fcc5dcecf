"""Nothing of a run is lost, whatever fails: kills, damage, a full disk."""

import errno
import signal
import warnings

import numpy as np
import pytest
from run_samples import CONFIG, TEMPLATE, child, events, finish, logged, rows, state

from discorl.runs import Run, checkpoints
from discorl.runs.tables import MetricsFile
from discorl.types import UserError


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", CONFIG) as made:
        yield made


def test_newest_checkpoints_are_kept(run):
    for update in (5, 10, 15):
        run.save(update, state(update))
    assert run.checkpoint_updates() == [10, 15]
    files = sorted(file.name for file in (run.path / "checkpoints").iterdir())
    assert files == ["00000010.npz", "00000015.npz"]
    with pytest.raises(ValueError, match="older than checkpoint 15"):
        run.save(10, state(10))


def test_resume_cuts_metrics_back_to_the_checkpoint(run):
    run.log(rows(1, 2))
    run.save(2, state(2))
    run.log(rows(3, 4))
    run.close()
    with (run.path / "metrics.csv").open("a") as file:
        file.write("5,5")  # killed in the middle of a row
    with Run.open(run.path) as resumed:
        assert resumed.metrics()["update"].tolist() == [1, 2, 3, 4]
        update, restored = resumed.restore(TEMPLATE)
        assert update == 2
        np.testing.assert_array_equal(restored["w"], 2.0)
        assert resumed.metrics()["update"].tolist() == [1, 2]
        resumed.log(rows(3))
        assert resumed.metrics()["return"].tolist() == [0.25, 0.5, 0.75]
    starts = [event.step for event in events(run.path / "tensorboard") if event.session_log.status]
    assert starts == [3]
    assert [step for step, _ in logged(run.path / "tensorboard")] == [1, 2, 3, 4, 3]


def test_resume_without_a_checkpoint_starts_over(run):
    run.log(rows(1, 2))
    assert run.restore(TEMPLATE) is None
    assert run.metrics() == {}
    run.log([{"update": 1, "other": 1}])
    assert list(run.metrics()) == ["update", "other"]


def test_half_written_newest_falls_back(run):
    for update in (1, 2):
        run.log(rows(update))
        run.save(update, state(update))
    newest = run.path / "checkpoints" / "00000002.npz"
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"00000002\.npz cannot be read.*back to update 1"):
        update, restored = run.restore(TEMPLATE)
    assert update == 1 and restored["w"][0] == 1
    assert run.metrics()["update"].tolist() == [1]
    run.save(2, state(2))  # the damaged one does not push the good one out
    assert run.checkpoint_updates() == [1, 2]
    assert run.restore(TEMPLATE)[0] == 2


def test_nothing_is_lost_when_every_checkpoint_is_damaged(run):
    run.log(rows(1))
    run.save(1, state(1))
    (run.path / "checkpoints" / "00000001.npz").write_bytes(b"")
    with pytest.raises(UserError, match="no checkpoint is intact"):
        run.restore(TEMPLATE)
    assert run.metrics()["update"].tolist() == [1]
    assert run.checkpoint_updates() == [1]


def test_another_state_is_refused_instead_of_an_older_one_taken(run):
    run.save(1, {"w": np.zeros(3)})
    run.save(2, state(2))
    with pytest.raises(UserError, match=r"found float64\[5\], expected float64\[3\]"):
        run.restore({"w": np.zeros(3)})


def test_metrics_are_on_the_disk_before_the_checkpoint(run, monkeypatch):
    order = []
    sync, save = MetricsFile.sync, checkpoints.save
    monkeypatch.setattr(MetricsFile, "sync", lambda self: (order.append("table"), sync(self)))
    monkeypatch.setattr(checkpoints, "save", lambda *a: (order.append("state"), save(*a)))
    run.log([{"update": 1, "loss": 0.5}])
    run.log([{"update": 1, "agent": 0, "loss": 0.5}], table="agents")
    run.save(1, state(1))
    assert order == ["table", "table", "table", "state"]  # the third has no rows yet


def test_every_table_goes_back_with_the_checkpoint(run):
    for update in (1, 2):
        run.log([{"update": update, "loss": 0.5}])
        run.log([{"update": update, "agent": 3, "loss": 0.5}], table="agents")
        if update == 1:
            run.save(1, state(1))
    assert run.restore(TEMPLATE)[0] == 1
    assert run.metrics()["update"].tolist() == [1]
    assert run.metrics("agents")["update"].tolist() == [1]
    assert (run.path / "tensorboard" / "agents" / "agent_3").is_dir()


SURVIVE = """
import os, random, signal, sys, time, warnings
from pathlib import Path
import numpy as np
from discorl.runs import Run

path, trials = Path(sys.argv[1]), int(sys.argv[2])
random.seed(0)
warnings.simplefilter("error")  # a damaged checkpoint would be one

def template():
    return {"w": np.zeros(500_000), "n": 0}

def save_for_ever():
    run = Run.open(path)
    update, _ = run.restore(template()) or (0, None)
    while True:
        update += 1
        run.log([{"update": update, "return": update / 2}])
        run.save(update, {"w": np.full(500_000, float(update)), "n": update})

def unfinished():
    return set((path / "checkpoints").glob(".*"))

interrupted, reached = 0, 0
for _ in range(trials):
    before = unfinished()
    # Only imported, JAX has no threads yet, so a fork is a cheap fresh process.
    writer = os.fork()
    if not writer:
        save_for_ever()
    while unfinished() <= before:  # however slow the machine is, a save has begun
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.1))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    interrupted += not unfinished() <= before
    with Run.open(path) as run:
        update, state = run.restore(template()) or (0, {"w": np.zeros(1), "n": 0})
        assert (state["w"] == update).all() and state["n"] == update, update
        logged = run.metrics().get("update", np.zeros(0)).tolist()
        assert logged == list(range(1, update + 1)), (logged, update)
        assert update >= reached, (update, reached)
        reached = update
        assert len(list((path / "checkpoints").iterdir())) <= 3
print(interrupted, reached)
"""


def test_a_killed_run_always_restores_whole(run):
    run.close()
    interrupted, reached = map(int, finish(child(SURVIVE, run.path, 10)).split())
    assert interrupted > 0  # else no kill fell into a save, and nothing was tested
    assert reached > 0


FILL = """
import resource, sys
import numpy as np
from discorl.runs import Run
from discorl.types import UserError

run = Run.open(sys.argv[1])
run.log([{"update": 1}])
run.save(1, {"w": np.ones(100_000)})
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
try:
    run.save(2, {"w": np.full(100_000, 2.0)})
except UserError as error:
    print(error)
size = (run.path / "metrics.csv").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 3, hard))
try:
    run.log([{"update": 2000000}])
except UserError as error:
    print(error)
assert (run.path / "metrics.csv").stat().st_size == size
assert [file.name for file in (run.path / "checkpoints").iterdir()] == ["00000001.npz"]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
assert run.restore({"w": np.zeros(100_000)})[0] == 1
run.log([{"update": 2}])
run.save(2, {"w": np.full(100_000, 2.0)})
assert run.restore({"w": np.zeros(100_000)})[1]["w"][-1] == 2
"""


def test_a_full_disk_is_reported_and_survived(run):
    """A limit on the size of files stands in for the full disk.

    The kernel then really refuses a write after a part of the file is on the disk, as a full disk
    does, but it takes neither root nor a small file system. It says EFBIG where the disk would say
    ENOSPC, which the test after this one covers.
    """
    run.close()
    save, log, *rest = finish(child(FILL, run.path)).splitlines()
    assert not rest
    assert "the last one is of update 1" in save
    assert f"`--resume {run.path}`" in save
    assert "metrics.csv" in log


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_by_its_own_name(run, monkeypatch, number):
    def full(*_):
        raise OSError(number, "no space")

    monkeypatch.setattr(checkpoints, "save", full)
    with pytest.raises(UserError, match=r"no room left.*there is none yet"):
        run.save(1, state(1))


def test_a_folder_that_cannot_be_written_any_more(run, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoints, "save", refused)
    with pytest.raises(UserError, match=r"cannot write the run .*Permission denied.*is none yet"):
        run.save(1, state(1))


def test_leftovers_of_killed_writers_go_on_open(run):
    run.close()
    leftover = run.path / "checkpoints" / ".00000001.npz.12ab34cd.partial"
    leftover.touch()
    Run.open(run.path, read_only=True).close()
    assert leftover.exists()  # the writer may be alive
    Run.open(run.path).close()
    assert not leftover.exists()


def test_a_normal_resume_warns_of_nothing(run):
    run.save(1, state(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.restore(TEMPLATE)[0] == 1


def test_interrupt_while_saving_keeps_the_old(run, monkeypatch):
    run.save(1, state(1))

    def interrupted(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(np.lib.format, "write_array", interrupted)
    # A process that was started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.save(2, state(2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert [file.name for file in (run.path / "checkpoints").iterdir()] == ["00000001.npz"]
