"""What all rules have in common: settings that are refused, and metrics that pass over fillers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discorl
from discorl.rules import PPO, REGISTRY, Disco, Sizes
from discorl.types import Trajectory, UserError

STEPS, BATCH, ACTIONS = 4, 2, 3
SIZES = Sizes(
    prediction=4,
    trajectory_lstm=5,
    embedding_net=(1,),
    policy_net=(2,),
    pi_hat_blocks=(3,),
    meta_lstm=3,
    meta_input=(3,),
    meta_embedding_net=(1,),
    meta_policy_net=(2,),
)


@pytest.mark.parametrize("rule", REGISTRY.values())
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discount": 1.01}, r"discount is 1.01; expected from 0 to 1"),
        ({"discount": -0.1}, r"discount is -0.1; expected from 0 to 1"),
        ({"discount": float("nan")}, r"discount is nan; expected from 0 to 1"),
        ({"epochs": 0}, r"epochs is 0; expected at least 1"),
        ({"minibatches": -2}, r"minibatches is -2; expected at least 1"),
    ],
)
def test_settings_of_any_rule_that_make_no_sense(rule, settings, message):
    with pytest.raises(UserError, match=f"^{rule.name}: {message}$"):
        rule(**settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ppo:clip=-1", "ppo: clip is -1.0; expected a positive number"),
        ("ppo:value_clip=0", "ppo: value_clip is 0.0; expected a positive number"),
        ("ppo:lambda_=1.5", "ppo: lambda_ is 1.5; expected from 0 to 1"),
        ("actor_critic:lambda_=-0.1", "actor_critic: lambda_ is -0.1; expected from 0 to 1"),
        ("disco:lambda_=2", "disco: lambda_ is 2.0; expected from 0 to 1"),
        ("ppo:value_cost=-1", "ppo: value_cost is -1.0; expected at least 0"),
        ("actor_critic:entropy_cost=-1", "actor_critic: entropy_cost is -1.0; expected at least 0"),
    ],
)
def test_settings_of_single_rules_that_make_no_sense(text, message):
    with pytest.raises(UserError, match=message):
        discorl.load_rule(text)


@pytest.mark.parametrize("bins", [4, 1, -3, 601.0, True, "601"])
def test_bins_without_a_middle_are_refused(bins):
    with pytest.raises(UserError, match=f"num_bins is {bins!r}; expected "):
        Disco(num_bins=bins)


@pytest.mark.parametrize(
    ("name", "value"), [("discount", 0.0), ("discount", 1.0), ("epochs", 1), ("minibatches", 1)]
)
def test_the_ends_of_the_ranges_are_accepted(name, value):
    for rule in (PPO(**{name: value}), Disco(num_bins=3, **{name: value})):
        assert getattr(rule, name) == value


def test_metrics_of_disco_pass_over_fillers():
    rng = np.random.default_rng(0)
    rule = Disco(sizes=SIZES, num_bins=5)
    # Larger than a new rule, whose targets for the policy are all but uniform.
    eta = jax.tree.map(lambda x: 5 * x, rule.init_params(jax.random.key(0)))
    # The embeddings of both halves of the meta-network, one number each, lie side by side.
    shapes = {"logits": (ACTIONS,), "q": (ACTIONS,), "y": (2,), "z": (ACTIONS, 2)}
    online, target = (
        {n: jnp.asarray(rng.normal(size=(STEPS + 1, BATCH, *s))) for n, s in shapes.items()}
        for _ in range(2)
    )
    trajectory = Trajectory(
        observation=None,
        action=jnp.zeros((STEPS, BATCH), int),
        reward=jnp.ones((STEPS, BATCH)),
        terminated=jnp.zeros((STEPS, BATCH), bool),
        behaviour_logits=jnp.zeros((STEPS, BATCH, ACTIONS)),
        truncated=jnp.zeros((STEPS, BATCH), bool).at[1, 0].set(True),
    )
    targets, _, metrics = rule.targets(eta, rule.init_state(1), trajectory, online, target)
    values, _ = rule.values(rule.init_state(1), trajectory, online, target)
    learned = np.ones((STEPS, BATCH), bool)
    learned[2, 0] = False
    pi_hat = np.asarray(jax.nn.softmax(targets.pi))
    expected = {
        "value": values.v[:-1],
        "q_td": np.abs(values.q_td),
        "pi_hat_entropy": -np.sum(pi_hat * np.log(pi_hat), axis=-1),
    }
    assert set(metrics) == set(expected)
    for name, each in expected.items():
        every = np.asarray(each)
        np.testing.assert_allclose(metrics[name], every[learned].mean(), rtol=1e-5)
        assert not np.isclose(metrics[name], every.mean(), rtol=1e-4), name
