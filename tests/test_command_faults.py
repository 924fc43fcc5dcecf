"""What a command does with code and machines that misbehave: one message, and nothing lost."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from clocks import TINY, Clock, Clocks

import discorl
from discorl import cli
from discorl.cli.commands import Result
from discorl.envs.host import EnvironmentFailure
from discorl.envs.host import workers as worker_vectors
from discorl.envs.host.serial import SerialVector
from discorl.rules.files import download
from discorl.runs import compilation, memory
from discorl.types import UserError


def run(monkeypatch, function, *arguments):
    """The exit status of a command `discorl rules list` that does what a function does."""
    command = {"list": lambda arguments, program: function()}
    monkeypatch.setattr("discorl.cli.rules.COMMANDS", command)
    with pytest.raises(SystemExit) as caught:
        cli.main(["rules", "list", *arguments])
    return caught.value.code


def raises(error):
    def function():
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("seed is -1"), 2, "discorl: seed is -1\n"),
        (UserError("no rule 'a\x1b[2J\u202e'"), 2, "discorl: no rule 'a\\x1b[2J\\u202e'\n"),
        (KeyboardInterrupt(), 130, "discorl: interrupted\n"),
        (PermissionError(13, "Permission denied", "a/b"), 1, "discorl: a/b: Permission denied\n"),
        (MemoryError("Unable to allocate 8 EiB"), 1, "out of memory: Unable to allocate 8 EiB"),
        (SystemExit(0), 2, "`discorl rules list` was ended by a call of sys.exit"),
        (ZeroDivisionError("what"), 2, "test_command_faults.py, line"),
    ],
)
def test_every_error_is_one_message(monkeypatch, capsys, error, status, message):
    assert run(monkeypatch, raises(error)) == status
    out, err = capsys.readouterr()
    assert message in err
    assert out == "" and len(err.splitlines()) == 1


def test_what_others_print_does_not_spoil_the_result(monkeypatch, capfd):
    def talks():
        print("hello")
        os.write(1, b"from C\n")
        return Result({"found": float("nan")})

    assert run(monkeypatch, talks, "--json") == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"found": None}
    assert sorted(err.split("\n")) == ["", "from C", "hello"]


@pytest.mark.parametrize("arguments", [("--out", ""), ("--out=",), ("",)])
def test_an_empty_path_is_not_the_current_folder(monkeypatch, capsys, arguments):
    assert run(monkeypatch, raises(AssertionError), *arguments) == 2
    assert "is empty; expected a value" in capsys.readouterr().err


def test_a_path_with_nul_is_refused(monkeypatch, capsys):
    assert run(monkeypatch, raises(AssertionError), "--out", "a\0b") == 2
    assert r"'a\x00b' has the character NUL" in capsys.readouterr().err


def test_cached_files_of_a_container_do_not_count_as_used(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    assert memory._of_container() == 100
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 250\nactive_file 50\n")
    assert memory._of_container() == 350
    (tmp_path / "memory.stat").write_text("damaged\n")
    assert memory._of_container() == 100
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._of_container() is None


def test_an_output_that_is_full():
    command = [sys.executable, "-m", "discorl.cli", "--version"]
    with Path("/dev/full").open("wb") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert found.stderr == "discorl: the standard output: No space left on device\n"
    assert found.returncode == 1


# --- environments ---------------------------------------------------------------------------------


class Exits(Clock):
    def step(self, action):
        sys.exit(0)


def test_an_environment_that_calls_exit_is_named():
    vector = SerialVector(Exits, [3, 4])
    vector.reset()
    with pytest.raises(EnvironmentFailure, match="raised SystemExit: 0") as caught:
        vector.step(np.zeros(2, int))
    assert caught.value.index == 0


def test_the_end_of_an_episode_is_drawn():
    vector = SerialVector(Clock, [3])
    vector.reset()
    assert vector.render_end() is None
    for _ in range(4):  # the first episode is cut after four steps
        vector.render()
        vector.step(np.zeros(1, int))
    assert vector.render_end()[0, 0, 0] == 4


def test_a_film_of_a_host_environment_shows_the_last_moment(tmp_path):
    result = discorl.train(**TINY | {"updates": 1}, environment=Clocks())
    key = discorl.training.evaluation.jax.random.key(0)
    frames = result.trainer.film(result.state.learner.params, key, max_frames=50)
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 1, 2, 3, 4]


def test_memory_that_cannot_be_shared_is_told_of(monkeypatch):
    with pytest.raises(UserError, match=r"no room for 1,152,921,504,606,846,976 bytes"):
        worker_vectors._shared_file(2**60)


STUCK = """
import ctypes, sys, time
import numpy as np
from clocks import Clock, Clocks
from discorl.envs.host.workers import WorkerVector

class Stuck(Clock):
    def step(self, action):
        # Sleeps in C without letting go of Python's lock.
        ctypes.PyDLL(None).sleep(600)

vector = WorkerVector(Stuck, [1, 2], observation=Clocks().observation, workers=2)
vector.reset()
print(*(each.process.pid for each in vector._workers), flush=True)
vector.step(np.zeros(2, int))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_workers_that_are_stuck_die_with_their_parent():
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )
    children = [int(number) for number in process.stdout.readline().split()]
    assert len(children) == 2
    time.sleep(0.5)  # for the step to be under way
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.05)


def test_an_error_of_jax_is_told_in_a_line():
    text = "INTERNAL: CpuCallback error calling callback: Traceback (most recent call last):\n  \
File x\n    ^^\nValueError: boom"
    assert memory.runtime_reason(RuntimeError(text)) == "ValueError: boom"
    exhausted = memory.runtime_reason(RuntimeError("RESOURCE_EXHAUSTED: 8 bytes"))
    assert exhausted == "out of memory (RESOURCE_EXHAUSTED: 8 bytes)"


# --- the cache of programs, and downloads ---------------------------------------------------------


def test_a_damaged_or_exchanged_program_is_compiled_again(tmp_path):
    cache = compilation._CheckedCache(str(tmp_path))
    assert cache.get("a") is None
    cache.put("a", b"program of a")
    cache.put("b", b"program of b")
    assert cache.get("a") == b"program of a"
    first, second = tmp_path / "a.program", tmp_path / "b.program"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    assert cache.get("a") is None
    first.write_bytes(content[:-1])
    assert cache.get("a") is None
    cache.put("a", b"program of a")
    assert cache.get("a") == b"program of a"


def test_a_cache_that_others_can_write_is_not_used(tmp_path):
    folder = tmp_path / "programs"
    assert compilation._problem_with(folder) is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    assert "can be written by others" in compilation._problem_with(folder)


def test_a_server_that_trickles_is_given_up(monkeypatch):
    meter = download._Meter(10**6, None)
    meter.update(100)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100.0)
    with pytest.raises(TimeoutError):
        meter.update(0)


def test_a_python_script_is_interrupted_after_saving(tmp_path):
    """Ctrl-C must not let a loop over seeds go on with the next."""
    script = tmp_path / "sweep.py"
    script.write_text(
        textwrap.dedent("""
        import signal, sys, discorl
        stop = lambda rows: signal.raise_signal(signal.SIGINT)
        for seed in range(2):
            print("seed", seed, flush=True)
            discorl.train(rule="actor_critic", env="catch:rows=3,columns=3", hidden=(4,), unroll=2,
                          batch=2, num_envs=2, replay_fraction=0.0, updates=400, seed=seed,
                          track=stop, out=f"{sys.argv[1]}/{seed}")
        """)
    )
    found = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=600
    )
    assert found.stdout == "seed 0\n"
    assert "stopped; continue with resume=" in found.stderr
    assert list((tmp_path / "0" / "checkpoints").glob("*.npz"))


def test_a_small_part_of_the_campaign():
    """`make campaign` has all of it."""
    parts = ["command lines", "TOML files", "special files"]
    command = [sys.executable, "tests/campaign", "--share", "0.01", "--only", *parts]
    home = Path(__file__).parents[1]
    found = subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search("in all: 1[58] tries, 0 failures", found.stdout)  # with or without devices
