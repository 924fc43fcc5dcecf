"""Discovery: agents that begin anew, and runs that can be killed."""

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discoveries import (
    CONFIG,
    ETA,
    RULE,
    TINY,
    assert_same,
    assert_same_runs,
    outcome,
    poisoned,
    sharing_programs,
    table,
)
from timing import untimed

import discorl
from discorl.discovery import loop, methods
from discorl.discovery.population import Population
from discorl.discovery.start import keys_of, starting_rule
from discorl.rules.files import weights
from discorl.runs import npz
from discorl.runs.metrics import RETURN, SCORE, WALL_TIME
from discorl.types import UserError


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    with sharing_programs():
        yield


# --- lives ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def population(shared_programs):
    return methods.Population(CONFIG, RULE)


def at(state, agent):
    return jax.tree.map(lambda x: x[agent], state.blocks[0])


def test_an_agent_at_the_end_of_its_budget_begins_anew(population):
    def budgets(state, *values):
        group = dataclasses.replace(state.blocks[0], budget=jnp.array(values, jnp.int32))
        return dataclasses.replace(state, blocks=(group,))

    def two_steps(first):
        state = population.init(ETA, jax.random.key(0))
        state, _, _ = population.meta_step(budgets(state, 10**6, 10**6))
        return population.meta_step(budgets(state, first, 10**6))

    on, _, metrics = two_steps(10**6)
    assert (
        metrics["life/steps"].tolist() == [2 * 2 * 2 * 3] * 2
    )  # meta-steps, window, environments, T
    assert metrics["life/number"].tolist() == [0, 0]
    over, _, metrics = two_steps(24)
    assert metrics["life/number"].tolist() == [0, 0], "of the life that was lived"
    # Nobody else is touched: neither the other agent, nor the rule, nor any Adam.
    assert_same(at(over, 1), at(on, 1))
    assert_same((over.eta, over.optimizers, over.dropped), (on.eta, on.optimizers, on.dropped))
    old, new = at(on, 0), at(over, 0)
    assert (int(old.lives), int(new.lives)) == (0, 1)
    assert int(new.budget) in CONFIG.lifetimes
    assert int(new.training.steps) == int(new.training.learner.updates) == 0
    assert int(new.training.replay.size) == 0
    assert not any(np.any(x) for x in jax.tree.leaves(new.training.learner.rule.meta_rnn))
    assert np.any(old.training.learner.rule.meta_rnn.hidden)
    for optimizer in (new.training.learner.optimizer, new.meta_value.optimizer):
        assert not any(np.any(x) for x in jax.tree.leaves(optimizer.inner_state))
    assert_same(new.training.learner.target_params, new.training.learner.params)
    assert not np.array_equal(new.task.means, old.task.means)
    # It is, all of it, what the agent's own key makes.
    assert_same(new, jax.jit(population.groups[0].begin)(old.key, jnp.int32(1)))


def one_poisoned(population, part):
    """The second agent of a population with a NaN in its learner or its meta-value function."""
    state = population.init(ETA, jax.random.key(0))
    agents = [jax.tree.map(lambda x, i=i: x[i], state.blocks[0]) for i in range(2)]
    if part == "learner":
        learner = agents[1].training.learner
        learner = dataclasses.replace(learner, params=poisoned(learner.params))
        changed = {"training": dataclasses.replace(agents[1].training, learner=learner)}
    else:
        value = agents[1].meta_value
        changed = {"meta_value": dataclasses.replace(value, params=poisoned(value.params))}
    agents[1] = dataclasses.replace(agents[1], budget=jnp.int32(10**6), **changed)
    agents[0] = dataclasses.replace(agents[0], budget=jnp.int32(10**6))
    group = jax.tree.map(lambda *leaves: jnp.stack(leaves), *agents)
    return dataclasses.replace(state, blocks=(group,))


@pytest.mark.parametrize("part", ["learner", "meta_value"])
def test_an_agent_whose_parameters_are_no_numbers_begins_anew(population, part):
    state, whole, by_agent = population.meta_step(one_poisoned(population, part))
    assert by_agent["life/finite"].tolist() == [True, False]
    assert by_agent["meta/dropped"].tolist() == [0, 1]
    assert int(whole["meta/kept"]) == 1
    assert state.blocks[0].lives.tolist() == [0, 1]
    state, whole, by_agent = population.meta_step(state)
    assert by_agent["life/finite"].tolist() == [True, True]
    assert by_agent["meta/dropped"].tolist() == [0, 1]
    assert int(whole["meta/kept"]) == 2
    assert by_agent["life/number"].tolist() == [0, 1]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.eta, state.optimizers)))


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shared_programs):
    return discorl.discover(**TINY, out=tmp_path_factory.mktemp("whole") / "run")


def test_members_of_a_family_share_a_program(shared_programs):
    scoring = loop.Scoring(CONFIG, RULE, keys_of(CONFIG).scoring)
    one, two = scoring._programs.values()
    assert one is two


def test_what_a_run_leaves_behind(whole):
    assert whole.finished
    names = {path.name for path in whole.path.iterdir()}
    assert names >= {"config.json", "versions.json", "curve.png", "rule.npz", "best.npz"}
    metrics, agents = table(whole.path, "metrics"), table(whole.path, "agents")
    assert [row["update"] for row in metrics] == [str(i + 1) for i in range(8)]
    assert [(row["update"], row["agent"], row["group"]) for row in agents[:3]] == [
        ("1", "0", "0"),
        ("1", "1", "0"),
        ("2", "0", "0"),
    ]
    np.testing.assert_array_equal(
        whole.metrics["charts/episodic_return/bandit"], whole.metrics[RETURN]
    )
    assert (whole.metrics["life/finite"] == 1).all()
    parts = [f"meta/{name}" for name in ("policy_gradient", "entropy_penalty", "target_penalty")]
    total = sum(whole.metrics[name] for name in parts)
    np.testing.assert_allclose(total, whole.metrics["meta/loss"], rtol=1e-5)
    assert int(metrics[-1]["life/number"]) > 0, "someone should have begun anew"
    for name in (
        RETURN,
        "meta/loss",
        "meta/gradient_norm",
        "meta/gradient_cosine",
        "policy/entropy",
    ):
        assert np.isfinite(whole.metrics[name]).all(), name
    norms = [float(row["meta/gradient_norm"]) for row in agents[:2]]
    assert whole.metrics["meta/gradient_norm"][0] == pytest.approx(np.mean(norms))
    assert (whole.metrics["meta/gradient_norm"] > 0).all()
    assert not np.array_equal(whole.eta["y_hat"]["w"], ETA["y_hat"]["w"])


def test_the_best_rule_is_the_one_with_the_highest_score(whole):
    evaluations = table(whole.path, "evaluation")
    assert [row["update"] for row in evaluations] == ["0", "3", "6", "8"]
    scores = [float(row[SCORE]) for row in evaluations]
    assert len(set(scores)) > 1, "the rule should make a difference"
    for row in evaluations:
        parts = [float(value) for name, value in row.items() if name.startswith(f"{SCORE}/")]
        assert len(parts) == len(TINY["evaluate_on"])
        assert float(row[SCORE]) == pytest.approx(np.mean(parts))
    assert whole.best_score == pytest.approx(max(scores))
    best = whole.path / "best.npz"
    assert_same(weights.load(best), whole.best_eta)
    metadata = npz.read(best).metadata
    assert metadata["meta_steps"] == int(evaluations[np.argmax(scores)]["update"])
    assert metadata["score"] == pytest.approx(max(scores))
    again = loop.Scoring(whole.config, whole.rule, None)(whole.best_eta)
    assert again.mean == pytest.approx(max(scores), abs=1e-6)
    name = TINY["evaluate_on"][0].env
    environment = discorl.make_environment(name)
    normalised = float(environment.reference().score(float(evaluations[0][f"{RETURN}/{name}"])))
    assert float(evaluations[0][f"{SCORE}/{name}"]) == pytest.approx(normalised)


def test_a_rule_file_knows_where_it_comes_from(whole):
    metadata = npz.read(whole.path / "rule.npz").metadata
    assert metadata["meta_steps"] == 8
    assert metadata["bins"] == 5
    assert metadata["seed"] == 0
    assert metadata["discorl"] == discorl.__version__
    assert discorl.configure_discovery(**metadata["config"]) == CONFIG
    rule, eta = discorl.load_rule(str(whole.path / "rule.npz"))
    assert (rule.num_bins, rule.sizes) == (5, CONFIG.sizes)
    assert_same(eta, whole.eta)


def test_a_run_is_a_function_of_its_settings(whole):
    again = discorl.discover(**TINY)
    assert_same(again.eta, whole.eta)
    assert_same(untimed(again.metrics), untimed(whole.metrics))
    times = [table[WALL_TIME][-1] for table in (again.metrics, again.evaluations)]
    assert again.seconds == times[1] >= times[0] > 0
    assert again.path is None


PROGRAM = """
import os, signal, sys
from discorl.cli import main
from discorl.runs import Run

log = Run.log
def log_and_die(self, rows, table="metrics"):
    log(self, rows, table)
    if table == "metrics" and rows[0]["update"] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
Run.log = log_and_die
main()
"""


def test_a_run_that_is_killed_and_stopped_ends_like_one_that_is_not(whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    options = ["--config", str(whole.path), "--out", str(run)]
    command = [sys.executable, "-c", PROGRAM, "discover", *options]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert table(run, "metrics")[-1]["update"] == "5"
    assert npz.read(run / "rule.npz").metadata["meta_steps"] == 4
    # A file that is younger than the checkpoint, as after a kill between the two.
    weights.save(run / "best.npz", jax.tree.map(np.asarray, ETA), {"bins": 5})

    meta_step = Population.meta_step

    def interrupted(self, state):
        result = meta_step(self, state)
        signal.raise_signal(signal.SIGTERM)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Population, "meta_step", interrupted)
        with pytest.raises(KeyboardInterrupt, match="stopped; continue with resume="):
            discorl.discover(resume=run)
    assert npz.read(run / "rule.npz").metadata["meta_steps"] == 5
    assert [row["update"] for row in table(run, "evaluation")] == ["0", "3"]
    assert discorl.discover(resume=run).finished
    assert_same_runs(run, whole.path)
    last = discorl.discover(resume=run)
    assert last.finished
    assert_same(last.best_eta, whole.best_eta)


def checkpoints(run):
    return sorted((run / "checkpoints").glob("*.npz"))


@pytest.mark.long
def test_ten_kills_at_any_moment(tmp_path):
    settings = TINY | {"meta_steps": 300, "evaluate_every": 20, "checkpoint_every": 5}
    discorl.discover(**settings, out=tmp_path / "whole")
    run = tmp_path / "cut"
    main = [sys.executable, "-c", "from discorl.cli import main; main()", "discover"]
    command = [*main, "--config", str(tmp_path / "whole"), "--out", str(run)]
    pauses = random.Random(0)
    for _ in range(10):
        before = checkpoints(run)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None:
            time.sleep(0.05)
            if checkpoints(run) != before:
                break
        time.sleep(pauses.uniform(0, 0.5))
        process.kill()
        process.communicate()
        command = [*main, "--resume", str(run)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert_same_runs(run, tmp_path / "whole")


def test_fine_tuning_starts_from_the_given_rule(whole, tmp_path):
    file = tmp_path / "mine.npz"
    eta = jax.tree.map(lambda x: np.asarray(x) + np.float32(0.1), whole.eta)
    weights.save(file, eta, {"bins": 5})
    # Sizes of its own in the settings count for nothing: the rule brings them.
    settings = TINY | {"meta_steps": 1, "start": str(file), "out": tmp_path / "run"}
    rule, start = starting_rule(discorl.configure_discovery(start=str(file)))
    assert (rule.sizes, rule.num_bins) == (CONFIG.sizes, 5)
    assert_same(start, eta)
    ablated = discorl.configure_discovery(start=str(file), without="q+aux_pi")
    assert starting_rule(ablated)[0] == dataclasses.replace(rule, without="q+aux_pi")
    result = discorl.discover(**settings)
    distance = max(
        float(np.max(np.abs(x - y)))
        for x, y in zip(jax.tree.leaves(result.eta), jax.tree.leaves(eta), strict=True)
    )
    assert 0 < distance <= 1.001 * CONFIG.meta_learning_rate, "one step of Adam, clipped"
    # The run holds the rule it started from, and needs the file no more.
    file.unlink()
    assert discorl.discover(resume=tmp_path / "run").finished


def test_a_run_of_a_later_version_is_refused_by_name(whole, tmp_path):
    described = json.loads((whole.path / "config.json").read_text())
    described["config"]["later_setting"] = 1
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"another version.*later_setting"):
        discorl.discover(resume=tmp_path / "run", accept_changes=True)


# --- the command ----------------------------------------------------------------------------------


def test_the_command(whole, capsys, tmp_path):
    options = ["--config", whole.path, "--meta-steps", 2]
    code, output, _ = outcome(capsys, "--json", "--out", tmp_path / "run", *options)
    assert code == 0
    data = json.loads(output)
    assert (data["meta_steps"], data["finished"]) == (2, True)
    assert_same(weights.load(tmp_path / "run" / "best.npz"), weights.load(data["best"]))
    code, output, _ = outcome(capsys, "--resume", whole.path)
    assert code == 0
    assert f"next: discorl train --rule {whole.path}/best.npz" in output


@pytest.mark.long
def test_without_a_score_no_rule_is_called_the_best(whole, capsys, tmp_path):
    endless = ["--evaluate-on", "bandit:pulls=100,seed=1,split=held_out", "--evaluate-updates", 1]
    run = tmp_path / "run"
    short = ["--meta-steps", 1, "--evaluate-seeds", 1]
    code, output, errors = outcome(capsys, "--config", whole.path, *endless, *short, "--out", run)
    assert code == 0
    assert "no score at meta-step 1: no agent ended an episode" in errors
    assert "raise evaluate_updates" in errors
    assert "score with fresh agents: none" in output
    assert f"next: discorl train --rule {run}/rule.npz" in output
    assert "best.npz" not in output
    assert npz.read(run / "best.npz").metadata["score"] is None
