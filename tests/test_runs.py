"""The run directory: its lock, its tables and its settings."""

import errno
import fcntl
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_samples import CONFIG, TEMPLATE, child, logged, rows, state

from discorl.runs import Run, check_source, compilation
from discorl.runs.tables import MetricsFile
from discorl.types import UserError


@pytest.fixture
def run(tmp_path):
    with Run.create(tmp_path / "run", CONFIG) as made:
        yield made


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


@pytest.mark.parametrize(
    ("config", "settings", "out", "resume", "message"),
    [
        ("config", {"seed": 1}, None, None, "give only one of config, resume and single"),
        ("config", {}, None, "run", "give only one of config, resume and single"),
        (None, {"seed": 1}, None, "run", "give only one of config, resume and single"),
        (None, {}, "new", "run", "give either resume or out"),
        (None, {}, None, None, "out is None; expected a folder that all processes share"),
    ],
)
def test_settings_come_from_one_place(config, settings, out, resume, message):
    with pytest.raises(UserError, match=message):
        check_source(config, settings, out=out, resume=resume, shared=True)


def test_one_source_of_settings_is_accepted():
    check_source("config", {}, out="new", resume=None, shared=False)
    check_source(None, {"seed": 1}, out="new", resume=None, shared=True)
    check_source(None, {}, out=None, resume="run", shared=True)


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


@pytest.mark.parametrize("cell", ["inf", "0.5", "", "9" * 30])
@pytest.mark.parametrize("column", ["update", "seed"])
def test_a_count_that_is_none_is_named(tmp_path, column, cell):
    row = {"update": "1", "seed": "0"} | {column: cell}
    (tmp_path / "t.csv").write_text(f"update,seed\n{row['update']},{row['seed']}\n")
    with pytest.raises(UserError, match=r"t\.csv, line 2: .* is not a 64-bit integer"):
        MetricsFile(tmp_path / "t.csv").columns()
