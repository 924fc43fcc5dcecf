"""Discovery with environments on the host, alone and beside those in JAX."""

import csv
import dataclasses
import functools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discoveries import assert_same, numbers, poisoned

import discorl
from discorl.discovery import loop, methods
from discorl.discovery.population import Population
from discorl.discovery.scoring import Scoring
from discorl.discovery.start import keys_of, starting_rule
from discorl.envs.host import EnvironmentFailure, HostEnvironment, SerialVector, seeds_from
from discorl.runs.metrics import EPISODES, RETURN
from discorl.types import UserError

WINDOW, COUNT, UNROLL, JUDGED = 2, 2, 3, 2


class Lever:
    """The lever that pays is shown; an episode ends by a wrong one, or by its fifth step."""

    fails_at = None  # a step of every environment
    open = 0  # environments that were made and not closed
    lock = threading.Lock()

    def __init__(self):
        with Lever.lock:
            Lever.open += 1

    def reset(self, seed):
        if seed is not None:
            self.random, self.steps = np.random.default_rng(seed), 0
        self.time = 0
        return self.show()

    def show(self):
        self.good = int(self.random.integers(2))
        # As bytes: networks see more of it, by `prepare`.
        return np.array([self.good, self.time], np.uint8)

    def step(self, action):
        self.steps += 1
        self.time += 1
        if self.steps == self.fails_at:
            raise ValueError("the lever broke")
        right = action == self.good
        return self.show(), float(right), not right, self.time == 5, {}

    def render(self):
        return None

    def close(self):
        with Lever.lock:
            Lever.open -= 1


class Levers(HostEnvironment):
    name = "levers"
    num_actions = 2
    observation = jax.ShapeDtypeStruct((2,), np.uint8)

    def prepare(self, observation):
        return jax.nn.one_hot(observation, 6).reshape(observation.shape[0], -1)

    def start(self, count, seed, *, render=False):
        return SerialVector(Lever, seeds_from(seed, count))


CONFIG = discorl.configure_discovery(
    preset="laptop",
    start="scratch",
    ema=0.0,
    entropy_cost=0.01,
    target_kl_cost=0.1,
    meta_schedule="constant",
    envs=("catch:rows=3,columns=3", f"{__name__}:Levers"),
    agents=2,
    meta_steps=2,
    window=WINDOW,
    lifetimes=(10_000,),
    num_envs=COUNT,
    unroll=UNROLL,
    batch=3,
    replay=8,
    replay_fraction=0.67,
    validation_envs=JUDGED,
    validation_unroll=4,
    hidden=(6,),
    action_lstm=4,
    action_hidden=(4,),
    value_hidden=(6,),
    prediction_size=4,
    bins=5,
    trajectory_lstm=6,
    meta_lstm=4,
    net_width=4,
    evaluate_on=(f"{__name__}:Levers",),
    evaluate_seeds=2,
    evaluate_updates=4,
    evaluate_every=1,
    checkpoint_every=50,
)
RULE, ETA = starting_rule(CONFIG)


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    """All runs here have the same programs."""
    population = functools.cache(lambda config, rule: Population(config, rule))
    scoring = functools.cache(lambda config, rule: Scoring(config, rule, keys_of(CONFIG).scoring))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            methods, "Population", lambda config, rule, costs=(): population(config, rule)
        )
        patch.setattr(loop, "Scoring", lambda config, rule, key: scoring(config, rule))
        yield


@pytest.fixture(scope="module")
def population(shared_programs):
    return methods.Population(CONFIG, RULE)


@pytest.fixture(autouse=True)
def nothing_stays_open():
    yield
    deadline = time.monotonic() + 60  # the thread of a failed environment ends by itself
    while Lever.open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Lever.open == 0


# --- one group ------------------------------------------------------------------------------------


def window_by_hand(group, agent, number):
    """A meta-step of one agent without any threads."""
    seeds = np.random.SeedSequence([CONFIG.seed, 1, number, 0, 0]).generate_state(2).tolist()
    acting, validating = (
        a.with_seed(seed) for a, seed in zip(group._prototypes, seeds, strict=True)
    )
    params = agent.training.learner.params
    for actor in (acting, validating):
        actor.start(params)
    updates, episodes, replay = [], [], jax.tree.map(jnp.copy, agent.training.replay)
    bare = dataclasses.replace(agent, training=dataclasses.replace(agent.training, replay=None))
    for _ in range(WINDOW):
        learner, key = bare.training.learner, jax.random.fold_in(bare.training.key, 0xAC7)
        rollout = acting.rollout(learner.params, key)
        replay, bare, (record, _) = group._update(
            replay, bare, ETA, rollout.trajectory, np.int32(rollout.steps)
        )
        assert_same(record.learner, learner)
        assert record.batch.action.shape == (UNROLL, 3)
        updates.append(record)
        episodes += rollout.episodes
    judged = validating.rollout(bare.training.learner.params, jax.random.split(agent.key)[1])
    assert judged.trajectory.action.shape == (4, JUDGED)
    for actor in (acting, validating):
        actor.close()
    gradient, bare, _ = group._differentiate(ETA, bare, updates, judged.trajectory)
    return gradient, bare, replay, episodes


def test_a_meta_step_on_the_host_is_acting_and_learning_in_turns(population):
    group = population.groups[1]
    state = population.init(ETA, jax.random.key(0)).blocks[1]
    gradients, lived, metrics = group.meta_step(ETA, state)
    group.close()
    by_agent = [jax.tree.map(lambda x, i=i: np.asarray(x)[i], gradients) for i in range(2)]
    for number in range(2):
        gradient, agent, replay, episodes = window_by_hand(group, state[number], number)
        assert_same(by_agent[number], gradient)
        after = lived[number].training
        assert_same(
            (after.learner, after.key, after.steps, after.replay),
            (agent.training.learner, agent.training.key, agent.training.steps, replay),
        )
        assert_same((lived[number].key, lived[number].meta_value), (agent.key, agent.meta_value))
        assert metrics[EPISODES][number] == len(episodes) > 0
        expected = np.mean([episode.total for episode in episodes])
        assert metrics[RETURN][number] == pytest.approx(expected)
        norm = np.sqrt(sum(float(jnp.sum(x**2)) for x in jax.tree.leaves(gradient)))
        assert np.isfinite(norm)
        assert norm > 0
    assert int(state[0].training.replay.size) == 0, "the state before is still there"
    pairs = zip(*map(jax.tree.leaves, by_agent), strict=True)
    assert any(np.any(one != two) for one, two in pairs)


@pytest.mark.long
def test_the_metrics_of_both_kinds_of_group_are_the_same(population):
    state = population.init(ETA, jax.random.key(0))
    _, _, by_agent = population.meta_step(state)
    population.close()
    assert all(column.shape == (4,) for column in by_agent.values())
    assert by_agent["life/steps"][:2].tolist() == [WINDOW * COUNT * UNROLL] * 2
    assert np.all(by_agent["life/steps"][2:] <= WINDOW * COUNT * UNROLL)  # fillers are no steps
    assert np.all(np.isfinite(by_agent["meta/gradient_norm"]))


def test_a_new_life_on_the_host_begins_in_new_environments(population):
    state = population.init(ETA, jax.random.key(0))
    state, _, _ = population.meta_step(state)
    assert Lever.open == 2 * (COUNT + JUDGED)
    before = numbers(state)
    state = population.restart(state, [3])
    assert Lever.open == COUNT + JUDGED
    old, new = before.blocks[1][1], numbers(state).blocks[1][1]
    assert (int(old.lives), int(new.lives)) == (0, 1)
    assert (int(new.training.steps), int(new.training.replay.size)) == (0, 0)
    assert int(new.training.learner.updates) == 0
    assert_same(state.blocks[1][0], before.blocks[1][0])
    assert_same((state.eta, state.blocks[0]), (before.eta, before.blocks[0]))
    _, _, by_agent = population.meta_step(state)
    assert Lever.open == 2 * (COUNT + JUDGED)
    assert by_agent["life/number"].tolist() == [0, 0, 0, 1]
    population.close()


@pytest.mark.long
def test_an_agent_on_the_host_whose_parameters_are_no_numbers_begins_anew(population):
    state = population.init(ETA, jax.random.key(0))
    agent = state.blocks[1][1]
    learner = agent.training.learner
    learner = dataclasses.replace(learner, params=poisoned(learner.params))
    agent = dataclasses.replace(
        agent, training=dataclasses.replace(agent.training, learner=learner)
    )
    state = dataclasses.replace(state, blocks=(state.blocks[0], (state.blocks[1][0], agent)))
    state, whole, by_agent = population.meta_step(state)
    assert by_agent["life/finite"].tolist() == [True, True, True, False]
    assert by_agent["meta/dropped"].tolist() == [0, 0, 0, 1]
    state, whole, by_agent = population.meta_step(state)
    population.close()
    assert by_agent["life/number"].tolist() == [0, 0, 0, 1]
    assert by_agent["life/finite"].all()
    assert by_agent["meta/dropped"].tolist() == [0, 0, 0, 1]
    assert int(whole["meta/kept"]) == 4


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory, shared_programs):
    return discorl.discover(CONFIG, out=tmp_path_factory.mktemp("whole") / "run")


def test_a_mixed_population_moves_the_rule(whole):
    assert whole.finished
    moved = [
        float(jnp.max(jnp.abs(x - y)))
        for x, y in zip(*map(jax.tree.leaves, (whole.eta, ETA)), strict=True)
    ]
    assert max(moved) > 1e-4
    assert np.all(np.isfinite(jax.tree.leaves(jax.tree.map(jnp.sum, whole.eta))))
    assert whole.metrics["meta/kept"].tolist() == [4, 4]
    with (whole.path / "agents.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["agent"] for row in rows] == ["0", "1", "2", "3"] * 2
    assert [row["group"] for row in rows] == ["0", "0", "1", "1"] * 2
    for group, env in enumerate(group.env for group in CONFIG.population):
        earned = [float(row[RETURN] or "nan") for row in rows[2 * group : 2 * group + 2]]
        assert np.isfinite(earned).any()
        assert whole.metrics[f"{RETURN}/{env}"][0] == pytest.approx(np.nanmean(earned), rel=1e-6)
    assert all(float(row["meta/gradient_norm"]) > 0 for row in rows)
    levers = f"{__name__}:Levers"
    score, earned = (
        whole.evaluations[f"charts/{kind}/{levers}"] for kind in ("score", "episodic_return")
    )
    np.testing.assert_array_equal(score, earned)  # no scale is known
    assert np.all((earned >= 0) & (earned <= 5))


@pytest.mark.long
def test_a_run_on_the_host_is_a_function_of_its_settings(whole):
    again = discorl.discover(CONFIG)
    assert_same(again.eta, whole.eta)
    np.testing.assert_array_equal(
        again.evaluations["charts/score"], whole.evaluations["charts/score"]
    )


def test_a_failing_environment_ends_discovery_after_a_checkpoint(
    whole, tmp_path, monkeypatch, capsys
):
    # In the second meta-step; scoring, which takes 12 steps, would notice later.
    with monkeypatch.context() as patch:
        patch.setattr(loop.Scoring(CONFIG, RULE, None), "_updates", 1)
        patch.setattr(Lever, "fails_at", 8)
        message = (
            r"levers: environment 0 \(seed \d+\) failed at step (8|9|10): it raised ValueError"
        )
        with pytest.raises(EnvironmentFailure, match=message) as caught:
            discorl.discover(CONFIG, out=tmp_path / "run")
    assert "saved as of meta-step 1; continue with `--resume" in str(caught.value)
    assert [path.stem for path in (tmp_path / "run/checkpoints").iterdir()] == ["00000001"]
    result = discorl.discover(resume=tmp_path / "run")
    assert "meta-step 1: the environments of" in capsys.readouterr().err
    assert result.finished
    assert result.metrics["update"].tolist() == [1, 2]
    # The first meta-step is that of the whole run; the second had other environments.
    for name in ("meta/loss", "charts/episodic_return", "meta/eta_norm"):
        np.testing.assert_array_equal(result.metrics[name][:1], whole.metrics[name][:1])
    assert result.metrics["meta/loss"][1] != whole.metrics["meta/loss"][1]


def test_an_evaluation_that_failed_is_made_up_for(whole, tmp_path, monkeypatch):
    log = loop._Loop._log

    def log_and_break(self, *arguments):
        log(self, *arguments)
        Lever.fails_at = 9  # beyond a meta-step, within an evaluation

    with monkeypatch.context() as patch:
        patch.setattr(Lever, "fails_at", None)
        patch.setattr(loop._Loop, "_log", log_and_break)
        with pytest.raises(
            EnvironmentFailure, match=r"step (9|1\d): it raised .*meta-step 1; continue"
        ):
            discorl.discover(CONFIG, out=tmp_path / "run")
    result = discorl.discover(resume=tmp_path / "run")
    assert result.evaluations["update"].tolist() == [0, 1, 2]
    # The rule is that of the whole run up to here.
    np.testing.assert_array_equal(
        result.evaluations["charts/score"][:2], whole.evaluations["charts/score"][:2]
    )


def test_an_imitation_needs_environments_in_jax():
    with pytest.raises(UserError, match="Levers is on the host: expected a rule or 'scratch'"):
        discorl.discover(dataclasses.replace(CONFIG, start="muesli"))
