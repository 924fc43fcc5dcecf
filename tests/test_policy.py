"""Trained agents in Python: policies, evaluation of results, and runs that start from others."""

import dataclasses
import json
import signal

import discoveries
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discorl
from discorl import cli
from discorl.runs import checkpoints
from discorl.training.loading import PARAMS, load_params
from discorl.training.warm_start import start_from

KEY = jax.random.key(11)
ENV = "memory:cues=3,delay=3"
TINY = {
    "env": ENV,
    "rule": "actor_critic",
    "num_envs": 4,
    "batch": 8,
    "replay": 16,
    "replay_fraction": 0.5,
    "unroll": 5,
    "hidden": (8,),
    "lstm": 6,
    "frame_stack": 3,
    "seeds": 2,
    "updates": 4,
    "checkpoint_every": 2,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return discorl.train(**TINY, out=tmp_path_factory.mktemp("policy") / "run")


def enlarged(params):
    """Large weights without biases, so that memory and frames matter for every action."""

    def draw(path, leaf):
        number = sum(map(ord, jax.tree_util.keystr(path)))
        weights = 2 * jax.random.normal(jax.random.fold_in(KEY, number), leaf.shape)
        return weights * (path[-1].key != "b")

    return jax.tree.map_with_path(draw, params)


def walk(environment, policy, key, episodes, steps, greedy):
    """Actions [steps, episodes] and observations, with the random numbers that `play` draws."""
    reset_key, key = jax.random.split(key)
    env_state, seen = jax.vmap(environment.reset)(jax.random.split(reset_key, episodes))
    state, total, over = policy.init(batch=episodes), 0.0, np.zeros(episodes, bool)
    actions = []
    for step in range(steps):
        act_key, step_key = jax.random.split(jax.random.fold_in(key, step))
        action, state = policy(seen, state, None if greedy else act_key)
        keys = jax.random.split(step_key, episodes)
        env_state, found = jax.vmap(environment.step)(env_state, action, keys)
        total = total + np.where(over, 0, found.reward)
        over = over | np.asarray(found.terminated | found.truncated)
        seen = found.observation
        actions.append(np.asarray(action))
    return np.array(actions), total


@pytest.mark.parametrize("greedy", [True, False])
def test_a_policy_acts_as_the_agent_plays(result, greedy):
    """With an LSTM and stacked frames, whose state the policy and the trainer keep differently."""
    trainer, episodes = result.trainer, 40
    params = enlarged(result.state.learner.params)
    played = trainer.play(params, KEY, episodes=episodes, greedy=greedy)
    steps = int(played.lengths.max())
    for i, key in enumerate(jax.random.split(KEY, 2)):
        one = jax.tree.map(lambda x, i=i: x[i], params)
        policy = dataclasses.replace(result.policy(seed=i), params=one)
        actions, total = walk(trainer.environment, policy, key, episodes, steps, greedy)
        np.testing.assert_array_equal(total, played.returns[i])
        assert len(np.unique(actions)) > 1


def test_policies_of_a_result_and_of_its_run_are_the_same(result):
    observation = np.ones((7, *result.trainer.environment.observation.shape))
    for seed in (None, 0, 1):
        here, there = result.policy(seed), discorl.load_agent(result.path, seed=seed)
        discoveries.assert_same(here.params, there.params)
        one, two = (policy(observation, key=KEY) for policy in (here, there))
        discoveries.assert_same(one, two)
    one, two = (result.policy(seed).params for seed in (0, 1))
    assert any(jax.tree.leaves(jax.tree.map(lambda x, y: bool((x != y).any()), one, two)))
    with pytest.raises(discorl.UserError, match="seed is 2; expected one from 0 to 1"):
        result.policy(2)


def test_one_observation_is_a_batch_of_one(result):
    policy = dataclasses.replace(result.policy(), params=enlarged(result.policy().params))
    rows = jax.random.normal(KEY, (6, *policy.observation.shape))
    single, batched = policy.init(), policy.init(batch=1)
    for row in rows:
        action, single = policy(row, single)
        actions, batched = policy(row[None], batched)
        assert (action.shape, actions.shape, action.dtype) == ((), (1,), jnp.int32)
        assert action == actions[0]
        discoveries.assert_same(single, batched)
    with pytest.raises(discorl.UserError, match=r"shape \(2, 2\); expected .* for a batch of N"):
        policy(np.zeros((2, 2)))
    with pytest.raises(discorl.UserError, match="observation is a PyTreeDef"):
        policy({"pixels": rows[0]})


def test_a_policy_starts_anew_where_episodes_ended(result):
    policy = result.policy()
    rows = jax.random.normal(KEY, (3, 2, *policy.observation.shape))
    state = policy.init(batch=2)
    for row in rows[:2]:
        _, state = policy(row, state)
    _, kept = policy(rows[2], state)
    _, reset = policy(rows[2], policy.reset(state, jnp.array([True, False])))
    _, fresh = policy(rows[2], policy.init(batch=2))
    for i, expected in enumerate((fresh, kept)):
        np.testing.assert_array_equal(reset.recurrent_state[0][i], expected.recurrent_state[0][i])
        assert reset.recent.age[i] == expected.recent.age[i]
    assert np.any(kept.recurrent_state[0][0] != fresh.recurrent_state[0][0])


def test_a_policy_goes_into_a_scan(result):
    policy = result.policy()
    rows = jax.random.normal(KEY, (5, *policy.observation.shape))

    def step(state, row):
        action, state = policy(row, state)
        return state, action

    actions = jax.jit(lambda rows: jax.lax.scan(step, policy.init(), rows)[1])(rows)
    state, expected = policy.init(), []
    for row in rows:
        action, state = policy(row, state)
        expected.append(int(action))
    assert actions.tolist() == expected


def test_a_result_is_evaluated_like_its_run(result):
    here = discorl.evaluate(result, episodes=5)
    there = discorl.evaluate(result.path, episodes=5)
    np.testing.assert_array_equal(here.returns, there.returns)
    assert here.returns.shape == (2, 5)
    assert here.update == there.update == 4


# --- a run that starts from another ---------------------------------------------------------------


def test_a_run_starts_from_another_ones_parameters(result):
    """With a fresh optimiser and replay, also where one agent becomes several."""
    config = dataclasses.replace(result.config, seeds=2, seed=7)
    trainer = discorl.make_trainer(config)
    fresh, state = trainer.init(), start_from(trainer, result.path)
    discoveries.assert_same(state.learner.params, load_params(result.path)[2])
    unchanged = dataclasses.replace(
        state, learner=dataclasses.replace(state.learner, params=fresh.learner.params)
    )
    discoveries.assert_same(unchanged, fresh)


def test_a_single_agent_starts_several(tmp_path):
    few = TINY | {"seeds": 1, "updates": 2}
    one = discorl.train(**few, out=tmp_path / "one")
    trainer = discorl.make_trainer(discorl.configure(**few | {"seeds": 2}))
    state = start_from(trainer, tmp_path / "one")
    for i in range(2):
        params = jax.tree.map(lambda x, i=i: x[i], state.learner.params)
        discoveries.assert_same(params, one.state.learner.params)


def test_a_started_run_that_was_stopped_resumes_from_where_it_started(
    result, tmp_path, monkeypatch
):
    whole = discorl.train(**TINY, start=result.path, out=tmp_path / "whole")
    assert np.any(whole.metrics["losses/total"] != result.metrics["losses/total"])
    monkeypatch.setattr("discorl.training.config.CALL_SECONDS", 0.0)
    stop = lambda rows: signal.raise_signal(signal.SIGINT)  # noqa: E731
    with pytest.raises(KeyboardInterrupt) as caught:
        discorl.train(**TINY, start=result.path, out=tmp_path / "cut", track=stop)
    newest = f"{caught.value.result.updates:08d}.npz"
    (tmp_path / "cut" / "checkpoints" / newest).unlink()  # back to the start
    again = discorl.train(resume=tmp_path / "cut", accept_changes=True)
    np.testing.assert_array_equal(again.metrics["losses/total"], whole.metrics["losses/total"])
    discoveries.assert_same(again.state, whole.state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hidden": (9,)},
            r"network of .* does not fit: .*float32\[2,14,24\], expected float32\[2,15,24\]",
        ),
        ({"env": "memory:cues=4,delay=3"}, "does not fit"),
        ({"seeds": 3}, "seeds is 3, and .* has 2 agents to start from; expected seeds=2"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(result, changes, message):
    with pytest.raises(discorl.UserError, match=message):
        discorl.train(**TINY | changes, start=result.path)


def test_a_resumed_run_has_no_other_start(result):
    with pytest.raises(discorl.UserError, match="give either resume or start"):
        discorl.train(resume=result.path, start=result.path)


# --- what a run records ---------------------------------------------------------------------------


def test_a_run_records_the_environment_that_it_was_given(tmp_path):
    environment = discorl.make_environment("catch:rows=4,columns=4")
    small = {"rule": "actor_critic", "num_envs": 2, "batch": 2, "hidden": (8,), "updates": 1}
    run = discorl.train(environment=environment, out=tmp_path / "run", **small)
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert recorded["env"] == run.config.env == "discorl.envs.catch:Catch"


def test_from_on_the_command_line(result, tmp_path, capsys):
    options = {name.replace("_", "-"): value for name, value in TINY.items()}
    options |= {"hidden": 8, "updates": 2, "from": result.path, "out": tmp_path / "run"}
    arguments = [str(x) for name, value in options.items() for x in (f"--{name}", value)]
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", *arguments])
    assert exit_.value.code == 0, capsys.readouterr().err
    started = dataclasses.replace(result.config, updates=2)
    expected = start_from(discorl.make_trainer(started), result.path)
    stored = checkpoints.restore(
        tmp_path / "run" / "checkpoints" / "00000000.npz", expected.learner.params, PARAMS
    )
    discoveries.assert_same(stored, expected.learner.params)
