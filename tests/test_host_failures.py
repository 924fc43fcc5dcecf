"""Environments on the host that fail: what is said of them, what is saved, and their checker."""

import dataclasses
import re
import threading

import jax
import numpy as np
import pytest
from clocks import LIFE, TINY, Clock, Clocks, rollouts

import discorl
from discorl import cli, envs
from discorl.envs import conformance
from discorl.envs.host import EnvironmentFailure, HostVector
from discorl.envs.host.base import check_observation
from discorl.envs.host.serial import SerialVector

# --- runs -----------------------------------------------------------------------------------------

FAILS_AT = 13  # a step of the third rollout


class Faulty(Clock):
    steps = 0

    def step(self, action):
        self.steps += 1
        outcome = super().step(action)
        return self.fail(*outcome) if self.steps == FAILS_AT else outcome


class Raises(Faulty):
    def fail(self, *outcome):
        raise ValueError("out of coffee")


class NotANumber(Faulty):
    def fail(self, seen, *outcome):
        return seen * np.nan, *outcome


class InfiniteReward(Faulty):
    def fail(self, seen, reward, *outcome):
        return seen, np.inf, *outcome


class WrongShape(Faulty):
    def fail(self, seen, *outcome):
        return seen[:1], *outcome


class Hangs(Faulty):
    let_go = threading.Event()

    def fail(self, *outcome):
        self.let_go.wait(60)
        return outcome


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Raises, r"environment 0 \(seed \d+\) failed at step 1\d: it raised ValueError: out of"),
        (NotANumber, r"environment 0 \(seed \d+\) failed at step 1\d: it returned NaN or infinity"),
        (InfiniteReward, r"environment 0 .* NaN or infinity in a reward"),
        (
            WrongShape,
            r"environment 0 \(seed \d+\) failed at step 1\d: it returned an observation of "
            r"shape \(1,\); expected \(2,\)",
        ),
        (
            Hangs,
            r"one of the environments \(seeds \d+ to \d+\) failed .* did not answer within 1 s",
        ),
    ],
)
def test_a_failing_environment_ends_the_run_after_a_checkpoint(make, message, tmp_path):
    environment = Clocks(make, timeout=1.0 if make is Hangs else 60.0)
    settings = TINY | {"checkpoint_every": 100, "updates": 50, "batch": 2, "replay_fraction": 0.0}
    with pytest.raises(EnvironmentFailure, match=f"clocks: {message}") as caught:
        discorl.train(**settings, environment=environment, out=tmp_path / "run")
    if make is Hangs:
        Hangs.let_go.set()  # the thread can end
    assert "saved as of update 2; continue with" in str(caught.value)
    assert [path.stem for path in (tmp_path / "run/checkpoints").iterdir()] == ["00000002"]


class FailsAtOnce(Clock):
    def step(self, action):
        raise ValueError("not today")


def test_nothing_is_said_to_be_saved_where_nothing_is(tmp_path):
    with pytest.raises(EnvironmentFailure, match="not today") as caught:
        discorl.train(**TINY, environment=Clocks(FailsAtOnce), out=tmp_path / "run")
    assert "saved" not in str(caught.value)


class Poisoned(NotANumber):
    def step(self, action):
        if self.steps == FAILS_AT:
            raise ValueError("all is lost")
        return super().step(action)


def test_the_first_thing_that_went_wrong_is_reported():
    """NaN and, in the step after it, an error; two calls before were resets."""
    message = rf"environment 0 \(seed \d+\) failed at step {FAILS_AT + 2}: it returned NaN"
    with pytest.raises(EnvironmentFailure, match=message):
        rollouts(Clocks(Poisoned), length=7)


def test_an_environment_that_cannot_start():
    class Broken(Clock):
        def reset(self, seed):
            raise OSError("no display")

    with pytest.raises(EnvironmentFailure, match=r"environment 0 .* at the start.*no displ"):
        discorl.train(**TINY, environment=Clocks(Broken))


def test_environments_are_closed_if_a_later_one_cannot_be_made():
    made, closed = [], []

    class Third(Clock):
        def __init__(self):
            if len(made) == 2:
                raise OSError("no more")
            made.append(self)

        def close(self):
            closed.append(self)

    with pytest.raises(OSError, match="no more"):
        SerialVector(Third, [1, 2, 3])
    assert closed == made
    assert len(made) == 2


# --- observations ---------------------------------------------------------------------------------


def test_observations_of_another_structure():
    class Nested(Clock):
        def observe(self):
            return {"time": super().observe()}

    with pytest.raises(
        EnvironmentFailure, match=r"environment 0 \(seed \d+\) failed at the start.*structure"
    ):
        discorl.train(**TINY, environment=Clocks(Nested))


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), {"time": np.zeros(2, np.float32)}])
def test_the_one_environment_that_differs_from_the_others_is_named(wrong):
    class Odd(Clock):
        def step(self, action):
            return (wrong, *super().step(action)[1:]) if action else super().step(action)

    vector = SerialVector(Odd, [5, 6, 7])
    vector.reset()
    vector.step(np.array([0, 0, 0]))
    with pytest.raises(EnvironmentFailure, match=r"returned an .* expected shape \(2,\)") as caught:
        vector.step(np.array([0, 1, 0]))
    assert caught.value.index == 1
    declared = SerialVector(Odd, [5], observation=jax.ShapeDtypeStruct((2,), np.float32))
    declared.reset()  # and with one environment, it is what was declared that tells
    with pytest.raises(EnvironmentFailure) as caught:
        check_observation(declared.step(np.array([1])).observation, declared._expected, count=1)
    assert caught.value.index == 0


def test_the_one_environment_that_cannot_be_read_is_named():
    def read(found):
        if (found[:, 1] > LIFE).any():
            raise KeyError("too late")
        return {"now": found[:, 1:], "before": found[:, 1:] - 1}

    class Late(Clock):
        def step(self, action):
            self.time += action  # beside the one of every step
            return super().step(action)

    vector = SerialVector(Late, [5, 6], read=read)
    np.testing.assert_array_equal(vector.reset()["now"], [[1], [1]])
    seen = vector.step(np.array([0, 1])).observation
    np.testing.assert_array_equal(seen["now"], [[2], [3]])
    np.testing.assert_array_equal(seen["before"], [[1], [2]])
    with pytest.raises(EnvironmentFailure, match="raised KeyError: 'too late'") as caught:
        vector.step(np.array([0, 0]))
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("found", "dtype", "message"),
    [
        (np.full((2, 3), 0.5), np.uint8, r"of float64; declared is uint8"),
        (np.full((2, 3), np.nan, np.float32), np.int32, r"of float32; declared is int32"),
        (np.array([[1] * 3, [300] * 3]), np.uint8, r"of int64 from 300 to 300; declared is uint8"),
        (np.array([[1] * 3, [-1] * 3]), np.uint8, r"from -1 to -1; declared is uint8"),
        (np.array([[1] * 3, [2] * 3]), np.bool_, r"from 2 to 2; declared is bool"),
        ([[1, 2, 255], [0, 0, 0]], np.uint8, None),
        (np.full((2, 3), 7, np.int64), np.float32, None),
        (np.full((2, 3), 0.5), np.float32, None),
        (np.full((2, 3), 1), np.bool_, None),
        (np.full((2, 3), True), np.uint8, None),
    ],
)
def test_numbers_are_of_the_kind_that_was_declared(found, dtype, message):
    like = jax.ShapeDtypeStruct((3,), dtype)
    if message is None:
        seen = check_observation(found, like, 2)
        assert seen.dtype == dtype
        np.testing.assert_array_equal(seen, found)
        return
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        check_observation(found, like, 2)
    # Of values, the second row's; of dtypes, any row's.
    assert caught.value.index == (1 if "from" in message else 0)


# --- the checker ----------------------------------------------------------------------------------


class Tuples(HostVector):
    """Steps as Gymnasium has them, not as `HostStep`."""

    def __init__(self, clocks):
        self.vector = clocks

    def reset(self):
        return self.vector.reset()

    def step(self, action):
        return tuple(vars(self.vector.step(action)).values())


@dataclasses.dataclass(frozen=True)
class OfTuples(Clocks):
    def start(self, count, seed, *, render=False):
        return Tuples(super().start(count, seed))


class NoReset(Clock):
    def reset(self, seed):
        raise OSError("no display")


@pytest.mark.parametrize(
    ("environment", "detail"),
    [
        (Clocks(Raises), r"step raised ValueError: out of coffee at step 15, seed \d+ \(env.* 0\)"),
        (Clocks(NoReset), r"reset raised OSError: no display, seed \d+ \(environment 0\)"),
        (
            Clocks(Hangs, timeout=1.0),
            r"step did not answer within 1 s at step 15, one of the seeds",
        ),
        (OfTuples(), r"step returned a tuple at step 1; expected a HostStep"),
    ],
)
def test_the_checker_reports_what_an_environment_does_wrong(environment, detail):
    Hangs.let_go.clear()
    *_, failed = conformance.check(environment, steps=20, count=2)
    Hangs.let_go.set()
    assert not failed.ok
    assert re.match(detail, failed.detail), failed.detail


@dataclasses.dataclass(frozen=True)
class Unseeded(Clocks):
    deterministic = False


def test_the_checker_says_what_it_leaves_out(capsys, monkeypatch):
    findings = {finding.check: finding for finding in conformance.check(Unseeded(), steps=20)}
    for check in ("determinism", "by hand"):
        assert findings[check].verdict == "not checked"
        assert findings[check].detail.startswith("the environment declares that the same seed")
    assert findings["types"].verdict == "ok"
    monkeypatch.setitem(envs.REGISTRY, "unseeded", Unseeded)
    with pytest.raises(SystemExit):
        cli.main(["envs", "check", "unseeded", "--steps", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("not checked ") for line in lines) == 2
