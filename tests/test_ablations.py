"""What is taken out of the Disco rule has no influence any more, and all else keeps its own."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_disco import RULE, SIZES, STEPS, case, state_of

import discorl
from discorl import rules
from discorl.rules import Disco
from discorl.rules.disco import ABLATIONS
from discorl.rules.files import weights
from discorl.types import UserError
from discorl.verification.cases import cast

EVERYTHING = {
    *(f"{whose} {name}" for whose in ("online", "target") for name in ("logits", "y", "z", "q")),
    "reward",
    "meta_rnn",
}
PREDICTIONS = {f"{whose} {name}" for whose in ("online", "target") for name in ("y", "z")}
VALUES = {"online q", "target q"}
WITHOUT_INFLUENCE = {
    "none": set(),
    "yz": PREDICTIONS,
    "q": VALUES,
    "aux_pi": set(),
    "bootstrapping": PREDICTIONS,
    "meta_rnn": {"meta_rnn"},
    "q+meta_rnn+yz": PREDICTIONS | VALUES | {"meta_rnn"},
}
LOSS_TERMS = {
    "none": {"pi", "y", "z", "aux_pi", "q"},
    "yz": {"pi", "aux_pi", "q"},
    "q": {"pi", "y", "z", "aux_pi"},
    "aux_pi": {"pi", "y", "z", "q"},
    "bootstrapping": {"pi", "y", "z", "aux_pi", "q"},
    "meta_rnn": {"pi", "y", "z", "aux_pi", "q"},
    "q+meta_rnn+yz": {"pi", "aux_pi"},
}


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


in_float64 = pytest.mark.usefixtures("float64")


def random_rule():
    rng = np.random.default_rng(2)
    shapes = jax.eval_shape(RULE.init_params, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), shapes)


def ablated(without):
    return dataclasses.replace(RULE, without=without)


@functools.partial(jax.jit, static_argnums=0)
def hats(rule, eta, meta_rnn, trajectory, online, target):
    """Targets of policy and predictions, the embedding, and the meta-RNN's new state."""

    def summaries(outputs):
        named = {n: rule.summarise(eta, n, x) for n, x in outputs.items()}
        return {n: x for n, x in named.items() if x is not None}

    state = dataclasses.replace(state_of(rule), meta_rnn=meta_rnn)
    targets, state, _ = rule.targets(eta, state, trajectory, summaries(online), summaries(target))
    return targets.pi, targets.y, targets.z, targets.embedding, state.meta_rnn


@pytest.fixture(scope="module")
def given():
    """Parameters of a rule, the meta-RNN's state, a trajectory and outputs of both networks."""
    with jax.enable_x64(True):
        return cast(random_rule(), "float64"), state_of(RULE).meta_rnn, *case(1)


def differs(one, two):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return any(np.abs(x - y).max() > 1e-9 for x, y in pairs)


@in_float64
@pytest.mark.parametrize("without", WITHOUT_INFLUENCE)
def test_what_influences_the_targets(without, given):
    rule = ablated(without)
    eta, meta_rnn, trajectory, online, target = given
    before = hats(rule, eta, meta_rnn, trajectory, online, target)

    def shifted(x):
        # Not the same for all entries, which a softmax would not feel.
        return x + jnp.sin(jnp.arange(x.size)).reshape(x.shape)

    found = set()
    for name in online:
        if differs(before, hats(rule, *given[:3], online | {name: shifted(online[name])}, target)):
            found.add(f"online {name}")
        if differs(before, hats(rule, *given[:4], target | {name: shifted(target[name])})):
            found.add(f"target {name}")
    other = dataclasses.replace(trajectory, reward=shifted(trajectory.reward))
    if differs(before, hats(rule, eta, meta_rnn, other, online, target)):
        found.add("reward")
    if differs(before, hats(rule, eta, jax.tree.map(shifted, meta_rnn), *given[2:])):
        found.add("meta_rnn")
    assert found == EVERYTHING - WITHOUT_INFLUENCE[without]


def without_rows(eta, features, per_action, y_hat):
    """Parameters that read zero from the given features, by their place in the specification.

    Args:
        eta: parameters whose embeddings are one number wide.
        features: of the 23 per-step features, which not to read.
        per_action: of the 9 per-action inputs, which not to read.
        y_hat: whether the meta-RNN's 29th input, the embedded y_hat, is not to be read.
    """

    def drop(layer, rows):
        return layer | {"w": layer["w"].at[jnp.array(rows, int)].set(0)}

    def drop_per_action(blocks):
        beside_the_mean = [*per_action, *(9 + i for i in per_action)]
        return (drop(blocks[0], beside_the_mean), *blocks[1:])

    meta = eta["meta_rnn"]
    meta_rows = [*features, 28] if y_hat else features
    return eta | {
        "policy_net": drop_per_action(eta["policy_net"]),
        "trajectory_lstm": drop(eta["trajectory_lstm"], features),
        "meta_rnn": meta
        | {
            "policy_net": drop_per_action(meta["policy_net"]),
            "input": (drop(meta["input"][0], meta_rows), *meta["input"][1:]),
        },
    }


@in_float64
@pytest.mark.parametrize(
    ("without", "features", "per_action", "y_hat"),
    [
        ("yz", range(9, 23), (3, 4), True),
        ("bootstrapping", range(9, 23), (3, 4), False),
        ("q", range(4, 8), (5, 6, 7), False),
        ("aux_pi", (), (), False),
    ],
)
def test_an_ablation_is_the_full_rule_that_does_not_read(
    without, features, per_action, y_hat, given
):
    eta, *rest = given
    blind = without_rows(eta, list(features), per_action, y_hat)
    expected = hats(RULE, blind, *rest)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12),
        hats(ablated(without), eta, *rest),
        expected,
    )
    assert differs(hats(RULE, eta, *rest), expected) == (without != "aux_pi")


@in_float64
def test_without_the_meta_rnn_every_moment_of_life_is_the_first(given):
    eta, meta_rnn, *rest = given
    zeros = jax.tree.map(jnp.zeros_like, meta_rnn)
    *expected, moved = hats(RULE, eta, zeros, *rest)
    *found, kept = hats(ablated("meta_rnn"), eta, meta_rnn, *rest)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)
    assert differs(moved, zeros)
    assert not differs(kept, zeros)


@in_float64
@pytest.mark.parametrize("without", LOSS_TERMS)
def test_terms_of_the_loss(without):
    trajectory, online, target = case(1)
    taken = {n: x[:-1, :, 0] for n, x in online.items() if n in ("z", "q", "aux_pi")}
    outputs = online | taken
    targets = rules.disco.Targets(
        pi=target["logits"][:-1],
        y=target["y"][:-1],
        z=target["z"][:-1, :, 0],
        q=trajectory.reward,
        embedding=jnp.zeros((STEPS, 1, 1)),
    )

    def total(outputs):
        return sum(jnp.sum(x) for x in ablated(without).loss(outputs, targets, trajectory).values())

    terms = ablated(without).loss(outputs, targets, trajectory)
    full = RULE.loss(outputs, targets, trajectory)
    assert set(terms) == LOSS_TERMS[without]
    for name, term in terms.items():
        np.testing.assert_array_equal(term, full[name])
    moved = {name for name, x in jax.grad(total)(outputs).items() if x.any()}
    assert moved == {"logits" if name == "pi" else name for name in terms}


def test_a_new_rule_without_the_meta_rnn_has_its_gate_open():
    key = jax.random.key(0)
    full, new = RULE.init_params(key), ablated("meta_rnn").init_params(key)
    assert np.all(new["gate"]["b"] == 1)
    assert not full["gate"]["b"].any()
    closed = new | {"gate": new["gate"] | {"b": full["gate"]["b"]}}
    jax.tree.map(np.testing.assert_array_equal, closed, full)
    weights.validate(jax.tree.map(np.asarray, new))


# --- in words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("bootstraping", "no part is called 'bootstraping'; did you mean 'bootstrapping'?"),
        ("q+p", "no part is called 'p'; known: aux_pi, bootstrapping, meta_rnn, none, q, yz"),
        ("q+", "no part is called ''"),
    ],
)
def test_parts_that_do_not_exist_are_refused(without, message):
    with pytest.raises(UserError) as error:
        Disco(without=without)
    assert f"without={without}: {message}" in str(error.value)


def test_a_part_is_named():
    with pytest.raises(UserError, match="without is ''; expected a text"):
        Disco(without="")


def test_every_ablation_is_tested():
    assert set(ABLATIONS) <= set(WITHOUT_INFLUENCE) & set(LOSS_TERMS)


@pytest.fixture
def file(tmp_path):
    """A rule that was discovered without a part, in a folder with signs that settings have."""
    path = tmp_path / "seed=3,best:new" / "rule.npz"
    path.parent.mkdir()
    weights.save(path, random_rule(), {"bins": 5, "without": "aux_pi"})
    return path


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", {"without": "aux_pi"}),
        (":without=none", {"without": "none"}),
        (":without=q+yz, y_cost=0.5", {"without": "q+yz", "y_cost": 0.5}),
    ],
)
def test_settings_of_a_rule_file(file, settings, expected):
    rule, _ = rules.load(f"{file}{settings}")
    assert rule == dataclasses.replace(RULE, **expected)
    assert rule.sizes == SIZES


def test_settings_that_a_rule_file_has_not(file):
    with pytest.raises(UserError) as error:
        rules.load(f"{file}:sizes=3")
    message = str(error.value)
    assert f"{file} has no parameter 'sizes'" in message
    assert "without: str = aux_pi" in message
    assert "Sizes(" not in message
    with pytest.raises(UserError, match="takes parameters only, got 'q'"):
        rules.load(f"{file}:q")


@pytest.mark.long
def test_training_with_an_ablated_rule(file, tmp_path):
    result = discorl.train(
        rule=f"{file}:without=yz+meta_rnn",
        env="catch:rows=3,columns=3",
        updates=3,
        num_envs=2,
        unroll=3,
        batch=2,
        replay_fraction=0.0,
        hidden=(8,),
        action_lstm=4,
        action_hidden=(4,),
        out=tmp_path / "run",
    )
    assert {"losses/pi", "losses/q"} <= set(result.metrics)
    assert not {"losses/y", "losses/z"} & set(result.metrics)
    assert not any(x.any() for x in jax.tree.leaves(result.state.learner.rule.meta_rnn))
    assert not result.state.learner.params["head"]["y"]["b"].any()
    assert result.state.learner.params["head"]["logits"]["b"].any()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    reopened, _ = rules.load(config["config"]["rule"], file=tmp_path / "run" / "rule.npz")
    assert reopened.ablated == {"yz", "meta_rnn"}
