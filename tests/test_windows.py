"""Windows of discovery: where they begin, and the stacks of frames that agents see in them."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discoveries import TINY, assert_all_close, assert_same, assert_same_runs, numbers

import discorl
from discorl.discovery import loop, methods
from discorl.discovery.agents import Agents
from discorl.discovery.imitation import Imitated, Imitators
from discorl.discovery.population import Population
from discorl.discovery.scoring import Scoring
from discorl.discovery.start import keys_of, starting_rule
from discorl.envs.base import Environment, Step
from discorl.runs.metrics import EPISODES, LENGTH, RETURN
from discorl.types import Array, Key, UserError

SIZE = 5  # of the ring


@dataclasses.dataclass(frozen=True)
class Drift(Environment[tuple[Array, Array, Array]]):
    """Something goes around a ring; to say which way is rewarded, and two frames tell it.

    A mistake but the first ends the episode; the fourth step cuts it.
    """

    num_actions = 2
    observation = jax.ShapeDtypeStruct((SIZE,), jnp.float32)

    def reset(self, key: Key) -> tuple[tuple[Array, Array, Array], Array]:
        place_key, way_key = jax.random.split(key)
        place = jax.random.randint(place_key, (), 0, SIZE)
        way = jax.random.randint(way_key, (), 0, 2)
        return (place, way, jnp.int32(0)), jax.nn.one_hot(place, SIZE)

    def step(
        self, state: tuple[Array, Array, Array], action: Array, key: Key
    ) -> tuple[tuple[Array, Array, Array], Step]:
        place, way, time = state
        place, right = (place + 2 * way - 1) % SIZE, action == way
        step = Step(
            observation=jax.nn.one_hot(place, SIZE),
            reward=right.astype(jnp.float32),
            terminated=~right & (time > 0),
            truncated=time == 3,
        )
        return (place, way, time + 1), step


@dataclasses.dataclass(frozen=True)
class Twice(Environment[tuple]):
    """The same, which shows its last two frames by itself."""

    inner: Drift = Drift()
    num_actions = 2
    observation = jax.ShapeDtypeStruct((2 * SIZE,), jnp.float32)

    def reset(self, key: Key) -> tuple[tuple, Array]:
        state, frame = self.inner.reset(key)
        return (state, frame), jnp.concatenate([frame, frame])

    def step(self, state: tuple, action: Array, key: Key) -> tuple[tuple, Step]:
        inner, before = state
        inner, step = self.inner.step(inner, action, key)
        both = jnp.concatenate([before, step.observation])
        return (inner, step.observation), dataclasses.replace(step, observation=both)


DRIFT, BY_ITSELF = f"{__name__}:Drift", f"{__name__}:Twice"
STACKED = {"env": DRIFT, "agent": {"frame_stack": 2}}
WINDOW = 3
SETTINGS = TINY | {
    "window": WINDOW,
    "unroll": 5,
    "lifetimes": (10_000,),
    "meta_steps": 3,
    "evaluate_on": STACKED,
    "evaluate_every": 100,
    "checkpoint_every": 1,
}
# The programs are large: the one to compare with stacks its frames by itself, and the others by
# settings, so that two things are shown at once.
PLAIN = discorl.configure_discovery(**SETTINGS | {"population": BY_ITSELF})
OVERLAPPING = discorl.configure_discovery(**SETTINGS | {"population": STACKED, "stride": 1})
FAR = dataclasses.replace(OVERLAPPING, stride=5)
RULE, ETA = starting_rule(PLAIN)

population_of = functools.cache(lambda config: Population(config, RULE))


def newborn(config):
    return population_of(config).init(ETA, jax.random.key(0)).blocks[0]


def meta_step(config, eta, state):
    """A meta-step of the only group, whose state outlives it."""
    return population_of(config).groups[0].meta_step(eta, jax.tree.map(jnp.copy, state))


@pytest.fixture(scope="module")
def window():
    """What the first window of two agents brings."""
    return meta_step(PLAIN, ETA, newborn(PLAIN))


@pytest.fixture(scope="module")
def update():
    """An update as in training, and of the meta-value function on the same batch."""
    agents = Agents(OVERLAPPING.groups()[0], OVERLAPPING, RULE)

    def update(eta, state):
        agent = agents._learning_agent(state.task)
        training, metrics = agent.update(state.training, eta)
        before, batch, _ = agent.collect(state.training)
        _, value, _ = agents.meta_gradient.update(before.learner, state.meta_value, eta, batch)
        return dataclasses.replace(state, training=training, meta_value=value), metrics

    return jax.jit(jax.vmap(update, in_axes=(None, 0)))


@pytest.fixture(scope="module")
def life(update):
    """The same two agents after 0, 1, ... updates that nobody differentiates, with metrics."""
    moments = [(newborn(OVERLAPPING), {})]
    for _ in range(FAR.stride):
        moments.append(update(ETA, moments[-1][0]))
    return moments


def assert_close(one, two):
    """Floats close, and all the rest the same, of what differently compiled programs say."""

    def check(x, y):
        if np.issubdtype(x.dtype, np.floating):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
        else:
            np.testing.assert_array_equal(x, y)

    jax.tree.map(check, numbers(one), numbers(two))


def assert_same_life(one, two):
    """The same but for luck to come, validation, and the moments that it changes."""
    assert_close(dataclasses.replace(one.training, key=two.training.key), two.training)
    moments = two.meta_value.adv_moments
    assert_close(dataclasses.replace(one.meta_value, adv_moments=moments), two.meta_value)


def assert_validated_alike(one, two):
    """The same meta-gradient, from the same validation data."""
    (gradient, state, metrics), (other_gradient, other_state, other_metrics) = one, two
    assert any(np.abs(x).max() > 1e-6 for x in jax.tree.leaves(gradient))
    assert_all_close(gradient, other_gradient, 1e-4)
    for name, value in metrics.items():
        if name.startswith("meta/"):
            np.testing.assert_allclose(value, other_metrics[name], rtol=1e-3, atol=1e-5)
    assert_same(state.key, other_state.key)
    for name in ("awaiting_reset", "episode_return", "episode_length"):
        assert_same(getattr(state.validation, name), getattr(other_state.validation, name))


def adv_moments(state):
    return state.meta_value.adv_moments


# --- stride ---------------------------------------------------------------------------------------


def test_a_stride_of_the_window_s_length_is_the_default():
    def program(config):
        agents = Agents(config.groups()[0], config, RULE)
        state = jax.eval_shape(agents.begin, jax.random.key(0), jnp.int32(0))
        return jax.jit(agents.meta_step).lower(ETA, state).as_text()

    assert program(dataclasses.replace(PLAIN, stride=WINDOW)) == program(PLAIN)


@pytest.mark.long
def test_a_life_goes_on_from_within_a_window_that_overlaps(window, life, update):
    result = meta_step(OVERLAPPING, ETA, newborn(OVERLAPPING))
    assert_validated_alike(result, window)
    _, state, metrics = result
    kept, metrics_of_update = life[1]
    assert_same_life(state, kept)
    for name in ("life/steps", EPISODES, RETURN, LENGTH, "policy/entropy", "losses/total"):
        assert_close(metrics[name], metrics_of_update[name])
    # Of advantages its moments know those of that update, and those that it was judged by.
    expected = jax.tree.map(
        lambda own, before, after: after + 0.99 * (own - before),
        *map(adv_moments, (kept, life[WINDOW][0], window[1])),
    )
    assert_close(adv_moments(state), expected)
    # The next window begins there, with data that no look ahead has seen.
    following, _ = update(ETA, state)
    assert_same_life(meta_step(OVERLAPPING, ETA, state)[1], following)
    lived, ahead = (s.training.replay for s in (following, life[2][0]))
    assert_same(lived.position, ahead.position)
    assert not np.array_equal(lived.storage.behaviour_logits, ahead.storage.behaviour_logits)


@pytest.mark.long
def test_beyond_the_window_agents_make_plain_updates(window, life):
    result = meta_step(FAR, ETA, newborn(FAR))
    assert_validated_alike(result, window)
    _, state, metrics = result
    last = life[FAR.stride][0]
    assert_same_life(state, last)
    assert_same(state.training.key, last.training.key)
    expected = jax.tree.map(
        lambda own, before, after: own + 0.99**2 * (after - before),
        *map(adv_moments, (last, life[WINDOW][0], window[1])),
    )
    assert_close(adv_moments(state), expected)
    parts = [metrics for _, metrics in life[1:]]
    assert_same(metrics["life/steps"], parts[-1]["life/steps"])
    episodes = np.array([part[EPISODES] for part in parts])
    totals = np.where(episodes, np.array([part[RETURN] for part in parts]) * episodes, 0)
    assert_same(metrics[EPISODES], episodes.sum(axis=0))
    assert_close(metrics[RETURN], totals.sum(axis=0) / episodes.sum(axis=0))
    assert_close(
        metrics["policy/entropy"], np.mean([part["policy/entropy"] for part in parts], axis=0)
    )


@pytest.mark.long
def test_a_run_of_overlapping_windows_is_resumed_bit_for_bit(tmp_path, monkeypatch):
    scoring = functools.cache(lambda config: Scoring(config, RULE, keys_of(config).scoring))
    monkeypatch.setattr(methods, "Population", lambda config, rule: population_of(config))
    monkeypatch.setattr(loop, "Scoring", lambda config, rule, key: scoring(config))
    whole = discorl.discover(OVERLAPPING, out=tmp_path / "whole")
    assert (whole.metrics["meta/gradient_norm"] > 0).all()
    shutil.copytree(whole.path, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "00000003.npz").unlink()
    assert discorl.discover(resume=tmp_path / "run", accept_changes=True).finished
    assert_same_runs(tmp_path / "run", whole.path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": -1}, "stride is -1; expected at least 0"),
        ({"frame_stack": 0}, "frame_stack is 0; expected from 1 to 1024"),
        (
            {"population": {"env": "catch", "agent": {"frame_stack": 0}}},
            "catch: frame_stack is 0; expected from 1 to 1024",
        ),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        discorl.configure_discovery(**settings)


# --- stacks of frames -----------------------------------------------------------------------------


def test_stacks_are_what_an_environment_that_stacks_shows(window, life):
    stacked, shown = life[WINDOW][0], window[1]
    for name in ("learner", "key", "steps"):
        assert_close(getattr(stacked.training, name), getattr(shown.training, name))
    moments = adv_moments(stacked)  # which validation data are not in
    assert_close(stacked.meta_value, dataclasses.replace(shown.meta_value, adv_moments=moments))
    held = stacked.training.replay.storage.observation
    assert held.frame.shape == (2, PLAIN.agent.replay, 1 + PLAIN.agent.unroll + 1, SIZE), (
        "each frame once"
    )


def test_an_evaluation_and_an_imitation_stack_as_well():
    scoring = Scoring(OVERLAPPING, RULE, jax.random.key(0))
    keys = jax.random.split(jax.random.key(0), 2)
    state = jax.eval_shape(scoring._programs[DRIFT]._begin, (), keys, jnp.int32(1))
    _, metrics = jax.eval_shape(scoring._programs[DRIFT]._train, (), state, ETA, jnp.int32(1))
    assert metrics[RETURN].shape[0] == 2
    fields = {field.name: getattr(RULE, field.name) for field in dataclasses.fields(RULE)}
    agents = Imitators(OVERLAPPING.groups()[0], OVERLAPPING, Imitated(**fields))
    agent = jax.eval_shape(agents.begin, jax.random.key(0), jnp.int32(0))
    _, after, _ = jax.eval_shape(agents.meta_step, ETA, agent)
    assert jax.tree.structure(after) == jax.tree.structure(agent)
    for learner in (state.learner, after.training.learner):
        widths = {x.shape[-2] for x in jax.tree.leaves(learner.params) if x.ndim > 1}
        assert 2 * SIZE in widths
        assert SIZE not in widths


def test_the_agents_of_an_environment_have_stacks_of_their_own():
    stacked = {"env": "catch", "agent": {"frame_stack": 4}}
    config = discorl.configure_discovery(population=(stacked, "bandit"))
    assert [group.agent.frame_stack for group in config.groups()] == [4, 1]


# --- on the host ----------------------------------------------------------------------------------

LEVERS = "test_host_discovery:Levers"
HOST = discorl.configure_discovery(
    **SETTINGS | {"population": LEVERS, "agents": 1, "window": 2, "stride": 3, "frame_stack": 2}
)


def host_by_hand(group, agent):
    """A meta-step without any threads: a window, which is differentiated, and an update more."""
    seeds = np.random.SeedSequence([HOST.seed, 0, 0, 0, 0]).generate_state(2).tolist()
    acting, validating = (
        a.with_seed(seed) for a, seed in zip(group._prototypes, seeds, strict=True)
    )
    for actor in (acting, validating):
        actor.start(agent.training.learner.params)
    replay = jax.tree.map(jnp.copy, agent.training.replay)
    agent = dataclasses.replace(agent, training=dataclasses.replace(agent.training, replay=None))
    updates, episodes = [], []
    for number in range(HOST.stride):
        if number == HOST.window:
            key = jax.random.split(agent.key)[1]
            judged = validating.rollout(agent.training.learner.params, key).trajectory
            gradient, agent, _ = group._differentiate(ETA, agent, updates, judged)
        training = agent.training
        rollout = acting.rollout(training.learner.params, jax.random.fold_in(training.key, 0xAC7))
        replay, agent, (record, _) = group._update(
            replay, agent, ETA, rollout.trajectory, np.int32(rollout.steps)
        )
        updates.append(record)
        episodes += rollout.episodes
    for actor in (acting, validating):
        actor.close()
    return gradient, agent, replay, updates, episodes


def test_a_meta_step_on_the_host_with_stacks_and_a_stride():
    population = population_of(HOST)
    (group,), (agent,) = population.groups, population.init(ETA, jax.random.key(0)).blocks[0]
    gradients, (lived,), metrics = group.meta_step(ETA, (agent,))
    group.close()
    gradient, expected, replay, updates, episodes = host_by_hand(group, agent)
    assert_same(jax.tree.map(lambda x: x[0], gradients), gradient)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert any(np.any(x) for x in jax.tree.leaves(gradient))
    training = dataclasses.replace(expected.training, replay=replay)
    assert_same(lived, dataclasses.replace(expected, training=training))
    assert int(lived.training.learner.updates) == HOST.stride
    assert metrics["life/steps"].tolist() == [int(lived.training.steps)]
    assert metrics[EPISODES].tolist() == [len(episodes)]
    assert metrics[RETURN][0] == pytest.approx(np.mean([e.total for e in episodes]))
    # Each frame is recorded once; both networks see two, unfolded to one-hot vectors.
    shape = (1 + HOST.agent.unroll + 1, HOST.agent.batch, 2)
    assert [update.batch.observation.frame.shape for update in updates] == [shape] * HOST.stride
    for params in (lived.training.learner.params, lived.meta_value.params):
        assert 2 * 2 * 6 in {x.shape[0] for x in jax.tree.leaves(params) if x.ndim == 2}


def test_windows_on_the_host_do_not_overlap(tmp_path):
    message = r"stride is 1, and levers is on the host.*expected at least .*length, 2, or 0"
    with pytest.raises(UserError, match=message):
        discorl.discover(dataclasses.replace(HOST, stride=1), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
