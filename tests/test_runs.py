"""The run directory: its lock, tables and checkpoints, and that nothing is lost whatever fails."""

import errno
import fcntl
import json
import signal
import struct
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from discorl.runs import Run, check_source, checkpoints, compilation
from discorl.runs.tables import MetricsFile
from discorl.types import UserError

CONFIG = {"env": "catch", "updates": 10, "rates": (0.1, 0.2)}
TEMPLATE = {"w": np.zeros(5)}


def state(update):
    return {"w": np.full(5, float(update))}


def rows(*updates):
    return [{"update": update, "steps": 10 * update, "return": update / 4} for update in updates]


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", CONFIG) as made:
        yield made


def child(script, *arguments):
    """Starts a Python process that can be killed or limited without harm to the tests."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return output


def events(folder):
    """The events of a TensorBoard folder: records of length, checksum, content, checksum."""
    found = []
    for file in sorted(folder.glob("events*")):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            found.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    return found


def logged(folder):
    return [
        (event.step, {value.tag: value.simple_value for value in event.summary.value})
        for event in events(folder)
        if event.HasField("summary")
    ]


def test_create_then_open(tmp_path):
    with Run.create(tmp_path / "deep" / "run", CONFIG, kind="discover") as made:
        assert made.config == {"env": "catch", "updates": 10, "rates": [0.1, 0.2]}
    with Run.open(tmp_path / "deep" / "run") as opened:
        assert (opened.config, opened.kind) == (made.config, "discover")
        assert opened.curve_path == tmp_path / "deep" / "run" / "curve.png"
    versions = json.loads((opened.path / "versions.json").read_text())
    assert versions["numpy"] == np.__version__
    assert set(versions) >= {"discorl", "python", "jax", "jaxlib", "optax", "platform", "device"}


def test_create_refuses_a_run(run):
    run.close()
    with pytest.raises(UserError, match=r"already holds a run; resume it with `--resume .*run`"):
        Run.create(run.path, {})
    Run.open(run.path).close()  # the refusal holds no lock


def test_create_refuses_a_file(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match="cannot make the run directory"):
        Run.create(tmp_path / "run", {})


def test_create_refuses_a_config_that_json_cannot_hold(tmp_path):
    with pytest.raises(TypeError):
        Run.create(tmp_path / "run", {"rule": object()})
    assert not (tmp_path / "run").exists()


def test_open_refuses_what_is_no_run(tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        Run.open(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"config\.json: it is \[\]; expected an object"):
        Run.open(tmp_path)


def test_lock_holds_within_a_process_and_readers_pass(run):
    with pytest.raises(UserError, match="another process is writing"):
        Run.open(run.path)
    run.log(rows(1))
    run.save(1, state(1))
    run.log(rows(2))
    with Run.open(run.path, read_only=True) as reader:
        update, restored = reader.restore(TEMPLATE)
        assert update == 1 and restored["w"][0] == 1
        assert reader.metrics()["update"].tolist() == [1, 2]  # a reader cuts nothing
        with pytest.raises(RuntimeError, match="reading only"):
            reader.log(rows(3))
        with pytest.raises(RuntimeError, match="reading only"):
            reader.save(3, state(3))


HOLD = """
import sys, time
from discorl.runs import Run
run = Run.open(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_lock_between_processes_ends_with_the_holder(run):
    run.close()
    holder = child(HOLD, run.path)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process is writing"):
            Run.open(run.path)
    finally:
        holder.kill()
        holder.communicate()
    Run.open(run.path).close()


def test_file_systems_without_locks_only_warn(run, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    run.close()
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match="has no locks"):
        Run.open(run.path).close()


def test_metrics_come_back_as_columns(run):
    run.log([{"update": 1, "return": float("nan"), "loss": jnp.float32(0.1), "best": np.int64(3)}])
    run.log([{"best": 4, "loss": np.float64(0.1), "return": float("inf"), "update": 2}])
    metrics = run.metrics()
    assert list(metrics) == ["update", "return", "loss", "best"]
    assert metrics["update"].dtype == metrics["best"].dtype == np.int64
    np.testing.assert_array_equal(metrics["return"], [np.nan, np.inf])
    np.testing.assert_array_equal(metrics["loss"], [np.float32(0.1), 0.1])
    assert (run.path / "metrics.csv").read_text().splitlines()[0] == "update,return,loss,best"
    assert (run.path / "metrics.csv").read_text().splitlines()[1].startswith("1,,0.1")


def test_metrics_of_nothing(run):
    run.log([])
    assert run.metrics() == {}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"update": 2, "steps": 1, "return": 0, "extra": 1}, r"new: \['extra'\]"),
        ({"update": 2, "steps": 1}, r"missing: \['return'\]"),
        ({"steps": 1}, "no column 'update'"),
    ],
)
def test_columns_are_fixed_by_the_first_row(run, row, words):
    run.log(rows(1))
    before = (run.path / "metrics.csv").read_bytes()
    with pytest.raises(UserError, match=words):
        run.log([*rows(2), row])
    assert (run.path / "metrics.csv").read_bytes() == before


def test_tensorboard_goes_along_environment_steps(run):
    rows = [{"update": i, "global_step": 64 * i, "wall_time": 1.0, "loss": 0.5} for i in (1, 2)]
    run.log(rows)
    assert logged(run.path / "tensorboard") == [(64, {"loss": 0.5}), (128, {"loss": 0.5})]


def test_a_tracker_that_replaces_the_writer_of_events_is_told_of_every_folder(run, monkeypatch):
    """As wandb does with `sync_tensorboard=True`: it then reads the files by itself."""
    import tensorboardX.writer

    told = []

    class Told(tensorboardX.writer.EventFileWriter):
        def __init__(self, logdir, *arguments, **settings):
            told.append(logdir)
            super().__init__(logdir, *arguments, **settings)

    monkeypatch.setattr(tensorboardX.writer, "EventFileWriter", Told)
    run.log([{"update": 1, "seed": seed, "loss": 0.5} for seed in (0, 1)])
    run.log([{"update": 1, "score": 0.25}], "evaluation")
    folder = run.path / "tensorboard"
    assert told == [str(folder / name) for name in ("seed_0", "seed_1", "evaluation")]
    assert logged(folder / "seed_1") == [(1, {"loss": 0.5})]
    assert logged(folder / "evaluation") == [(1, {"score": 0.25})]


def test_tensorboard_has_a_folder_per_seed(run):
    run.log([{"update": 1, "seed": 0, "return": 0.5}, {"update": 1, "seed": 1, "return": np.nan}])
    run.log([{"update": 2, "seed": 0, "return": 1.5}, {"update": 2, "seed": 1, "return": 2.5}])
    assert logged(run.path / "tensorboard" / "seed_0") == [
        (1, {"return": 0.5}),
        (2, {"return": 1.5}),
    ]
    assert logged(run.path / "tensorboard" / "seed_1") == [(1, {}), (2, {"return": 2.5})]


def test_newest_checkpoints_are_kept(run):
    for update in (5, 10, 15):
        run.save(update, state(update))
    assert run.checkpoint_updates() == [10, 15]
    run.save(20, state(20), keep=1)
    assert [file.name for file in (run.path / "checkpoints").iterdir()] == ["00000020.npz"]
    with pytest.raises(ValueError, match="older than checkpoint 20"):
        run.save(15, state(15))
    with pytest.raises(ValueError, match="keep is 0"):
        run.save(25, state(25), keep=0)


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
    with pytest.raises(UserError, match="no checkpoint is left whole"):
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
    assert "the checkpoint of update 1 stands" in save
    assert f"`--resume {run.path}`" in save
    assert "metrics.csv" in log


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_by_its_own_name(run, monkeypatch, number):
    def full(*_):
        raise OSError(number, "no space")

    monkeypatch.setattr(checkpoints, "save", full)
    with pytest.raises(UserError, match=r"no room left.*none stands yet"):
        run.save(1, state(1))


def test_a_folder_that_cannot_be_written_any_more(run, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoints, "save", refused)
    with pytest.raises(UserError, match=r"cannot write the run .*Permission denied.*none stands"):
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


@pytest.mark.parametrize(
    ("config", "settings", "out", "resume", "message"),
    [
        ("config", {"seed": 1}, None, None, "give one of config, resume and single settings"),
        ("config", {}, None, "run", "give one of config, resume and single settings"),
        (None, {"seed": 1}, None, "run", "give one of config, resume and single settings"),
        (None, {}, "new", "run", "give either resume or out"),
    ],
)
def test_settings_come_from_one_place(config, settings, out, resume, message):
    with pytest.raises(UserError, match=message):
        check_source(config, settings, out=out, resume=resume)


def test_one_source_of_settings_is_accepted():
    check_source("config", {}, out="new", resume=None)
    check_source(None, {"seed": 1}, out="new", resume=None)
    check_source(None, {}, out=None, resume="run")


def test_a_stopwatch_leaves_compilation_out():
    def compile_for(seconds, *inside):
        start = time.perf_counter()
        for part in inside:
            compile_for(part)
        time.sleep(seconds)
        taken = time.perf_counter() - start
        jax.monitoring.record_event_duration_secs("/jax/core/compile/trace", taken)

    with compilation.Stopwatch() as watch:
        compile_for(0.1, 0.1, 0.1)  # those within count once
        time.sleep(0.2)
        compile_for(0.1)
    assert 0.2 <= watch.seconds < 0.3
    listening = watch._compiling.copy()
    compile_for(0.01)
    assert watch._compiling == listening  # it is over


def test_a_stopwatch_hears_jax_compile():
    with compilation.Stopwatch() as watch:
        start = time.perf_counter()
        jax.jit(lambda x: jnp.linalg.inv(x) @ jnp.sin(x))(np.eye(5, dtype=np.float32))
        taken = time.perf_counter() - start
    assert watch.seconds < taken / 2
