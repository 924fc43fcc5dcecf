"""Discovery in several processes and on several devices: always the same bits."""

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import clusters
import jax
import numpy as np
import pytest
import toys
from clusters import assert_same_runs
from discoveries import table

import discorl
from discorl import cli
from discorl.cli import launch, running, train
from discorl.cli.commands import Result
from discorl.runs import processes, progress
from discorl.runs.processes import Cluster

COLLECTIVES = """
import discorl, jax, numpy as np, toys
from discorl.discovery import blocks
from discorl.discovery.population import Population
from discorl.discovery.start import starting_rule

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

# The agents of a block step on one device, and ask nothing of others.
config = discorl.configure_discovery(
    rule="lean", start="scratch", population=("bandit",), agents=3, block_size=1
)
rule, eta = starting_rule(config)
population = Population(config, rule, agents=toys.Toys)
state = population.init(eta, jax.random.key(0))
assert len(set(population.devices)) == 3
for device, block in zip(population.devices, state.blocks, strict=True):
    own = jax.device_put(eta, device)
    step = population.groups[0]._step.lower(own, block).compile()
    text = step.as_text()
    assert not any(name in text for name in ("all-to-all", "all-gather", "all-reduce")), text
    assert all(x.sharding.device_set == {device} for x in jax.tree.leaves(step(own, block)))
"""

# Process 1 comes to the first sum later than Gloo waits for it, over devices in another order.
LATE = """
import sys, time, jax, numpy as np
from discorl.discovery import blocks
from discorl.runs import processes

where, *numbers = sys.argv[2::2]
with processes.joined(processes.Cluster(where, *map(int, numbers))):
    every = jax.devices()
    held = every[::-1]
    add = blocks.OrderedSum(blocks.split([len(held)], 1), held, every)
    if processes.index() == 1:
        time.sleep(35)
    row = np.ones((1, 7), np.float32)
    rows = {i: jax.device_put(row, d) for i, d in enumerate(held) if processes.owns(d)}
    assert (np.asarray(add(rows, row[0])) == len(held)).all()
"""


def command(out, *options):
    return [toys.__file__, *(options or toys.COMMAND), "--out", str(out), "--resume-if-exists"]


def start(out, *arguments, **more):
    """One process of a discovery with toys."""
    return clusters.start(command(out), *arguments, **more)


def run(out, count=1, options=(), **more):
    """Exit status, errors and output of all processes of a discovery, by default with toys."""
    return clusters.run(command(out, *options), count, **more)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run in one process on three devices, of which there are fewer than blocks."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    ((status, errors, _),) = run(out, devices=3)
    assert status == 0, errors
    return out


def test_the_sum_is_the_only_exchange_on_any_number_of_devices():
    done = subprocess.run(
        [sys.executable, "-c", COLLECTIVES],
        env=clusters.environment(3),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_signal_to_one_process_saves_all_and_another_number_of_them_goes_on(
    undisturbed, tmp_path
):
    out = tmp_path / "run"
    first, second = run(out, 2, TOY_SIGNAL=f"1 5 {int(signal.SIGTERM)}")
    assert (first[0], second[0]) == (1, 1), (first, second)
    assert "stopped; continue with" in first[2]
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


def test_a_connected_process_works_alone_unless_it_joins(monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert (processes.index(), processes.count(), processes.exchange(5)) == (0, 1, [5])
    assert processes.devices() == jax.local_devices()


def test_processes_with_other_settings_or_parameters_are_named(monkeypatch):
    def other_process(own):
        return [own, own | {"learning_rate": 0.5, "the checksum of parameters": "0"}]

    monkeypatch.setattr(processes, "exchange", other_process)
    with pytest.raises(discorl.UserError) as error:
        processes.require_same({"agent": {"learning_rate": 0.1, "batch": 4}}, np.arange(3))
    assert "process 1 has different settings" in str(error.value)
    assert "learning_rate is 0.1 here and 0.5 there, the checksum of" in str(error.value)
    assert "batch" not in str(error.value)


def test_a_process_that_is_gone_is_reported_in_one_line(capfd):
    with pytest.raises(ValueError) as error:
        raise ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer")
    processes._report(error.value)
    line = "discorl: process 0: another process is gone: UNKNOWN: Gloo AllGather failed: Connection"
    assert capfd.readouterr().err == f"{line} closed by peer\n"
    processes._report(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 8 bytes"))
    line = "discorl: process 0: out of memory (RESOURCE_EXHAUSTED: 8 bytes)\n"
    assert capfd.readouterr().err == line


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ("", True),
        ("--coordinator here:1 --processes 2 --process 0", True),
        ("--coordinator=here:1 --processes=2 --process=0", True),
        ("--coordinator here:1 --processes 2 --process 1", False),
        ("--distributed", False),
    ],
)
def test_of_several_processes_the_first_shows_that_it_works(options, drawn, monkeypatch):
    shown = []
    monkeypatch.setattr(
        running, "Waiting", lambda program: shown.append(program) or contextlib.nullcontext()
    )
    monkeypatch.setitem(train.COMMANDS, "", lambda *_: Result({}))
    assert running.run(["train", *options.split()]) == 0
    assert shown == (["discorl train"] if drawn else [])


def test_a_process_that_fails_clears_its_line(monkeypatch):
    def leave(status):
        events.append(status)
        raise SystemExit

    events = []
    monkeypatch.setattr(processes, "_connected", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(processes, "_report", lambda _: events.append("message"))
    monkeypatch.setattr(processes.os, "_exit", leave)
    display = types.SimpleNamespace(_pause=lambda: events.append("clear"), _draw=lambda: None)
    monkeypatch.setattr(progress, "_displays", [display])
    with pytest.raises(SystemExit), processes.joined(True):
        raise discorl.UserError("wrong")
    assert events == ["clear", "message", 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2", "evaluate"], "expected `discover` or `train` with its options"),
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


def test_a_supervisor_ends_processes_that_wait_for_one_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "PATIENCE", 0.1)
    script = tmp_path / "waits.py"
    script.write_text("import sys, time; sys.exit(7) if sys.argv[-1] == '1' else time.sleep(60)")
    start = time.monotonic()
    assert launch.supervise([sys.executable, str(script)], 3, restarts=0) == (7, 0)
    assert time.monotonic() < start + 30


# --- what takes minutes ---------------------------------------------------------------------------


def run_real(kind, out, count=1, *, ok=True, **more):
    """A discovery with real agents; with `ok` all of its processes succeed, and else none."""
    found = run(out, count, shlex.split(clusters.REAL[kind]), TOY_AGENTS="real", **more)
    assert all((status == 0) == ok for status, _, _ in found), found


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lean", "disco"])
def test_real_agents_discover_the_same_bits_in_any_layout(kind, tmp_path):
    whole = tmp_path / "whole"
    run_real(kind, whole)
    assert max(float(row["life/number"]) for row in table(whole, "agents")) > 0
    assert min(float(row["meta/eta_update_norm"]) for row in table(whole, "metrics")) > 0
    for count, devices in [(2, 1), (2, 2), (1, 4)]:
        out = tmp_path / f"{count}x{devices}"
        run_real(kind, out, count, devices=devices)
        assert_same_runs(whole, out)
    # Two start, a process is killed, and one or four finish.
    for victim, then in [(1, 1), (0, 4)]:
        out = tmp_path / f"2, then {then}"
        run_real(kind, out, 2, ok=False, TOY_SIGNAL=f"{victim} 8 {int(signal.SIGKILL)}")
        run_real(kind, out, then)
        assert_same_runs(whole, out)


@pytest.mark.long
def test_host_agents_discover_the_same_bits_in_two_processes(tmp_path):
    pytest.importorskip("gymnasium")
    run_real("host", tmp_path / "one")
    run_real("host", tmp_path / "two", 2)
    assert_same_runs(tmp_path / "one", tmp_path / "two")


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
    address = clusters.free_address()
    first = start(tmp_path / "run", 0, 2, address)
    time.sleep(60)
    second = start(tmp_path / "run", 1, 2, address)
    assert [first.wait(600), second.wait(600)] == [0, 0], first.stderr.read()
    assert_same_runs(undisturbed, tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 2])
def test_a_process_that_compiles_for_longer_than_others_is_waited_for(devices):
    found = clusters.run(["-c", LATE], 2, devices=devices)
    assert all(status == 0 for status, _, _ in found), found


@pytest.mark.long
def test_folders_that_are_not_shared_are_refused(tmp_path):
    address = clusters.free_address()
    started = [start(tmp_path / str(i), i, 2, address) for i in range(2)]
    found = [(*child.communicate(timeout=600), child.returncode) for child in started]
    assert [status for _, _, status in found] == [2, 2]
    assert "process 1: out is" in found[0][1] and "does not share" in found[0][1]
    assert found[1][1] == ""
