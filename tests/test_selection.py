"""Evaluation during training: which agents are kept, and how they come back."""

import dataclasses
import functools

import discoveries
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from timing import untimed

import discorl
from discorl.envs.host import EnvironmentFailure
from discorl.runs import Run
from discorl.runs.metrics import BEST_RETURN, RETURN, STEP, WALL_TIME
from discorl.training import selection
from discorl.training.loading import load_params
from discorl.training.selection import _KEY, Best
from discorl.types import UserError

TINY = {
    "rule": "actor_critic",
    "env": "catch:rows=3,columns=3",
    "learning_rate": 0.1,
    "hidden": (8,),
    "num_envs": 2,
    "unroll": 3,
    "batch": 2,
    "replay_fraction": 0.0,
    "updates": 5,
    "checkpoint_every": 3,
    "eval_every": 2,
    "eval_episodes": 16,
    "seeds": 2,
}


def test_each_seed_keeps_its_own_best():
    first = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(2)}
    best = Best.none_yet(first, seeds=2)
    now = {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}
    best = best.or_better(now, np.array([1.0, 5.0]), 10)
    later = {"w": jnp.full((2, 3), 2.0), "b": jnp.full(2, 2.0)}
    best = best.or_better(later, np.array([3.0, 5.0]), 20)  # an equal return changes nothing
    assert best.params["w"].tolist() == [[2, 2, 2], [1, 1, 1]]
    assert best.params["b"].tolist() == [2, 1]
    assert best.mean_return.tolist() == [3, 5]
    assert best.update.tolist() == [20, 10]


def test_a_single_agent_has_no_axis_of_seeds():
    best = Best.none_yet({"w": jnp.zeros(3)}, seeds=1)
    for update, value in ((1, -2.0), (2, -3.0)):
        best = best.or_better({"w": jnp.full(3, float(update))}, np.array([value]), update)
    assert best.params["w"].tolist() == [1, 1, 1]
    assert best.update.tolist() == [1]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return discorl.train(**TINY, out=tmp_path_factory.mktemp("runs") / "run")


def test_evaluations_are_logged_and_the_best_of_them_is_kept(result):
    found = result.evaluations
    assert found["update"].tolist() == [2, 2, 4, 4, 5, 5]  # and at the end
    assert found["seed"].tolist() == [0, 1] * 3
    np.testing.assert_array_equal(found[STEP], result.metrics[STEP][[2, 3, 6, 7, 8, 9]])
    returns = found[RETURN].reshape(3, 2)
    np.testing.assert_array_equal(found[BEST_RETURN].reshape(3, 2), np.maximum.accumulate(returns))
    assert result.best.mean_return.tolist() == returns.max(axis=0).tolist()
    assert result.best.update.tolist() == np.array([2, 4, 5])[returns.argmax(axis=0)].tolist()
    assert result.seconds >= found[WALL_TIME][-1] > result.metrics[WALL_TIME][-1]


def test_the_best_agents_play_as_they_were_evaluated(result):
    """With the key of each one's evaluation, they repeat its return."""
    for seed in (0, 1):
        key = jax.random.fold_in(jax.random.key(0), _KEY)
        key = jax.random.fold_in(key, int(result.best.update[seed]))
        played = result.trainer.play(result.best.params, key, episodes=16)
        assert played.returns[seed].mean() == result.best.mean_return[seed]


def test_the_best_agents_can_be_loaded_and_evaluated(result):
    _, update, params = load_params(result.path, best=True)
    discoveries.assert_same(params, result.best.params)
    assert update == int(result.best.update.max())
    policy = discorl.load_agent(result.path, seed=1, best=True)
    discoveries.assert_same(policy.params, jax.tree.map(lambda x: x[1], result.best.params))
    one, two = (discorl.evaluate(x, best=True, episodes=4) for x in (result, result.path))
    np.testing.assert_array_equal(one.returns, two.returns)
    assert one.update == two.update == update


def test_a_resumed_run_keeps_the_same_best(result, tmp_path):
    def stop(rows):
        if rows[-1]["update"] == 5:  # as a kill: the evaluation of update 4 is lost, too
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        discorl.train(**TINY, out=tmp_path / "run", track=stop)
    resumed = discorl.train(resume=tmp_path / "run")
    discoveries.assert_same(resumed.best, result.best)
    discoveries.assert_same(resumed.state, result.state)
    discoveries.assert_same(untimed(resumed.evaluations), untimed(result.evaluations))


@pytest.mark.parametrize("update", [4, 5])
def test_an_evaluation_that_failed_is_made_up_on_resume(update, result, tmp_path, monkeypatch):
    """In the middle of a run, where it fails twice, and at its end."""
    evaluate, failures = selection.evaluate, [update] * (6 - update)

    def fail(trainer, state, now, best):
        if now in failures:
            failures.remove(now)
            raise EnvironmentFailure("out of coffee")
        return evaluate(trainer, state, now, best)

    monkeypatch.setattr(selection, "evaluate", fail)
    where = {"out": tmp_path / "run"}
    while failures:
        with pytest.raises(EnvironmentFailure, match=f"saved as of update {update}"):
            discorl.train(**where if "resume" in where else TINY | where)
        where = {"resume": tmp_path / "run"}
    resumed = discorl.train(**where)
    discoveries.assert_same(resumed.best, result.best)
    discoveries.assert_same(untimed(resumed.evaluations), untimed(result.evaluations))
    discoveries.assert_same(load_params(resumed.path, best=True)[2], result.best.params)


def test_a_run_without_evaluations_has_no_best_agent(result, tmp_path):
    with pytest.raises(UserError, match="train with eval_every"):
        dataclasses.replace(result, best=None).policy(best=True)
    untrained = Best.none_yet(result.state.learner.params, seeds=2)
    stopped = dataclasses.replace(result, best=untrained)
    for use in (stopped.policy, functools.partial(discorl.evaluate, stopped)):
        with pytest.raises(UserError, match="the run has no best agent yet: no evaluation has"):
            use(best=True)
    config = dataclasses.replace(result.config, eval_every=0)
    Run.create(tmp_path / "run", config.as_dict()).close()
    with pytest.raises(UserError, match=r"has no best agent: it was trained without --eval-every"):
        discorl.evaluate(tmp_path / "run", best=True)


def test_evaluations_come_at_whole_rows():
    with pytest.raises(UserError, match=r"eval_every is 3; expected a multiple of log_every, 2"):
        discorl.configure(eval_every=3, log_every=2, checkpoint_every=4)


def test_playing_again_compiles_nothing(result, monkeypatch):
    monkeypatch.setattr(jax, "jit", lambda *_, **__: pytest.fail("a program was made"))
    result.trainer.play(result.best.params, jax.random.key(0), episodes=16)
