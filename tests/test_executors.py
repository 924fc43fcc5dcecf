"""Cells of a comparison on workers: lost ones are run again, and the numbers are the same."""

import concurrent.futures
import contextlib
import functools
import os
import signal
import sys
import types
import zlib

import clusters
import comparisons
import numpy as np
import pytest

import discorl
from discorl.comparison import cells, executors
from discorl.envs import Reference


def answer(value, programs):
    return value


def dies_once(mark, programs):
    """Answers when it is called again."""
    if mark.exists():
        return "back"
    mark.touch()
    return dies(programs)


def dies(programs):
    os.kill(os.getpid(), signal.SIGKILL)


class LosesWorkers(concurrent.futures.Executor):
    """Loses its worker in each of the first calls."""

    def __init__(self, losses):
        self.losses, self.calls = losses, 0

    def submit(self, function, /, *arguments):
        self.calls += 1
        future = concurrent.futures.Future()
        if self.calls <= self.losses:
            future.set_exception(RuntimeError("the worker died"))
        else:
            future.set_result(function(*arguments))
        return future


def test_the_cell_of_a_lost_worker_is_run_again():
    executor = LosesWorkers(2)
    calls = {name: functools.partial(answer, name.upper()) for name in ("a", "b", "c")}
    found = dict(executors.run_elsewhere(executor, calls))
    assert found == {"a": "A", "b": "B", "c": "C"}
    assert executor.calls == 5
    with pytest.raises(discorl.UserError, match=r"a: workers were lost \(RuntimeError: the worker"):
        dict(executors.run_elsewhere(LosesWorkers(100), {"a": calls["a"]}))


def test_a_pool_that_breaks_is_reported(tmp_path):
    with (
        executors.make_executor("processes:1", tmp_path) as pool,
        pytest.raises(discorl.UserError, match="a: workers were lost"),
    ):
        dict(executors.run_elsewhere(pool, {"a": dies}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ray:2", "executor is 'ray:2'; expected one of processes:N"),
        ("processes:none", "executor processes is 'none'"),
        ("processes:0", "executor processes is 0"),
    ],
)
def test_other_executors_are_refused(text, message, tmp_path):
    with pytest.raises(discorl.UserError, match=message):
        executors.make_executor(text, tmp_path)


def test_a_comparison_that_cannot_begin_closes_its_client(tmp_path, monkeypatch):
    closed = []

    class Client(contextlib.ExitStack):
        """Stands in for a client of Dask."""

        def __init__(self, address):
            super().__init__()
            self.callback(closed.append, address)

        def get_executor(self, pure):
            return concurrent.futures.ThreadPoolExecutor(1)

    monkeypatch.setitem(sys.modules, "distributed", types.SimpleNamespace(Client=Client))
    with pytest.raises(discorl.UserError, match="is not a run directory"):
        discorl.compare(resume=tmp_path / "nothing", executor="dask:tcp://host:1")
    assert closed == ["tcp://host:1"]


def made_up(cell, path, config, steps, *, programs, keep_checkpoints, accept_changes):
    """What `cells.run` does, without the training."""
    seed = zlib.crc32(str(cell).encode())
    record = comparisons.record(cell, Reference(-1.0, 1.0), np.random.default_rng(seed), steps)
    cells.write_record(path, record)
    return record


def test_a_comparison_is_the_same_wherever_its_cells_run(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "run", made_up)
    suite = tmp_path / "tiny.toml"
    suite.write_text(comparisons.TINY)
    here = discorl.compare(suite=suite, out=tmp_path / "here")
    lines = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        there = discorl.compare(
            suite=suite, out=tmp_path / "there", executor=pool, tell=lines.append
        )
    assert there.finished and there.aggregates == here.aggregates
    assert there.chosen == here.chosen
    assert lines[-1].startswith("[8/8] final")
    # A finished cell is never run again.
    monkeypatch.setattr(cells, "run", None)
    again = discorl.compare(resume=tmp_path / "there", executor=LosesWorkers(100))
    assert again.aggregates == here.aggregates


@pytest.mark.long
def test_a_dask_worker_that_is_killed_changes_no_number(tmp_path):
    distributed = pytest.importorskip("distributed")
    suite = tmp_path / "tiny.toml"
    suite.write_text(comparisons.TINY)
    here = discorl.compare(suite=suite, out=tmp_path / "here")
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        killed = []

        def tell(line):
            busy = [x for x in cluster.scheduler.workers.values() if x.processing]
            if busy and not killed:
                killed.append(busy[0].address)
                os.kill(busy[0].pid, signal.SIGKILL)

        there = discorl.compare(
            suite=suite,
            out=tmp_path / "there",
            executor=f"dask:{cluster.scheduler_address}",
            tell=tell,
        )
        left = set(cluster.scheduler.workers)
    assert killed and killed[0] not in left
    assert there.finished and there.aggregates == here.aggregates


@pytest.mark.long
def test_jobs_of_submitit_answer_and_a_lost_one_is_queued_again(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.syspath_prepend(clusters.TESTS)
    monkeypatch.setenv("PYTHONPATH", clusters.environment()["PYTHONPATH"])
    calls = {
        "a": functools.partial(answer, "A"),
        "b": functools.partial(dies_once, tmp_path / "mark"),
    }
    # submitit's own queue on this machine, in place of Slurm's.
    description = "slurm:cluster=local,timeout_min=10,partition=none"
    with executors.make_executor(description, tmp_path / "jobs") as queue:
        assert dict(executors.run_elsewhere(queue, calls)) == {"a": "A", "b": "back"}
