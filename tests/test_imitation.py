"""Starts for discovery: the policy improved by hand, and the meta-network that imitates it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discoveries import CONFIG, ETA, RULE, TINY, assert_same

import discorl
from discorl import rules
from discorl.discovery import imitation, teachers
from discorl.discovery.population import Population
from discorl.rules import returns
from discorl.rules.files import weights
from discorl.rules.regularisers import LEAST, TEMPER, improved_policy
from discorl.runs import npz
from discorl.types import Trajectory, UserError, settings


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def muesli_case():
    """Numbers of 4 steps of 3 trajectories with 5 actions; one step is a filler."""
    rng = np.random.default_rng(0)
    length, batch, actions = 4, 3, 5
    outputs = [
        {name: rng.normal(size=(length + 1, batch, actions)) for name in ("logits", "q")}
        for _ in range(2)
    ]
    truncated = np.zeros((length, batch), bool)
    truncated[1, 2] = True
    trajectory = Trajectory(
        observation=np.zeros((length + 1, batch, 1)),
        action=rng.integers(actions, size=(length, batch)),
        reward=np.zeros((length, batch)),
        terminated=np.zeros((length, batch), bool),
        behaviour_logits=np.zeros((length, batch, actions)),
        truncated=truncated,
    )
    return trajectory, *outputs, rng.normal(size=(length, batch))


@pytest.mark.parametrize("clip", [0.0, 0.3, 1.0, 1.5])
def test_the_improved_policy_by_hand(clip):
    trajectory, online, target, q_target = case = muesli_case()
    with jax.enable_x64():
        logits = improved_policy(*jax.tree.map(jnp.asarray, case), clip)
    prior, q = softmax(target["logits"][:-1]), target["q"][:-1]
    pi = softmax(online["logits"][:-1])
    v = (pi * q).sum(axis=-1)
    squares = np.delete((q_target - v) ** 2, 2 * 3 + 2)  # but for the filler
    sigma = np.sqrt(squares.mean() + 1e-8)
    expected = prior
    if clip:
        improvement = np.exp(np.clip((q - v[..., None]) / sigma, -clip, clip))
        expected = prior ** (1 - TEMPER) * improvement
        expected /= expected.sum(axis=-1, keepdims=True)
        for t, b in np.ndindex(q_target.shape):
            taken = np.eye(5)[trajectory.action[t, b]]
            step = np.clip((q_target - v)[t, b] / sigma, -clip, clip)
            expected[t, b] += step * (taken - pi[t, b])
        expected = np.maximum(expected, LEAST)
        expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(softmax(np.asarray(logits)), expected, rtol=1e-7)


def test_towards_the_improved_policy_the_gradient_is_that_of_muesli():
    # Where the target network is the same, Muesli's prior is the policy.
    trajectory, online, _, q_target = muesli_case()
    online["q"] *= 0  # all actions look alike but for what was returned
    with jax.enable_x64():
        logits = jnp.asarray(online["logits"])
        case = jax.tree.map(jnp.asarray, (trajectory, online, online, q_target))
        improved = improved_policy(*case, 1.0)
        gradient = jax.grad(lambda logits: returns.categorical_kl(improved, logits).sum())(
            logits[:-1]
        )
    pi = softmax(online["logits"][:-1])
    sigma = np.sqrt(np.delete(q_target**2, 2 * 3 + 2).mean() + 1e-8)
    advantage = np.clip(q_target / sigma, -1, 1)[..., None]
    prior = pi ** (1 - TEMPER)
    prior /= prior.sum(axis=-1, keepdims=True)
    muesli = -advantage * (np.eye(5)[trajectory.action] - pi) + pi - prior
    inside = (prior + advantage * (np.eye(5)[trajectory.action] - pi) > LEAST).all(axis=-1)
    assert inside.sum() >= 4
    np.testing.assert_allclose(np.asarray(gradient)[inside], muesli[inside], atol=1e-12)


def lean_teacher():
    """A lean rule whose parameters all matter, in the middle of a life of 300 updates."""
    rng = np.random.default_rng(1)
    rule, eta = rules.load("lean")
    eta = jax.tree.map(lambda x: jnp.asarray(0.3 * rng.normal(size=np.shape(x))), eta)
    return teachers.LeanTeacher(rule, eta)


def test_towards_the_policy_of_a_lean_rule_the_gradient_is_that_of_its_loss():
    with jax.enable_x64():
        trajectory, online, target, q_target = jax.tree.map(jnp.asarray, muesli_case())
        teacher = lean_teacher()
        state = teacher.init_state(jnp.int32(300))
        policy, new = teacher.policy(state, trajectory, online, target, q_target, 0.9)
        rule = dataclasses.replace(teacher.rule, discount=0.9)
        targets, expected, _ = rule.targets(teacher.eta, state, trajectory, online, target)

        def loss(logits):
            return rule.loss(online | {"logits": logits}, targets, trajectory)["policy"].sum()

        def distance(logits):
            return returns.categorical_kl(policy, logits[:-1]).sum()

        of_rule, of_teacher = (jax.grad(f)(online["logits"])[:-1] for f in (loss, distance))
    inside = np.all(np.exp(policy) > LEAST + 1e-12, axis=-1)
    assert 4 <= inside.sum() < inside.size
    np.testing.assert_allclose(of_teacher[inside], of_rule[inside], atol=1e-12)
    assert_same(new.moments, expected.moments)


def test_a_lean_rule_teaches_as_in_the_middle_of_a_life():
    trajectory, online, target, q_target = jax.tree.map(jnp.asarray, muesli_case())
    teacher = lean_teacher()
    state = teacher.init_state(jnp.int32(300))
    for _ in range(2):
        assert state.updates == 150
        _, state = teacher.policy(state, trajectory, online, target, q_target, 0.9)
    early = dataclasses.replace(state, updates=jnp.int32(0))
    first, middle = (
        teacher.policy(x, trajectory, online, target, q_target, 0.9)[0] for x in (early, state)
    )
    assert np.abs(first - middle).max() > 1e-3, "the moment should matter"


@pytest.mark.parametrize(
    ("start", "teacher"),
    [("muesli", "muesli"), ("imitation:lean2", "lean2"), ("scratch", None), ("lean2", None)],
)
def test_starts_name_their_teachers(start, teacher):
    assert teachers.name_of(start) == teacher


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (
            "imitation:ppo",
            "start is 'imitation:ppo'; expected 'muesli', or 'imitation:' and a lean",
        ),
        ("imitation:lean9", "no rule 'lean9'"),
    ],
)
def test_only_lean_rules_teach(start, message):
    with pytest.raises(UserError, match=message):
        discorl.discover(**TINY | {"start": start})


def imitated(teacher=None):
    fields = {field.name: getattr(RULE, field.name) for field in dataclasses.fields(RULE)}
    return imitation.Imitated(**fields, teacher=teacher or teachers.Teacher())


@pytest.mark.parametrize("teacher", [teachers.Teacher(), lean_teacher()])
def test_imitators_say_what_a_population_asks_for(teacher):
    agents = imitation.Imitators(CONFIG.groups()[0], CONFIG, imitated(teacher))
    state = jax.eval_shape(agents.begin, jax.random.key(0), jnp.int32(0))
    _, after, metrics = jax.eval_shape(agents.meta_step, ETA, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    life = {f"life/{name}" for name in ("steps", "budget", "number", "finite")}
    assert life | {"rule/imitation"} <= metrics.keys()


@pytest.mark.long
def test_a_meta_network_comes_to_imitate():
    config = settings.replace(
        CONFIG, meta_learning_rate=0.02, lifetimes=(10**6,), learning_rate=0.05
    )
    population = Population(config, imitated(), agents=imitation.Imitators)
    state = population.init(ETA, jax.random.key(0))
    distances, entropies = [], []
    for _ in range(150):
        state, _, by_agent = population.meta_step(state)
        distances.append(by_agent["rule/imitation"].mean())
        entropies.append(by_agent["policy/entropy"].mean())
    assert entropies[-1] < 0.9 * entropies[0], "agents should learn by the target made by hand"
    assert np.mean(distances[-20:]) < 0.3 * max(distances)


@pytest.mark.long
@pytest.mark.parametrize("start_from", ["muesli", "imitation:lean2"])
def test_discovery_starts_from_an_imitation_and_resumes_from_it(start_from, tmp_path, monkeypatch):
    given = TINY | {"start": start_from, "imitation_steps": 3, "meta_steps": 2}
    discorl.discover(**given, out=tmp_path / "run")
    start = tmp_path / "run" / "start.npz"
    metadata = npz.read(start).metadata
    assert (metadata["bins"], metadata["meta_steps"]) == (5, 0)
    assert metadata["config"]["start"] == start_from
    assert not np.array_equal(weights.load(start)["pi_hat"]["w"], ETA["pi_hat"]["w"])
    monkeypatch.setattr("discorl.discovery.loop.imitate", None)  # not again
    resumed = discorl.discover(resume=tmp_path / "run")
    assert_same(resumed.eta, weights.load(tmp_path / "run" / "rule.npz"))


def test_other_rules_made_by_hand_are_no_start():
    with pytest.raises(UserError, match="'ppo', a rule without parameters to discover"):
        discorl.discover(**TINY | {"start": "ppo"})


def test_what_is_handed_out_is_an_average():
    population = Population(dataclasses.replace(CONFIG, ema=0.75), RULE)
    other = jax.tree.map(lambda x: x + 1, ETA)
    average = population._update_ema(ETA, other)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y + 0.25, atol=1e-6), average, dict(ETA)
    )
    assert_same(Population(CONFIG, RULE)._update_ema(ETA, other), other)
