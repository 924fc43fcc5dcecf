"""Playing trained agents, and opening runs again."""

import dataclasses
import json

import numpy as np
import pytest

import discorl
from discorl.envs import Catch
from discorl.runs import statistics
from discorl.training.evaluation import evaluate

TINY = {"updates": 2, "hidden": (8,), "num_envs": 2, "batch": 2}


@dataclasses.dataclass(frozen=True, eq=False)
class Magnified(Catch):
    """Catch with rewards a hundred times as large; it neither hashes nor compares by value."""

    factor: np.ndarray = dataclasses.field(default_factory=lambda: np.array(100.0, np.float32))
    __hash__ = None

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        return state, dataclasses.replace(step, reward=self.factor * step.reward)


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "own"
    discorl.train(environment=Magnified(4, 4), out=path, **TINY)
    return path


def test_an_environment_of_ones_own_must_be_given_again(own_run):
    with pytest.raises(discorl.UserError, match="its own environment: give it again"):
        evaluate(own_run)
    with pytest.raises(discorl.UserError, match="its own environment: give it again"):
        discorl.train(resume=own_run)


def test_an_environment_of_ones_own_is_played(own_run):
    played = evaluate(own_run, environment=Magnified(4, 4), episodes=6)
    assert set(np.abs(played.returns).ravel()) == {100.0}
    assert (played.lengths == 3).all()
    assert played.unfinished == 0


def test_stopped_episodes_have_no_score(own_run):
    whole, stopped = (
        evaluate(own_run, environment=Magnified(4, 4), episodes=6, max_steps=limit).summary()
        for limit in (None, 2)
    )
    assert (whole["unfinished"], stopped["unfinished"]) == (0, 6)
    assert whole["score"] is not None
    assert [stopped[name] for name in ("score", "score_low", "score_high")] == [None] * 3


def test_a_finished_run_resumes_to_what_it_was(own_run):
    result = discorl.train(resume=own_run, environment=Magnified(4, 4))
    assert result.finished
    assert result.metrics["update"].tolist() == [1, 2]


def test_a_run_of_a_later_version_is_refused_and_one_of_an_earlier_version_is_not(tmp_path):
    discorl.train(env="catch:rows=4,columns=4", out=tmp_path / "run", **TINY)
    file = tmp_path / "run" / "config.json"
    described = json.loads(file.read_text())
    del described["config"]["agent"]["reward_scale"]
    file.write_text(json.dumps(described))
    evaluate(tmp_path / "run")
    described["config"]["later_setting"] = 1
    file.write_text(json.dumps(described))
    with pytest.raises(discorl.UserError, match=r"another version.*'later_setting'"):
        evaluate(tmp_path / "run")


def test_the_interval_of_a_mean_is_that_of_the_normal_law():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=4000)
    found = statistics.estimate(statistics.mean, values[:, None])
    half = 1.96 * values.std() / np.sqrt(values.size)
    np.testing.assert_allclose(
        [found.low, found.high], values.mean() + np.array([-half, half]), atol=0.004
    )


def test_without_replay_the_batch_is_all_fresh_trajectories():
    with pytest.raises(discorl.UserError, match="batch is 8; expected num_envs, 64"):
        discorl.configure("actor_critic", num_envs=64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 2**31}, "seed is"),
        ({"max_gradient_norm": -1.0}, "max_gradient_norm is"),
        ({"log_every": 300, "checkpoint_every": 300}, "log_every is 300; expected at most 256"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(discorl.UserError, match=message):
        discorl.configure(**settings)
