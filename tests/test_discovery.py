"""Discovery: how meta-gradients move the rule, lives, and runs that can be killed."""

import dataclasses
import functools
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
from discoveries import CONFIG, ETA, RULE, TINY, assert_same, assert_same_runs, poisoned, table

import discorl
from discorl import cli
from discorl.discovery import loop
from discorl.discovery.agents import Agents, draw_lifetime
from discorl.discovery.population import Population
from discorl.discovery.scoring import Score, Scoring, _last_return
from discorl.envs import Catch
from discorl.rules import weights
from discorl.types import UserError

# --- how the rule moves ---------------------------------------------------------------------------


def adam_by_hand(gradients, learning_rate):
    """The update that the last of several gradients leads to."""
    m = v = 0.0
    for g in gradients:
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
    n = len(gradients)
    step = (m / (1 - 0.9**n)) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)
    return -learning_rate * np.clip(step, -1, 1)


def some_gradients(rng, scales=(1.0, 1e-3)):
    """Two agents' meta-gradients, on scales of their own."""
    one, two = (
        jax.tree.map(lambda x, s=s: s * rng.normal(size=x.shape).astype(np.float32), ETA)
        for s in scales
    )
    return jax.tree.map(lambda x, y: jnp.stack([x, y]), one, two)


def adams(config=CONFIG):
    """How a population's meta-gradients move the rule, and what that starts with."""
    population = Population(config, RULE)
    optimizer = population._adam.init(ETA)
    if config.per_agent_adam:
        optimizer = jax.tree.map(lambda x: jnp.stack([x, x]), optimizer)
    return jax.jit(population.combine), optimizer, jnp.zeros(2, jnp.int32)


@pytest.mark.parametrize("per_agent", [True, False])
def test_the_rule_moves_by_the_mean_of_the_adams(per_agent):
    combine, optimizers, dropped = adams(
        dataclasses.replace(CONFIG, per_agent_adam=per_agent, meta_learning_rate=0.01)
    )
    rng = np.random.default_rng(0)
    history = [some_gradients(rng), some_gradients(rng)]
    eta = ETA
    for gradients in history:
        before = eta
        eta, optimizers, dropped, _, norms = combine(eta, optimizers, dropped, gradients)
    w = [np.asarray(g["y_hat"]["w"], np.float64) for g in history]
    if per_agent:
        update = np.mean([adam_by_hand([g[i] for g in w], 0.01) for i in range(2)], axis=0)
    else:
        update = adam_by_hand([g.mean(axis=0) for g in w], 0.01)
    moved = np.asarray(eta["y_hat"]["w"], np.float64) - before["y_hat"]["w"]
    np.testing.assert_allclose(moved, update, rtol=2e-3, atol=1e-7)
    expected = np.sqrt(sum(np.sum(np.square(x[0])) for x in jax.tree.leaves(history[-1])))
    assert norms[0] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_a_bad_meta_gradient_is_left_out(bad):
    combine, optimizers, dropped = adams()
    rng = np.random.default_rng(0)
    eta, optimizers, dropped, _, _ = combine(ETA, optimizers, dropped, some_gradients(rng))
    good = some_gradients(rng)
    gradients = dict(good)
    gradients["gate"] = {
        "w": good["gate"]["w"].at[1, 0, 0].set(bad),
        "b": good["gate"]["b"],
    }
    moved, after, dropped, whole, _ = combine(eta, optimizers, dropped, gradients)
    assert dropped.tolist() == [0, 1]
    assert int(whole["kept"]) == 1
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(moved))
    assert_same(*(jax.tree.map(lambda x: x[1], tree) for tree in (after, optimizers)))
    # The other agent moves the rule as if it were alone.
    alone = jax.tree.map(lambda x: jnp.stack([x[0], x[0]]), (optimizers, good))
    expected, others, _, _, _ = combine(eta, alone[0], dropped, alone[1])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-7), moved, expected)
    assert_same(*(jax.tree.map(lambda x: x[0], tree) for tree in (after, others)))
    # If none is left, the rule stays where it is.
    nothing = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), good)
    still, _, dropped, _, _ = combine(eta, optimizers, dropped, nothing)
    assert_same(still, eta)
    assert dropped.tolist() == [1, 2]


# --- lives ----------------------------------------------------------------------------------------


def test_short_lives_are_likelier():
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(jax.vmap(lambda key: draw_lifetime(key, (20, 50, 100, 200)))(keys))
    lengths, counts = np.unique(drawn, return_counts=True)
    assert lengths.tolist() == [20, 50, 100, 200]
    weight = 1 / lengths
    np.testing.assert_allclose(counts / counts.sum(), weight / weight.sum(), atol=0.01)


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    """Runs in this process that differ in no program share the compiled ones."""

    def plain(config):
        return dataclasses.replace(
            config, start="scratch", meta_steps=1, evaluate_every=1, checkpoint_every=1
        )

    populations = functools.cache(lambda config, rule: Population(config, rule))
    scorings = {}

    def population(config, rule):
        unseen = {"evaluate_on": ("catch",), "evaluate_updates": 1, "evaluate_seeds": 1}
        return populations(dataclasses.replace(plain(config), **unseen), rule)

    def scoring(config, rule, key):
        config = plain(config)
        if (config, rule) not in scorings:
            scorings[config, rule] = Scoring(config, rule, key)
        return scorings[config, rule]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Population", population)
        patch.setattr(loop, "Scoring", scoring)
        yield


@pytest.fixture(scope="module")
def population(shared_programs):
    return loop.Population(CONFIG, RULE)


def at(state, agent):
    return jax.tree.map(lambda x: x[agent], state.groups[0])


def test_an_agent_at_the_end_of_its_budget_begins_anew(population):
    def budgets(state, *values):
        group = dataclasses.replace(state.groups[0], budget=jnp.array(values, jnp.int32))
        return dataclasses.replace(state, groups=(group,))

    def two_steps(first):
        state = population.init(ETA, jax.random.key(0))
        state, _, _ = population.meta_step(budgets(state, 10**6, 10**6))
        return population.meta_step(budgets(state, first, 10**6))

    on, _, metrics = two_steps(10**6)
    assert metrics["steps"].tolist() == [2 * 2 * 2 * 3] * 2  # meta-steps, window, environments, T
    assert metrics["lives"].tolist() == [0, 0]
    over, _, metrics = two_steps(24)
    assert metrics["lives"].tolist() == [0, 0], "of the life that was lived"
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
        assert not any(np.any(x) for x in jax.tree.leaves(optimizer))
    assert_same(new.training.learner.target_params, new.training.learner.params)
    assert not np.array_equal(new.task.means, old.task.means)
    # It is, all of it, what the agent's own key makes.
    assert_same(new, jax.jit(population.groups[0].begin)(old.key, jnp.int32(1)))


def one_poisoned(population, part):
    """The second agent of a population with a NaN in its learner or its meta-value function."""
    state = population.init(ETA, jax.random.key(0))
    agents = [jax.tree.map(lambda x, i=i: x[i], state.groups[0]) for i in range(2)]
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
    return dataclasses.replace(state, groups=(group,))


@pytest.mark.parametrize("part", ["learner", "meta_value"])
def test_an_agent_whose_parameters_are_no_numbers_begins_anew(population, part):
    state, whole, by_agent = population.meta_step(one_poisoned(population, part))
    assert by_agent["finite"].tolist() == [True, False]
    assert by_agent["dropped"].tolist() == [0, 1]
    assert int(whole["kept"]) == 1
    assert state.groups[0].lives.tolist() == [0, 1]
    state, whole, by_agent = population.meta_step(state)
    assert by_agent["finite"].tolist() == [True, True]
    assert by_agent["dropped"].tolist() == [0, 1]
    assert int(whole["kept"]) == 2
    assert by_agent["lives"].tolist() == [0, 1]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.eta, state.optimizers)))


# --- evaluation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "columns"), [(2, 5), (3, 3), (5, 5), (4, 8)])
def test_reference_returns_of_catch(rows, columns):
    environment = Catch(rows, columns)
    middle = columns // 2
    paddle = np.eye(columns)[middle]
    for _ in range(rows - 1):  # the distribution of a paddle that moves at random
        moves = [np.clip(np.arange(columns) + move, 0, columns - 1) for move in (-1, 0, 1)]
        paddle = sum(np.bincount(to, paddle / 3, columns) for to in moves)
    reachable = sum(abs(column - middle) < rows for column in range(columns))
    reference = environment.reference()
    assert float(reference.random) == pytest.approx(2 * np.mean(paddle) - 1, abs=1e-6)
    assert float(reference.optimal) == pytest.approx(2 * reachable / columns - 1, abs=1e-6)


def test_agents_that_ended_no_episode_have_no_say():
    nan = np.nan
    returns = np.array([[9, 9, 9, 9, 9, 9, 1.0, 4.0], [nan] * 8, [0, 0, 0, 0, 0, 0, nan, 8.0]])
    episodes = np.array([[1, 1, 1, 1, 1, 1, 2, 1], [0] * 8, [1, 1, 1, 1, 1, 1, 0, 5]])
    # Of the last two updates: two agents, with 2 and 8 an episode.
    assert _last_return({"return": returns, "episodes": episodes}) == pytest.approx(5)
    only = {"return": returns[1:2], "episodes": episodes[1:2]}
    assert np.isnan(_last_return(only))
    assert np.isnan(Score({"a": 1.0, "b": nan}, {"a": 1.0, "b": nan}).mean)


def test_members_of_a_family_share_a_program(shared_programs):
    scoring = loop.Scoring(CONFIG, RULE, loop._keys(CONFIG).scoring)
    one, two = scoring._programs.values()
    assert one is two


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shared_programs):
    return discorl.discover(**TINY, out=tmp_path_factory.mktemp("whole") / "run")


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
    np.testing.assert_array_equal(whole.metrics["return/bandit"], whole.metrics["return"])
    assert (whole.metrics["finite"] == 1).all()
    parts = [f"meta/{name}" for name in ("policy_gradient", "entropy_penalty", "target_penalty")]
    total = sum(whole.metrics[name] for name in parts)
    np.testing.assert_allclose(total, whole.metrics["meta/loss"], rtol=1e-5)
    assert int(metrics[-1]["lives"]) > 0, "someone should have begun anew"
    for name in ("return", "meta/loss", "meta/gradient_norm", "gradient_cosine", "entropy"):
        assert np.isfinite(whole.metrics[name]).all(), name
    norms = [float(row["meta/gradient_norm"]) for row in agents[:2]]
    assert whole.metrics["meta/gradient_norm"][0] == pytest.approx(np.mean(norms))
    assert (whole.metrics["meta/gradient_norm"] > 0).all()
    assert not np.array_equal(whole.eta["y_hat"]["w"], ETA["y_hat"]["w"])


def test_the_best_rule_is_the_one_with_the_highest_score(whole):
    evaluations = table(whole.path, "evaluation")
    assert [row["update"] for row in evaluations] == ["0", "3", "6", "8"]
    scores = [float(row["score"]) for row in evaluations]
    assert len(set(scores)) > 1, "the rule should make a difference"
    for row in evaluations:
        parts = [float(row[f"score/{name}"]) for name in TINY["evaluate_on"]]
        assert float(row["score"]) == pytest.approx(np.mean(parts))
    assert whole.best_score == pytest.approx(max(scores))
    best = weights.load(whole.path / "best.npz")
    assert_same(best.eta, whole.best_eta)
    assert best.metadata["meta_steps"] == int(evaluations[np.argmax(scores)]["update"])
    assert best.metadata["score"] == pytest.approx(max(scores))
    again = loop.Scoring(whole.config, whole.rule, None)(whole.best_eta)
    assert again.mean == pytest.approx(max(scores), abs=1e-6)
    name = TINY["evaluate_on"][0]
    environment = discorl.make_environment(name.partition(";")[0])
    normalised = float(environment.reference().normalise(float(evaluations[0][f"return/{name}"])))
    assert float(evaluations[0][f"score/{name}"]) == pytest.approx(normalised)


def test_a_rule_file_knows_where_it_comes_from(whole):
    file = weights.load(whole.path / "rule.npz")
    assert file.metadata["meta_steps"] == 8
    assert file.metadata["bins"] == 5
    assert file.metadata["seed"] == 0
    assert file.metadata["discorl"] == discorl.__version__
    assert discorl.configure_discovery(**file.metadata["config"]) == CONFIG
    rule, eta = discorl.load_rule(str(whole.path / "rule.npz"))
    assert (rule.num_bins, rule.sizes) == (5, CONFIG.sizes)
    assert_same(eta, whole.eta)


def test_a_run_is_a_function_of_its_settings(whole):
    again = discorl.discover(**TINY)
    assert_same(again.eta, whole.eta)
    assert_same(again.metrics, whole.metrics)
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


def arguments(settings):
    flags = []
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        flags += [f"--{name.replace('_', '-')}", *map(str, values)]
    return flags


def test_a_run_that_is_killed_and_stopped_ends_like_one_that_is_not(whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    command = [sys.executable, "-c", PROGRAM, "discover", "--out", str(run), *arguments(TINY)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert table(run, "metrics")[-1]["update"] == "5"
    assert weights.load(run / "rule.npz").metadata["meta_steps"] == 4
    # A file that is younger than the checkpoint, as after a kill between the two.
    weights.save(run / "best.npz", jax.tree.map(np.asarray, ETA), {"bins": 5})

    meta_step = Population.meta_step

    def interrupted(self, state):
        result = meta_step(self, state)
        signal.raise_signal(signal.SIGTERM)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Population, "meta_step", interrupted)
        stopped = discorl.discover(resume=run)
    assert not stopped.finished
    assert weights.load(run / "rule.npz").metadata["meta_steps"] == 5
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
    command = [*main, "--out", str(run), *arguments(settings)]
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
    rule, start = loop.starting_rule(discorl.configure_discovery(start=str(file)))
    assert (rule.sizes, rule.num_bins) == (CONFIG.sizes, 5)
    assert_same(start, eta)
    ablated = discorl.configure_discovery(start=str(file), without="q+aux_pi")
    assert loop.starting_rule(ablated)[0] == dataclasses.replace(rule, without="q+aux_pi")
    result = discorl.discover(**settings)
    distance = max(
        float(np.max(np.abs(x - y)))
        for x, y in zip(jax.tree.leaves(result.eta), jax.tree.leaves(eta), strict=True)
    )
    assert 0 < distance <= 1.001 * CONFIG.meta_learning_rate, "one step of Adam, clipped"
    # The run holds the rule it started from, and needs the file no more.
    file.unlink()
    assert discorl.discover(resume=tmp_path / "run").finished


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "laptp"}, "no preset 'laptp'; did you mean 'laptop'"),
        ({"windo": 3}, "no setting 'windo'; did you mean 'window'"),
        ({"window": 0}, "window is 0; expected at least 1"),
        ({"bins": 6}, "bins is 6; expected an odd number"),
        ({"envs": ()}, "envs is .*; expected at least one environment"),
        ({"evaluate_on": ()}, "evaluate_on is .*; expected at least one environment"),
        ({"lifetimes": (0, 5)}, "lifetimes is .*; expected steps of at least 1"),
        ({"meta_learning_rate": float("inf")}, "meta_learning_rate is inf; expected a positive"),
        ({"seed": -1}, "seed is -1; expected at least 0"),
        ({"envs": ("catch;hiden=3",)}, "did you mean 'hidden'"),
        ({"envs": ("catch;hidden=a",)}, "expected a value like"),
        ({"envs": ("catch;agents=0",)}, "agents is 0 in .*; expected at least 1"),
        ({"envs": 3}, "envs is 3; expected a text, or several"),
        ({"lifetimes": 0}, "lifetimes is .*; expected steps of at least 1"),
        ({"lifetimes": "long"}, "lifetimes is 'long'; expected a whole number, or several"),
        ({"hidden": (64, 0.5)}, "hidden is .*; expected a whole number, or several"),
        ({"torso": "resnet"}, "torso is resnet; expected auto, mlp or residual"),
        ({"envs": ("catch;torso=conv",)}, "torso is conv; expected auto, mlp or residual"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        discorl.configure_discovery(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"envs": ("bandt",)}, "no environment 'bandt'; did you mean 'bandit'"),
        ({"evaluate_on": ("cach",)}, "no environment 'cach'; did you mean 'catch'"),
        ({"start": "ppo"}, "start is 'ppo', a rule made by hand"),
        ({"start": None}, "start is None; expected 'scratch', 'muesli', or a learned rule"),
        ({"without": "q", "target_improvement": 1.0}, "the rule is without q"),
        ({"imitation_steps": 0}, "imitation_steps is 0; expected at least 1"),
        ({"start": "nowhere.npz"}, "there is no such rule file"),
    ],
)
def test_runs_that_are_refused_leave_nothing(settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        discorl.discover(**TINY | settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_agents_of_an_environment_have_settings_of_their_own():
    config = discorl.configure_discovery(envs=("bandit;agents=3;hidden=8,4;learning_rate=1e-2",))
    (group,) = config.groups()
    assert (group.count, group.config.hidden, group.config.learning_rate) == (3, (8, 4), 1e-2)
    assert group.config.batch == config.batch


def test_a_single_text_or_number_is_one_of_one():
    config = discorl.configure_discovery(envs="grid", evaluate_on="catch", lifetimes=1000, hidden=8)
    several = discorl.configure_discovery(
        envs=["grid"], evaluate_on=("catch",), lifetimes=[np.int64(1000)], hidden=(8,)
    )
    assert config == several
    assert (config.envs, config.lifetimes) == (("grid",), (1000,))
    assert json.loads(json.dumps(several.as_dict()))["lifetimes"] == [1000]


def test_agents_and_their_meta_value_have_the_torso_asked_for():
    own = "torso=residual;filters=2,3"
    config = dataclasses.replace(CONFIG, envs=(f"catch:rows=5,columns=5;{own}", "catch"))
    for group, filters in zip(config.groups(), (("0", "1"), None), strict=True):
        begin = Agents(group, config, RULE).begin
        state = jax.eval_shape(begin, jax.random.key(0), jnp.int32(0))
        for params in (state.training.learner.params, state.meta_value.params):
            assert ("encoder" in params) == (filters is not None)
            if filters:
                widths = {x.shape[-1] for x in jax.tree.leaves(params["encoder"])}
                assert widths == {2, 3}


def test_a_run_of_another_version_is_refused_by_name(whole, tmp_path):
    described = json.loads((whole.path / "config.json").read_text())
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    file = tmp_path / "run" / "config.json"
    for change in ("later_setting", "torso"):
        config = described["config"]
        if change in config:
            config = {name: value for name, value in config.items() if name != change}
        else:
            config = config | {change: 1}
        file.write_text(json.dumps(described | {"config": config}))
        with pytest.raises(UserError, match=f"another version.*{change}"):
            discorl.discover(resume=tmp_path / "run")


def outcome(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["discover", *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--preset", "laptp"], "did you mean 'laptop'"),
        (["--windo", "3"], "--window"),
        (["--window", "x"], "window"),
        (["--envs", "bandt"], "did you mean 'bandit'"),
        (["--bins", "4"], "expected an odd number"),
        (["--resume", "nowhere"], "nowhere is not a run directory"),
        (["--resume", "nowhere", "--window", "3"], "takes no others"),
    ],
)
def test_mistakes_on_the_command_line(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, errors = outcome(capsys, *flags)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_the_command(whole, capsys, tmp_path):
    code, output, _ = outcome(
        capsys, "--json", "--out", tmp_path / "run", *arguments(TINY | {"meta_steps": 2})
    )
    assert code == 0
    data = json.loads(output)
    assert (data["meta_steps"], data["finished"]) == (2, True)
    assert_same(weights.load(tmp_path / "run" / "best.npz").eta, weights.load(data["best"]).eta)
    code, output, _ = outcome(capsys, "--resume", whole.path)
    assert code == 0
    assert f"next: discorl train --rule {whole.path}/best.npz" in output


@pytest.mark.long
def test_without_a_score_no_rule_is_called_the_best(capsys, tmp_path):
    endless = {"evaluate_on": ("bandit:pulls=100,seed=1,split=held_out",), "evaluate_updates": 1}
    run = tmp_path / "run"
    code, output, errors = outcome(
        capsys, "--out", run, *arguments(TINY | endless | {"meta_steps": 1, "evaluate_seeds": 1})
    )
    assert code == 0
    assert "no score at meta-step 1: no agent ended an episode" in errors
    assert "raise evaluate_updates" in errors
    assert "score with fresh agents: none" in output
    assert f"next: discorl train --rule {run}/rule.npz" in output
    assert "best.npz" not in output
    assert weights.load(run / "best.npz").metadata["score"] is None
