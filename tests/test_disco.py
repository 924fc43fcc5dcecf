"""The Disco rule: new rules, any sizes, gradients with respect to eta, ends of episodes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from discorl import rules
from discorl.rules import Disco, Sizes, returns
from discorl.rules.disco import Targets
from discorl.rules.files import weights
from discorl.runs import npz
from discorl.types import Trajectory
from discorl.verification.cases import cast

SIZES = Sizes(
    prediction=4,
    trajectory_lstm=5,
    embedding_net=(3, 1),
    policy_net=(4, 2),
    pi_hat_blocks=(3,),
    meta_lstm=3,
    meta_input=(3,),
    meta_embedding_net=(3, 1),
    meta_policy_net=(3, 2),
)
RULE = Disco(sizes=SIZES, num_bins=5)
STEPS, BATCH, ACTIONS = 5, 2, 3


# --- new rules ------------------------------------------------------------------------------------


def test_a_new_rule_has_the_published_names_and_shapes():
    eta = jax.tree.map(np.asarray, Disco().init_params(jax.random.key(0)))
    weights.validate(eta)
    arrays = weights.flatten(eta)
    published = reference.random_rule(
        np.random.default_rng(0),
        reference.Sizes(
            predictions=600,
            trajectory_lstm=256,
            meta_lstm=128,
            meta_input=16,
            y_net=(16,),
            z_net=(16,),
            policy_net=(16, 2),
            pi_hat_block=16,
            meta_y_net=(16,),
            meta_z_net=(16,),
            meta_policy_net=(16, 2),
        ),
    )
    assert {n: x.shape for n, x in arrays.items()} == {n: x.shape for n, x in published.items()}
    assert len(arrays) == 42
    assert sum(x.size for x in arrays.values()) == 754_778
    assert Sizes.of(eta) == Sizes()


def test_a_new_rule_has_the_names_and_shapes_of_disco103(disco103):
    eta = jax.tree.map(np.asarray, Disco().init_params(jax.random.key(0)))
    with np.load(disco103) as file:
        published = {name: file[name].shape for name in file.files}
    assert {name: x.shape for name, x in weights.flatten(eta).items()} == published


@pytest.mark.parametrize(
    ("array", "scale"),
    [
        ("lstm/linear_1/w", 0.3),
        ("lstm/linear_2/w", 0.3),
        ("lstm/linear_3/w", 0.3),
        ("lstm/linear_4/w", 0.3),
        ("lstm/linear/w", 1.0),
        ("lstm/lstm/linear/w", (27 + 256) ** -0.5),
        ("lstm/mlp/~/linear_0/w", 600**-0.5),
        ("lstm/mlp_1/~/linear_1/w", 16**-0.5),
        ("lstm/sequential/conv1_d/w", 18**-0.5),
        ("lstm/~/meta_lstm/~unroll/lstm/linear/w", (16 + 128) ** -0.5),
        ("lstm/~/meta_lstm/~unroll/mlp_2/~/linear_0/w", 29**-0.5),
    ],
)
def test_scales_of_a_new_rule(array, scale):
    w = _new_rule()[array]
    deviation = 0.88 * scale  # of a normal cut at two deviations
    assert abs(np.std(w) / deviation - 1) < 3 / np.sqrt(w.size)
    assert 0.5 * deviation < np.abs(w).max() <= 2 * scale * 1.001


@functools.cache
def _new_rule():
    return weights.flatten(jax.tree.map(np.asarray, Disco().init_params(jax.random.key(3))))


def test_biases_of_a_new_rule_are_zero_and_keys_matter():
    arrays = _new_rule()
    assert all(not x.any() for name, x in arrays.items() if name.endswith("/b"))
    other = weights.flatten(jax.tree.map(np.asarray, Disco().init_params(jax.random.key(4))))
    assert all((arrays[n] != other[n]).any() for n in arrays if n.endswith("/w"))
    # No two layers are made from the same random numbers.
    scaled = [x.ravel()[:3] / np.abs(x).max() for n, x in arrays.items() if n.endswith("/w")]
    assert len({tuple(np.round(x, 5)) for x in scaled}) == len(scaled)


@pytest.mark.parametrize(
    "sizes",
    [
        SIZES,
        dataclasses.replace(SIZES, embedding_net=(5, 4, 1), policy_net=(3,), meta_input=(4, 3)),
        dataclasses.replace(SIZES, prediction=7, pi_hat_blocks=(4, 3), meta_embedding_net=(1,)),
    ],
)
def test_other_sizes_are_valid_and_read_back(sizes, tmp_path):
    eta = Disco(sizes=sizes).init_params(jax.random.key(0))
    plain = jax.tree.map(np.asarray, eta)
    weights.validate(plain)
    weights.save(tmp_path / "rule.npz", plain, {"bins": 5})
    loaded = weights.load(tmp_path / "rule.npz")
    assert Sizes.of(loaded) == sizes
    with jax.enable_x64(True):
        rule = Disco(sizes=sizes, num_bins=5)
        targets, _ = call(rule, cast(loaded, "float64"), *case(predictions=sizes.prediction))
    assert targets.y.shape == (STEPS, BATCH, sizes.prediction)
    assert targets.pi.shape == (STEPS, BATCH, ACTIONS)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(targets))


# --- targets --------------------------------------------------------------------------------------


def case(seed=0, predictions=4, bins=5):
    """A trajectory, and outputs of an agent and of its target network."""
    rng = np.random.default_rng(seed)
    arrays = reference.random_trajectory(rng, STEPS, BATCH, ACTIONS)
    trajectory = Trajectory(
        observation=None,
        action=jnp.asarray(arrays["actions"][:-1]),
        reward=jnp.asarray(arrays["rewards"]),
        terminated=jnp.zeros((STEPS, BATCH), bool),
        behaviour_logits=jnp.asarray(arrays["behaviour_logits"][:-1]),
        truncated=jnp.zeros((STEPS, BATCH), bool),
    )
    online, target = (
        jax.tree.map(
            jnp.asarray, reference.random_outputs(rng, STEPS, BATCH, ACTIONS, predictions, bins)
        )
        for _ in range(2)
    )
    return trajectory, online, target


def state_of(rule):
    """A state in the middle of a life: at its very start the meta-RNN gives nothing."""
    state = cast(rule.init_state(1), "float64")
    meta = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size) + 1.0), state.meta_rnn)
    moments = returns.Moments(*(jnp.float64(x) for x in (0.1, 0.7, 0.5)))
    return type(state)(meta, moments, moments)


@functools.partial(jax.jit, static_argnums=0)
def call(rule, eta, trajectory, online, target):
    """Targets and the new state from raw outputs."""

    def summaries(outputs):
        named = {n: rule.summarise(eta, n, x) for n, x in outputs.items()}
        return {n: x for n, x in named.items() if x is not None}

    state = state_of(rule)
    targets, state, _ = rule.targets(eta, state, trajectory, summaries(online), summaries(target))
    return targets, state


def groups(eta):
    """Every layer of eta, by its path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(eta)
    return {jax.tree_util.keystr(path): leaf for path, leaf in flat}


def test_gradient_by_every_part_of_eta_agrees_with_finite_differences():
    """Of a random sum over all targets and the meta-RNN's new state."""
    eta = jax.tree.map(
        lambda x: x + 0.1 * np.cos(np.arange(x.size)).reshape(x.shape),
        jax.tree.map(np.asarray, RULE.init_params(jax.random.key(2))),
    )
    with jax.enable_x64(True):
        eta = cast(eta, "float64")
        trajectory, online, target = case(1)
        trajectory = dataclasses.replace(
            trajectory, terminated=trajectory.terminated.at[2, 0].set(True)
        )

        @jax.jit
        def objective(eta):
            targets, state = call(RULE, eta, trajectory, online, target)
            hats = (targets.pi, targets.y, targets.z, targets.embedding, vars(state.meta_rnn))
            return sum(
                jnp.sum(x * jnp.sin(3.0 * jnp.arange(x.size) + i).reshape(x.shape))
                for i, x in enumerate(jax.tree.leaves(hats))
            )

        gradient = jax.jit(jax.grad(objective))(eta)
        leaves, tree = jax.tree.flatten(eta)
        rng = np.random.default_rng(0)
        names = list(groups(eta))
        seen = 0
        for i, slope in enumerate(jax.tree.leaves(gradient)):
            direction = rng.normal(size=leaves[i].shape)
            step = 1e-6

            def shifted(sign, i=i, direction=direction, step=step):
                x = [v + sign * step * direction if j == i else v for j, v in enumerate(leaves)]
                return objective(jax.tree.unflatten(tree, x))

            difference = float(shifted(1) - shifted(-1)) / (2 * step)
            np.testing.assert_allclose(
                np.sum(slope * direction), difference, rtol=1e-5, atol=1e-7, err_msg=names[i]
            )
            seen += abs(difference) > 1e-4
    assert seen == len(names), "some part of eta has no influence here, so was not tested"


def test_gradients_flow_through_y_and_z_alone():
    """Into the targets, as discovery needs it: by y and z, not by policy or values."""
    with jax.enable_x64(True):
        eta = cast(RULE.init_params(jax.random.key(2)), "float64")
        trajectory, online, target = case(1)

        @jax.jit
        @functools.partial(jax.grad, argnums=(0, 1))
        def gradients(online, target):
            targets, _ = call(RULE, eta, trajectory, online, target)
            hats = (targets.pi, targets.y, targets.z)
            return sum(jnp.sum(jnp.sin(x + jnp.arange(x.shape[-1]))) for x in hats)

        for outputs in gradients(online, target):
            assert {n for n, x in outputs.items() if np.abs(x).max() > 0} == {"y", "z"}


# --- the ends of episodes -------------------------------------------------------------------------


@pytest.fixture
def constant_moments(monkeypatch):
    """Batch statistics reach every step; without them, time alone connects the steps."""
    monkeypatch.setattr(returns, "update_moments", lambda moments, x, weight: moments)
    jax.clear_caches()
    yield
    jax.clear_caches()


def changed_from(t, trajectory, online, target):
    """Everything of moments t, t+1, ... replaced."""
    others = case(7)

    def change(x, y):
        return x.at[t:].set(y[t:])

    trajectory = dataclasses.replace(
        trajectory,
        **{
            name: change(getattr(trajectory, name), getattr(others[0], name))
            for name in ("action", "reward", "behaviour_logits")
        },
    )
    return trajectory, *(
        jax.tree.map(change, x, y) for x, y in zip((online, target), others[1:], strict=True)
    )


def differing_steps(before, after):
    """Steps at which any target differs."""
    found = set()
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        error = np.abs(x - y).reshape(STEPS, -1).max(axis=1)
        found |= {t for t in range(STEPS) if error[t] > 1e-12}
    return found


@pytest.mark.parametrize(
    ("end", "change_from", "differing"),
    [
        (None, 3, {0, 1, 2, 3, 4}),
        # The ending step's features read the next moment, whoever's it is, and earlier steps read
        # the ending one; but nothing beyond that moment.
        ("terminated", 2, {0, 1, 2, 3, 4}),
        ("terminated", 3, {2, 3, 4}),
        # The next moment is the truncated episode's own, and all of its steps bootstrap from it.
        ("truncated", 2, {0, 1, 2, 3, 4}),
        ("truncated", 3, {2, 3, 4}),
    ],
)
def test_nothing_crosses_the_end_of_an_episode(constant_moments, end, change_from, differing):
    with jax.enable_x64(True):
        eta = cast(RULE.init_params(jax.random.key(2)), "float64")
        trajectory, online, target = case(1)
        if end:
            ends = getattr(trajectory, end).at[1].set(True)
            trajectory = dataclasses.replace(trajectory, **{end: ends})
        before, _ = call(RULE, eta, trajectory, online, target)
        after, _ = call(RULE, eta, *changed_from(change_from, trajectory, online, target))
    assert differing_steps(before, after) == differing
    # Returns do not read the next moment after a termination, only after a truncation.
    reach = {None: 0, "terminated": 2, "truncated": 2 if change_from == 3 else 0}[end]
    np.testing.assert_array_equal(before.q[:reach], after.q[:reach])
    assert not np.isclose(before.q[reach:], after.q[reach:]).any()
    if end == "terminated":
        np.testing.assert_allclose(before.q[1], trajectory.reward[1])


# --- the spacing of the bins ----------------------------------------------------------------------


def values_of(rule, trajectory, online, target):
    """Values that a rule at the start of a life makes of outputs."""

    def summarised(outputs):
        return outputs | {"q": rule.summarise((), "q", outputs["q"])}

    state = cast(rule.init_state(1), "float64")
    return rule.values(state, trajectory, summarised(online), summarised(target))[0]


def test_fine_bins_and_small_rewards_are_coarse_bins_and_large_rewards():
    spacing = 1 / 8
    fine = dataclasses.replace(RULE, bin_spacing=spacing)
    with jax.enable_x64(True):
        trajectory, online, target = case()
        large = dataclasses.replace(trajectory, reward=trajectory.reward / spacing)
        values = values_of(fine, trajectory, online, target)
        coarse = values_of(RULE, large, online, target)
        for name in ("v", "q", "q_target", "adv", "qv_adv", "q_td"):
            expected = spacing * getattr(coarse, name)
            np.testing.assert_allclose(getattr(values, name), expected, rtol=1e-12)
        for name in ("normalised_adv", "normalised_qv_adv", "normalised_q_td"):
            # Up to the epsilon that keeps them finite.
            np.testing.assert_allclose(getattr(values, name), getattr(coarse, name), rtol=1e-4)

        def loss_of_q(rule, values):
            zeros = jnp.zeros((STEPS, BATCH, 4))
            outputs = {
                "logits": online["logits"],
                "y": jnp.zeros((STEPS + 1, BATCH, 4)),
                "z": zeros,
                "aux_pi": online["logits"][:-1],
                "q": returns.take_action(online["q"][:-1], trajectory.action),
            }
            targets = Targets(online["logits"][:-1], zeros, zeros, values.q_target, zeros[..., :1])
            return rule.loss(outputs, targets, trajectory)["q"]

        np.testing.assert_allclose(loss_of_q(fine, values), loss_of_q(RULE, coarse), rtol=1e-12)


def test_the_spacing_is_kept_in_the_file_of_a_rule_and_the_published_one_is_1(tmp_path):
    eta = RULE.init_params(jax.random.key(0))
    fine = dataclasses.replace(RULE, bin_spacing=0.125, return_span=5.0)
    fine.save(tmp_path / "fine.npz", eta)
    assert rules.load(str(tmp_path / "fine.npz"))[0] == fine
    RULE.save(tmp_path / "plain.npz", eta)
    assert rules.load(str(tmp_path / "plain.npz"))[0] == RULE
    assert npz.read(tmp_path / "plain.npz").metadata == {"bins": 5, "without": "none"}
    weights.save(tmp_path / "published.npz", jax.tree.map(np.asarray, eta))
    published, _ = rules.load(str(tmp_path / "published.npz"))
    assert (published.num_bins, published.bin_spacing, published.return_span) == (601, 1.0, 30.0)


def test_rewards_are_scaled_to_the_span_of_returns_that_a_rule_wants():
    wanting = dataclasses.replace(RULE, return_span=30.0)
    assert wanting.reward_scale(lambda: 1.5) == 20.0
    assert wanting.reward_scale(lambda: 1000.0) == 1.0
    assert wanting.reward_scale(lambda: None) == 1.0
    assert RULE.reward_scale(lambda: pytest.fail("nobody asked")) == 1.0
