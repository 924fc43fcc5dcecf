"""Discovery in several processes and on several devices: always the same bits."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import toys
from timing import assert_same_tables

import discorl
from discorl import cli
from discorl.cli import launch
from discorl.runs.processes import Cluster

TOYS = [sys.executable, toys.__file__]
COLLECTIVES = """
import jax, numpy as np
from discorl.discovery import blocks

# Rows of five agents on one, two and three devices.
rows = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
like = jax.ShapeDtypeStruct((7,), np.float32)
cut = blocks.split([5], 1)
sums = []
for n in (1, 2, 3):
    every = jax.devices()[:n]
    held = [every[p] for p in blocks.deal([1] * 5, n)]
    add = blocks.OrderedSum(cut, held, every)
    parts = {i: jax.device_put(rows[b.agents], held[i]) for i, b in enumerate(cut)}
    sums.append(np.asarray(add(parts, like)))
    text = add.program.lower(add.place(parts, like)).compile().as_text()
    assert n == 1 or text.count(" all-to-all(") == 1, text
assert (sums[0] == sums[1]).all() and (sums[0] == sums[2]).all()
"""


def environment(devices=1, **more):
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(Path(toys.__file__).parent), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path} | more


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def start(out, number=0, count=1, address="", devices=1, **more):
    """One process of a discovery with toys."""
    options = ["--out", str(out), "--resume-if-exists"]
    if count > 1:
        where = {"--coordinator": address, "--processes": count, "--process": number}
        options += [str(x) for pair in where.items() for x in pair]
    return subprocess.Popen(
        [*TOYS, *toys.COMMAND, *options],
        env=environment(devices, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(out, count=1, **more):
    """Exit status, output and errors of all processes of a discovery with toys."""
    address = free_address()
    started = [start(out, i, count, address, **more) for i in range(count)]
    return [(*child.communicate(timeout=600), child.returncode)[::-1] for child in started]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run in one process on three devices, of which there are fewer than blocks."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    ((status, errors, _),) = run(out, devices=3)
    assert status == 0, errors
    return out


def assert_same_runs(one, two):
    for name in ("metrics", "agents", "evaluation"):
        assert_same_tables(one / f"{name}.csv", two / f"{name}.csv")
    for name in ("rule.npz", "best.npz"):
        with np.load(one / name) as first, np.load(two / name) as second:
            arrays = [key for key in first.files if key != "metadata"]
            assert len(arrays) == 3  # of the lean rule
            for key in arrays:
                np.testing.assert_array_equal(first[key], second[key])


def test_the_sum_is_one_exchange_on_any_number_of_devices():
    done = subprocess.run(
        [sys.executable, "-c", COLLECTIVES], env=environment(3), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_signal_to_one_process_saves_all_and_another_number_of_them_goes_on(
    undisturbed, tmp_path
):
    out = tmp_path / "run"
    first, second = run(out, 2, TOY_SIGNAL=f"1 5 {int(signal.SIGTERM)}")
    assert (first[0], second[0]) == (1, 1), (first, second)
    assert "stopped; go on with" in first[2]
    assert second[1:] == ("", ""), "process 0 speaks for all"
    names = sorted(file.name for file in (out / "checkpoints").iterdir())
    assert names[-2:] == ["00000005.npz", "00000005.part-1.npz"]
    assert len(json.loads((out / "blocks.json").read_text())) == 6
    ((status, errors, _),) = run(out)
    assert status == 0, errors
    assert_same_runs(undisturbed, out)


def test_processes_by_hand_need_all_that_describes_them():
    with pytest.raises(discorl.UserError, match="expected all three"):
        Cluster(coordinator="localhost:1234")
    with pytest.raises(discorl.UserError, match="coordinator is 'localhost'; expected HOST:PORT"):
        Cluster("localhost", 2, 0)
    with pytest.raises(discorl.UserError, match="process is 2"):
        Cluster("localhost:1234", 2, 2)
    with pytest.raises(discorl.UserError, match="out is None"):
        discorl.discover(distributed=True, preset="demo")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2", "train"], "expected `discover` with its options"),
        (["-n", "1000000", "discover", "--out", "x"], "processes is 1000000; expected at most"),
        (["-n", "2", "discover"], "out is not given"),
        (["-n", "2", "discover", "--out=x", "--process=1"], "--process is given"),
    ],
)
def test_what_cannot_be_launched(capsys, arguments, words):
    with pytest.raises(SystemExit):
        cli.main(["launch", *arguments])
    assert words in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_processes_die_with_their_supervisor():
    child = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"
    code = "import sys; from discorl.cli import launch; launch.supervise(sys.argv[1:], 2, 0)"
    command = [sys.executable, "-c", code, sys.executable, "-c", child]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        try:
            children = [int(supervisor.stdout.readline()) for _ in range(2)]
        finally:
            supervisor.kill()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{number}").exists() for number in children):
        assert time.monotonic() < deadline, "a process outlives its supervisor"
        time.sleep(0.05)


def test_a_supervisor_starts_all_again(tmp_path):
    # Fails once in process 1, whereupon the others end by themselves.
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys, pathlib\n"
        f"mark = pathlib.Path({str(tmp_path)!r}, sys.argv[-1])\n"
        "again = mark.exists(); mark.touch()\n"
        "sys.exit(0 if again or sys.argv[-1] == '0' else 7)\n"
    )
    assert launch.supervise([sys.executable, str(script)], 2, restarts=3) == (0, 1)
    script.write_text("import sys; sys.exit(2)")
    assert launch.supervise([sys.executable, str(script)], 2, restarts=3) == (2, 0)


# --- what takes minutes ---------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("count", "devices"), [(2, 1), (2, 2), (1, 4), (4, 1)])
def test_any_layout_gives_the_same_bits(undisturbed, tmp_path, count, devices):
    found = run(tmp_path / "run", count, devices=devices)
    assert all(status == 0 for status, _, _ in found), found
    assert_same_runs(undisturbed, tmp_path / "run")


@pytest.mark.long
def test_two_processes_start_and_four_finish(undisturbed, tmp_path):
    out = tmp_path / "run"
    found = run(out, 2, TOY_SIGNAL=f"0 8 {int(signal.SIGKILL)}")
    assert all(status != 0 for status, _, _ in found), found
    found = run(out, 4)
    assert all(status == 0 for status, _, _ in found), found
    assert_same_runs(undisturbed, out)


@pytest.mark.long
def test_a_late_process_is_waited_for(undisturbed, tmp_path):
    address = free_address()
    first = start(tmp_path / "run", 0, 2, address)
    time.sleep(60)
    second = start(tmp_path / "run", 1, 2, address)
    assert [first.wait(600), second.wait(600)] == [0, 0], first.stderr.read()
    assert_same_runs(undisturbed, tmp_path / "run")


@pytest.mark.long
def test_folders_that_are_not_shared_are_refused(tmp_path):
    address = free_address()
    started = [start(tmp_path / str(i), i, 2, address) for i in range(2)]
    found = [(*child.communicate(timeout=600), child.returncode) for child in started]
    assert [status for _, _, status in found] == [2, 2]
    assert "process 1: out is" in found[0][1] and "does not share" in found[0][1]
    assert found[1][1] == ""


@pytest.mark.long
def test_random_kills_lose_nothing(undisturbed, tmp_path):
    """Twenty times a random process of two is killed at a random moment, also while saving."""
    out, chosen = tmp_path / "run", random.Random(0)
    kills, ends = 0, []
    while True:
        address = free_address()
        started = [start(out, i, 2, address, TOY_PAUSE="0.3") for i in range(2)]
        if kills < 20:
            wait_for_a_change(out, started)
            time.sleep(chosen.uniform(0, 3))
            victim = chosen.choice(started)
            if victim.poll() is None:
                victim.kill()
                kills += 1
                killed = time.monotonic()
                for child in started:
                    child.wait(60)
                ends.append(time.monotonic() - killed)
        codes = [child.wait(600) for child in started]
        if codes == [0, 0]:
            break
    print(f"{kills} kills; all ended within {max(ends, default=0):.1f} s of each")
    assert max(ends, default=0) < 25
    assert_same_runs(undisturbed, out)


def wait_for_a_change(out, started):
    """Until the run has begun to make meta-steps, or ended."""
    table = out / "agents.csv"
    before = table.stat().st_mtime if table.exists() else 0
    while all(child.poll() is None for child in started):
        if table.exists() and table.stat().st_mtime > before:
            return
        time.sleep(0.05)
