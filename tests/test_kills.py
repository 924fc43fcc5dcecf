"""Processes of a discovery that are killed under the supervisor: nothing is lost."""

import contextlib
import os
import random
import re
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import clusters
import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

KILLS = 20
# Within so many seconds of their start, of a meta-step, or of the start of a checkpoint.
MOMENTS = {"start": 20.0, "meta-steps": 1.0, "checkpoint": 0.03}
# Enough meta-steps that all kills come before the last.
OPTIONS = "--meta-steps 400 --checkpoint-every 10 --evaluate-every 200"
GONE = re.compile(r"process \d: another process is gone")


def command(kind, out):
    return [*shlex.split(clusters.REAL[kind]), *OPTIONS.split(), "--out", str(out)]


def alive(process):
    """Whether a process runs; one that nobody has waited for yet does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children(supervisor):
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text()
        return [int(x) for x in text.split() if alive(x)]
    return []


class Killer:
    """Kills processes of a supervised run, and measures how long the others live on."""

    def __init__(self, supervisor, out):
        self.supervisor, self.out = supervisor, out
        self.ends = []  # seconds from a kill to the end of all
        self.reports = []  # and from the report of a failed collective to it
        self.while_saving = 0
        self._reported = []  # when errors were printed
        self._chosen = random.Random(0)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.supervisor.stderr:
            sys.stderr.write(line)
            if GONE.search(line):
                self._reported.append(time.monotonic())

    def kill(self, moment):
        """Kills one of the processes at a moment, one of `MOMENTS`."""
        victims = self._wait_for_processes()
        if moment != "start":
            self._wait_for_meta_steps()
        if moment == "checkpoint":
            self._wait_for_a_checkpoint()
        time.sleep(self._chosen.uniform(0, MOMENTS[moment]))
        os.kill(self._chosen.choice(victims), signal.SIGKILL)
        killed = time.monotonic()
        if moment != "start":  # when files of the last attempt are still there
            self.while_saving += bool(self._unfinished() or self._uncommitted())
        while any(alive(process) for process in victims):
            assert time.monotonic() < killed + 60, "a process outlives another"
            time.sleep(0.01)
        ended = time.monotonic()
        self.ends.append(ended - killed)
        self.reports += [ended - at for at in self._reported if killed < at < ended]

    def _unfinished(self):
        """Files of a checkpoint that are being written."""
        return list((self.out / "checkpoints").glob(".*.partial"))

    def _uncommitted(self):
        """Parts of a checkpoint that process 0 has not written yet."""
        folder = self.out / "checkpoints"
        written = {file.name.split(".")[0] for file in folder.glob("[0-9]*.npz")}
        return written - {file.stem for file in folder.glob("????????.npz")}

    def _wait_for_processes(self):
        found = []
        while len(found) < 2:
            assert self.supervisor.poll() is None, "the run has ended"
            time.sleep(0.02)
            found = children(self.supervisor.pid)
        return found

    def _wait_for_meta_steps(self):
        """Until the run goes on; it cuts its table back first."""
        table = self.out / "agents.csv"
        size = float("inf")
        while not table.exists() or table.stat().st_size <= size:
            assert self.supervisor.poll() is None, "the run has ended"
            size = table.stat().st_size if table.exists() else 0
            time.sleep(0.02)

    def _wait_for_a_checkpoint(self):
        while not self._unfinished():
            assert self.supervisor.poll() is None, "the run has ended"
            time.sleep(0.001)


def test_random_kills_lose_nothing(tmp_path):
    """Twenty times one of two processes is killed: while they start, learn or save."""
    whole, out = tmp_path / "whole", tmp_path / "run"
    ((status, errors, _),) = clusters.run(["-m", "discorl.cli", *command("lean", whole)])
    assert status == 0, errors
    supervised = ["-m", "discorl.cli", "launch", "-n", "2", *command("lean", out)]
    with clusters.start(supervised) as supervisor:
        try:
            killer = Killer(supervisor, out)
            for i in range(KILLS):
                moment = list(MOMENTS)[i % 3]
                killer.kill(moment)
                print(f"{i + 1}, {moment}: all ended after {killer.ends[-1]:.2f} s", flush=True)
            assert supervisor.wait(1800) == 0
        finally:
            supervisor.kill()
    print(f"{killer.while_saving} kills while saving; all ended within {max(killer.ends):.1f} s,")
    print(f"and within {max(killer.reports):.1f} s of a failed collective")
    assert max(killer.ends) < 25 and max(killer.reports) < 2
    assert killer.while_saving
    clusters.assert_same_runs(whole, out)
