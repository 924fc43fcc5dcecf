"""Training: the same run whatever happens, stopped or killed at any moment; and mistakes."""

import dataclasses
import itertools
import json
import random
import signal
import subprocess
import sys
import time

import discoveries
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from timing import assert_same_tables, untimed

import discorl
from discorl.envs import Catch
from discorl.rules.files import weights
from discorl.runs import memory
from discorl.runs.metrics import EPISODES, LENGTH, RETURN, SPEED, STEP, TOTAL_LOSS, WALL_TIME
from discorl.training import capacity, make_trainer
from discorl.types import UserError

SMALL = {"hidden": (16,), "action_lstm": 4, "action_hidden": (4,)}
TINY = SMALL | {
    "rule": "actor_critic",
    "env": "catch:rows=3,columns=3",
    "num_envs": 2,
    "unroll": 3,
    "batch": 2,
    "replay_fraction": 0.0,
    "updates": 12,
    "checkpoint_every": 6,
}


# --- a discovered rule ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_rule(golden, tmp_path_factory):
    """The golden rule as a file that knows its number of bins."""
    path = tmp_path_factory.mktemp("rules") / "tiny.npz"
    weights.save(path, weights.load(golden / "meta_network.npz"), {"bins": 21})
    return path


def test_a_discovered_rule_runs(tiny_rule, tmp_path):
    settings = TINY | {"rule": str(tiny_rule), "replay_fraction": 0.5, "batch": 4, "replay": 6}
    result = discorl.train(**settings, out=tmp_path / "run")
    assert result.finished
    assert result.metrics["update"].tolist() == list(range(1, 13))
    for name, column in result.metrics.items():
        if name not in ("charts/episodic_return", "charts/episodic_length"):
            assert np.isfinite(column).all(), name
    state = result.state.learner
    assert state.params["action_model"]["q"]["1"]["b"].shape == (21,)
    assert float(jnp.abs(state.rule.meta_rnn.hidden).max()) > 0
    # The run holds the rule, and needs the file it came from no more.
    assert (tmp_path / "run" / "rule.npz").read_bytes() == tiny_rule.read_bytes()


# --- the same run, whatever happens ---------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_run():
    return discorl.train(**TINY)


def test_a_run_is_a_function_of_its_settings(tiny_run):
    again = discorl.train(**TINY)
    discoveries.assert_same(again.state, tiny_run.state)
    discoveries.assert_same(untimed(again.metrics), untimed(tiny_run.metrics))
    other = discorl.train(**TINY | {"seed": 1})
    assert not np.array_equal(other.metrics[TOTAL_LOSS], tiny_run.metrics[TOTAL_LOSS])


def test_the_length_of_calls_changes_nothing(tiny_run, monkeypatch):
    monkeypatch.setattr("discorl.training.config.CALL_SECONDS", 0.0)
    rows = []
    one_by_one = discorl.train(**TINY, track=rows.append)
    assert [len(r) for r in rows] == [1] * 12
    monkeypatch.setattr("discorl.training.config.CALL_SECONDS", 1000.0)
    rows.clear()
    at_once = discorl.train(**TINY, track=rows.append)
    assert [len(r) for r in rows] == [1, 5, 6]
    for result in (one_by_one, at_once):
        discoveries.assert_same(result.state, tiny_run.state)
        discoveries.assert_same(untimed(result.metrics), untimed(tiny_run.metrics))


def test_rows_average_over_several_updates(tiny_run):
    # 12 updates in rows of 5: the last row of each stretch between checkpoints is shorter.
    result = discorl.train(**TINY | {"log_every": 5, "checkpoint_every": 10})
    assert result.metrics["update"].tolist() == [5, 10, 12]
    discoveries.assert_same(result.state, tiny_run.state)
    blocks = [slice(0, 5), slice(5, 10), slice(10, 12)]
    every = tiny_run.metrics
    for row, block in enumerate(blocks):
        assert result.metrics[EPISODES][row] == every[EPISODES][block].sum()
        assert result.metrics[STEP][row] == every[STEP][block][-1]
        np.testing.assert_allclose(
            result.metrics[TOTAL_LOSS][row], every[TOTAL_LOSS][block].mean(), rtol=1e-5
        )
        played = every[EPISODES][block]
        total = np.nansum(every[RETURN][block] * played)
        np.testing.assert_allclose(result.metrics[RETURN][row], total / played.sum(), rtol=1e-5)


def test_several_seeds_are_the_single_runs(tiny_run):
    several = discorl.train(**TINY | {"seeds": 2})
    first = several.metrics["seed"] == 0
    assert first.sum() == 12
    np.testing.assert_allclose(
        several.metrics[TOTAL_LOSS][first],
        tiny_run.metrics[TOTAL_LOSS],
        rtol=1e-3,
        atol=1e-5,
    )
    assert not np.allclose(several.metrics[TOTAL_LOSS][~first], tiny_run.metrics[TOTAL_LOSS])


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_share_of_replay(fraction):
    settings = TINY | {"replay_fraction": fraction, "replay": 7, "updates": 5}
    result = discorl.train(**settings)
    assert result.metrics[STEP][-1] == 5 * 2 * 3
    assert np.isfinite(result.metrics[TOTAL_LOSS]).all()
    buffer = result.state.replay
    if fraction == 0:
        assert buffer is None
    else:
        assert (int(buffer.size), int(buffer.position)) == (7, 10 % 7)


def start(environment, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", "from discorl.cli import main; main()", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"PYTHONUNBUFFERED": "1"},
    )


def checkpoints_of(run):
    return sorted(path.name for path in (run / "checkpoints").glob("*.npz"))


def wait_for_a_new_checkpoint(process, run):
    before = checkpoints_of(run)
    while checkpoints_of(run) == before and process.poll() is None:
        time.sleep(0.01)


INTERRUPTED = {
    "env": "catch:rows=3,columns=3",
    "num_envs": 2,
    "unroll": 3,
    "batch": 4,
    "replay": 10,
    "replay_fraction": 0.5,
    "hidden": (8,),
    "action_lstm": 4,
    "action_hidden": (4,),
    "updates": 400,
    "log_every": 5,
    "checkpoint_every": 20,
}


# One seed and one kill less where programs take long to compile.
@pytest.mark.parametrize(
    ("rule", "seeds", "kills"),
    [("actor_critic", 2, 2), pytest.param("disco", 1, 1, marks=pytest.mark.long)],
)
def test_a_run_that_is_stopped_and_killed_ends_like_one_that_is_not(
    rule, seeds, kills, tiny_rule, tmp_path, users_environment
):
    settings = INTERRUPTED | {"rule": tiny_rule if rule == "disco" else rule, "seeds": seeds}
    arguments = ["train"]
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        arguments += [f"--{name.replace('_', '-')}", *values]
    process = start(users_environment, *arguments, "--out", tmp_path / "whole")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors

    run = tmp_path / "cut"
    pauses = random.Random(0)
    process = start(users_environment, *arguments, "--out", run)
    wait_for_a_new_checkpoint(process, run)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 1, errors
    assert f"stopped; continue with: discorl train --resume {run}" in output
    assert "Traceback" not in errors
    killed = 0
    for attempt in itertools.count():
        assert attempt < 10
        process = start(users_environment, "train", "--resume", run, "--json")
        if killed < kills:
            wait_for_a_new_checkpoint(process, run)
            time.sleep(pauses.uniform(0, 0.1))
            process.kill()
        output, errors = process.communicate(timeout=600)
        killed += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
    assert killed == kills, "the run was over before it could be killed"
    assert json.loads(output)["updates"] == 400
    assert_same_tables(run / "metrics.csv", tmp_path / "whole/metrics.csv")
    last = "checkpoints/00000400.npz"
    with np.load(run / last) as cut, np.load(tmp_path / "whole" / last) as uncut:
        assert cut.files == uncut.files
        for name in cut.files:
            np.testing.assert_array_equal(cut[name], uncut[name], err_msg=name)


def test_time_and_speed_are_logged_over_all_stretches(tmp_path, tiny_run):
    """A stretch goes on where the one before stopped; the result has the time of both."""
    out = tmp_path / "run"
    rows = []

    def stop(new):
        rows.extend(new)
        if rows[-1]["update"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        discorl.train(**TINY | {"checkpoint_every": 2}, out=out, track=stop)
    resumed = discorl.train(resume=out)
    before = [row[WALL_TIME] for row in rows if row["update"] == 2][-1]
    times = resumed.metrics[WALL_TIME]
    assert times[resumed.metrics["update"] == 2][-1] == before > 0
    assert (np.diff(times) >= 0).all()
    assert resumed.seconds == times[-1] > before
    np.testing.assert_allclose(resumed.metrics[SPEED] * times, resumed.metrics[STEP], rtol=1e-6)


def test_resuming_a_finished_run_gives_its_results(tmp_path, tiny_run):
    discorl.train(**TINY, out=tmp_path / "run")
    again = discorl.train(resume=tmp_path / "run")
    assert again.finished
    discoveries.assert_same(again.state, tiny_run.state)
    discoveries.assert_same(again.metrics[TOTAL_LOSS], tiny_run.metrics[TOTAL_LOSS])


def test_checkpoints_stay_at_their_multiples_after_a_stop(tmp_path, monkeypatch):
    run = tmp_path / "run"
    monkeypatch.setattr("discorl.training.config.CALL_SECONDS", 0.0)
    stop = lambda rows: signal.raise_signal(signal.SIGINT)  # noqa: E731
    with pytest.raises(
        KeyboardInterrupt, match=r"stopped; continue with resume='.*/run'"
    ) as caught:
        discorl.train(**TINY, out=run, track=stop)
    assert not caught.value.result.finished
    assert checkpoints_of(run) == ["00000001.npz"]
    seen = []
    discorl.train(resume=run, track=lambda rows: seen.extend(checkpoints_of(run)[-1:]))
    assert list(dict.fromkeys(seen)) == ["00000001.npz", "00000006.npz"]
    assert checkpoints_of(run)[-1] == "00000012.npz"


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"updates": 0}, "updates is 0; expected from 1 to"),
        ({"seed": -1}, "seed is -1; expected from 0 to"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"discount": 1.5}, "discount is 1.5; expected from 0 to 1"),
        ({"frame_stack": 10**6}, "frame_stack is 1000000; expected from 1 to 1024"),
        ({"updates": 10**23}, "updates is 100000000000000000000000; expected from 1 to"),
        ({"hidden": (4, 0)}, "hidden is .*integers of at least 1"),
        ({"log_every": 3, "checkpoint_every": 10}, "a multiple of log_every"),
        ({"batch": 9, "replay_fraction": 0.0, "num_envs": 2}, "needs 9 fresh trajectories"),
        ({"replay": 1, "replay_fraction": 1.0}, "replay is 1; expected at least num_envs, 4"),
        ({"learning_rte": 1.0}, "no setting 'learning_rte'; did you mean 'learning_rate'"),
        ({"preset": "atri"}, "no preset 'atri'; did you mean 'atari'"),
        ({"rule": "actor-critic"}, "no rule 'actor-critic'; did you mean 'actor_critic'"),
        ({"rule": "ppo:epoch=2"}, "no parameter 'epoch', did you mean 'epochs'"),
        ({"env": "cach"}, "no environment 'cach'; did you mean 'catch'"),
        ({"env": "catch:rows=1"}, "catch: rows is 1; expected at least 2"),
        (
            {"rule": "ppo", "batch": 6, "num_envs": 6},
            "batch is 6; expected a multiple of the 4 minibatches",
        ),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        discorl.train(**settings)


def test_a_replay_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"replay is 1000000000: this many .* memory are available"):
        discorl.train(**TINY | {"replay": 10**9, "replay_fraction": 1.0}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # Atari's frames: 29 moments and 3 before them, 84 x 84 bytes each, in 60,689 trajectories.
    config = discorl.configure(env="atari:Pong")
    frames = jax.ShapeDtypeStruct((config.agent.replay, 32, 84, 84), jnp.uint8)
    trainer = make_trainer(discorl.configure(**TINY))
    state = dataclasses.replace(jax.eval_shape(trainer.init), replay=frames)
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    with pytest.raises(UserError, match=r"take 12.8 GiB, and 1.0 GiB .* `--preset atari_small`"):
        capacity.check_state(config, state)
    monkeypatch.setattr(memory, "available", lambda: 13 * 2**30)
    capacity.check_state(config, state)
    capacity.check_state(config, dataclasses.replace(state, replay=None))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": (10**9,)}, r"hidden is \(1000000000,\): the network and its optimiser take"),
        ({"seeds": 10**8}, r"seeds is 100000000: this many agents take .* expected at most \d+"),
        ({"unroll": 10**8}, "an update with unroll 100000000, batch"),
        ({"env": "catch:rows=1000000,columns=1000000"}, r"hidden is \(16,\): the network"),
    ],
)
def test_sizes_that_cannot_fit_are_refused_at_once(settings, message, tmp_path):
    fresh = {"replay_fraction": 0.0, "batch": 2, "num_envs": 2}
    with pytest.raises(UserError, match=message):
        discorl.train(**TINY | fresh | settings, out=tmp_path / "run")


def test_memory_is_read():
    assert 2**20 < memory.available() < 2**50


def test_settings_come_from_one_place():
    with pytest.raises(UserError, match="give only one of config, resume"):
        discorl.train(discorl.TrainConfig(), updates=3)
    with pytest.raises(UserError, match="either resume or out"):
        discorl.train(resume="a", out="b")


def test_an_existing_directory_is_not_overwritten(tmp_path):
    discorl.train(**TINY | {"updates": 1}, out=tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert before
    with pytest.raises(UserError, match=r"/run already holds a run; resume it with"):
        discorl.train(**TINY | {"updates": 1}, out=tmp_path / "run")
    assert before == {path: path.read_bytes() for path in before}


class Poisoned(Catch):
    """Catch whose observations are no numbers, from the second step of an episode on."""

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        return state, dataclasses.replace(step, observation=step.observation * jnp.nan)


def test_a_loss_that_is_no_number_is_told_once(capsys):
    settings = TINY | {"updates": 6, "seeds": 2, "environment": Poisoned(4, 4)}
    assert discorl.train(**settings).lost.all()
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["seed 0", "seed 1"]
    assert "the loss is not a finite number at update" in said[0]


def test_an_environment_of_the_users_own():
    result = discorl.train(environment=Catch(rows=3, columns=3), **TINY | {"env": "mine"})
    assert result.finished
    # An episode of this Catch, and of none by name, is two steps long.
    assert set(result.metrics[LENGTH][result.metrics[EPISODES] > 0]) == {2.0}
