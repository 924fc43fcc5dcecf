"""The hand-designed rules against loops over their definitions and gradients derived by hand."""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discorl.rules.actor_critic import ActorCritic
from discorl.rules.policy_gradient import PolicyGradient
from discorl.rules.ppo import PPO
from discorl.types import Array, Metrics, Outputs, Trajectory

HandMade = ActorCritic | PolicyGradient | PPO
STEPS, BATCH, ACTIONS = 6, 3, 3
RULES: list[HandMade] = [
    ActorCritic(discount=0.9, lambda_=0.8),
    PolicyGradient(discount=0.9),
    PPO(discount=0.9, lambda_=0.8),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def experience(seed: int = 0) -> tuple[Trajectory, Outputs]:
    """A batch in which one episode terminates, one is truncated, and one ends for good.

    Column 0 terminates after step 2 and goes on with the next episode. Column 1 is truncated after
    step 2, so step 3 is a filler. Column 2 terminates after step 3 and is masked from there on.
    """
    rng = np.random.default_rng(seed)
    terminated, truncated = np.zeros((2, STEPS, BATCH), bool)
    terminated[2, 0] = truncated[2, 1] = terminated[3, 2] = True
    mask = np.ones((STEPS, BATCH))
    mask[4:, 2] = 0
    logits = rng.normal(size=(STEPS + 1, BATCH, ACTIONS))
    trajectory = Trajectory(
        observation=jnp.zeros((STEPS + 1, BATCH)),
        action=jnp.asarray(rng.integers(ACTIONS, size=(STEPS, BATCH))),
        reward=jnp.asarray(rng.normal(size=(STEPS, BATCH))),
        terminated=jnp.asarray(terminated),
        behaviour_logits=jnp.asarray(logits[:-1] + rng.normal(size=(STEPS, BATCH, ACTIONS))),
        truncated=jnp.asarray(truncated),
        mask=jnp.asarray(mask),
    )
    value = rng.normal(size=(STEPS + 1, BATCH))
    return trajectory, {"logits": jnp.asarray(logits), "value": jnp.asarray(value)}


@functools.partial(jax.jit, static_argnums=0)
def targets_of(
    rule: HandMade, trajectory: Trajectory, outputs: Outputs
) -> tuple[dict[str, Array], Metrics]:
    targets, state, metrics = rule.targets((), rule.init_state(1), trajectory, outputs, {})
    assert state == ()
    return targets, metrics


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(
    rule: HandMade, outputs: Outputs, targets: dict[str, Array], trajectory: Trajectory
) -> tuple[Array, Outputs]:
    """The loss as a learner reduces it, and its gradient with respect to the outputs."""

    def total(outputs: Outputs) -> Array:
        weight = trajectory.learnable(outputs["value"].dtype)
        terms = rule.loss(outputs, targets, trajectory)
        assert all(term.shape == weight.shape for term in terms.values())
        return sum(jnp.sum(term * weight) for term in terms.values()) / jnp.sum(weight)

    return jax.value_and_grad(total)(outputs)


def policy_of(logits: Array) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def taken(values: np.ndarray, trajectory: Trajectory) -> np.ndarray:
    return np.take_along_axis(values, np.asarray(trajectory.action)[..., None], axis=-1)[..., 0]


def learnable_steps() -> np.ndarray:
    steps = np.ones((STEPS, BATCH))
    steps[3, 1] = steps[4, 2] = steps[5, 2] = 0
    return steps


def loop_advantages(rule: HandMade, trajectory: Trajectory, outputs: Outputs) -> np.ndarray:
    """Advantages, one step after another from the end.

    With every ratio clipped at one and one lambda, also V-trace's value target exceeds the value
    by just the advantage.
    """
    decay = 1.0 if isinstance(rule, PolicyGradient) else rule.lambda_
    ratio = taken(policy_of(outputs["logits"][:-1]), trajectory)
    ratio = ratio / taken(policy_of(trajectory.behaviour_logits), trajectory)
    clipped = np.minimum(1, ratio) if isinstance(rule, ActorCritic) else np.ones_like(ratio)
    value, reward = np.asarray(outputs["value"]), np.asarray(trajectory.reward)
    advantage = np.zeros((STEPS, BATCH))
    cut = np.zeros((STEPS, BATCH), bool)
    cut[2, 0] = cut[2, 1] = cut[3, 2] = True
    for b in range(BATCH):
        for t in reversed(range(STEPS)):
            discount = 0.0 if trajectory.terminated[t, b] else rule.discount
            later = 0.0 if t == STEPS - 1 or cut[t, b] else decay * advantage[t + 1, b]
            one_step = reward[t, b] + discount * value[t + 1, b] - value[t, b]
            advantage[t, b] = clipped[t, b] * (one_step + discount * later)
    return advantage


@every_rule
def test_outputs_are_a_policy_and_a_scalar_value(rule: HandMade) -> None:
    spec = rule.outputs(5)
    assert (spec.num_actions, spec.action) == (5, {})
    assert spec.state == {"logits": (5,), "value": ()}


@every_rule
def test_recipe_is_on_policy_and_divides_into_minibatches(rule: HandMade) -> None:
    recipe = rule.recipe
    assert recipe["replay_fraction"] == 0
    assert recipe["batch"] == recipe["num_envs"]
    assert recipe["batch"] % rule.minibatches == 0


@every_rule
@pytest.mark.parametrize("seed", range(3))
def test_targets_against_a_loop(rule: HandMade, seed: int) -> None:
    trajectory, outputs = experience(seed)
    targets, metrics = targets_of(rule, trajectory, outputs)
    advantage = loop_advantages(rule, trajectory, outputs)
    value = outputs["value"][:-1] + advantage
    np.testing.assert_allclose(targets["value"], value, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(targets["advantage"], advantage, rtol=1e-12, atol=1e-14)
    weight = learnable_steps()
    mean_value = (outputs["value"][:-1] * weight).sum() / weight.sum()
    np.testing.assert_allclose(metrics["value"], mean_value)


def test_ppo_remembers_the_behaviour_and_the_values() -> None:
    trajectory, outputs = experience()
    targets, _ = targets_of(PPO(), trajectory, outputs)
    log_mu = np.log(taken(policy_of(trajectory.behaviour_logits), trajectory))
    np.testing.assert_allclose(targets["old_log_pi"], log_mu)
    np.testing.assert_array_equal(targets["old_value"], outputs["value"][:-1])


@every_rule
def test_targets_carry_no_gradient(rule: HandMade) -> None:
    trajectory, outputs = experience()

    def total(outputs: Outputs) -> Array:
        return sum(x.sum() for x in jax.tree.leaves(targets_of(rule, trajectory, outputs)))

    for gradient in jax.grad(total)(outputs).values():
        assert not gradient.any()


@every_rule
@pytest.mark.parametrize("seed", range(3))
def test_gradient_of_the_loss_by_hand(rule: HandMade, seed: int) -> None:
    trajectory, outputs = experience(seed)
    targets, _ = targets_of(rule, trajectory, outputs)
    # The agent has moved since the targets were made, as in a later pass of PPO.
    rng = np.random.default_rng(seed + 100)
    outputs = {name: x + 0.3 * rng.normal(size=x.shape) for name, x in outputs.items()}
    _, gradient = loss_and_gradient(rule, outputs, targets, trajectory)

    weight = learnable_steps()
    pi = policy_of(outputs["logits"][:-1])
    slope = np.asarray(targets["advantage"])
    if isinstance(rule, PPO):
        kept = slope[weight == 1]
        advantage = (slope - kept.mean()) / (kept.std() + 1e-8)
        ratio = taken(pi, trajectory) / np.exp(targets["old_log_pi"])
        stuck = np.where(advantage > 0, ratio > 1 + rule.clip, ratio < 1 - rule.clip)
        assert 0 < stuck[weight == 1].sum() < weight.sum()
        slope = np.where(stuck, 0, ratio * advantage)
    chosen = np.eye(ACTIONS)[np.asarray(trajectory.action)]
    entropy = -(pi * np.log(pi)).sum(-1, keepdims=True)
    policy_part = slope[..., None] * (pi - chosen)
    entropy_part = rule.entropy_cost * pi * (np.log(pi) + entropy)
    logits = (policy_part + entropy_part) * weight[..., None] / weight.sum()
    value = rule.value_cost * (outputs["value"][:-1] - targets["value"]) * weight / weight.sum()
    np.testing.assert_allclose(gradient["logits"][:-1], logits, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradient["value"][:-1], value, rtol=1e-9, atol=1e-12)
    assert not gradient["logits"][-1].any()
    assert not gradient["value"][-1].any()


@every_rule
def test_unlearnable_steps_have_no_influence(rule: HandMade) -> None:
    trajectory, outputs = experience()
    unlearnable = jnp.asarray(learnable_steps() == 0)
    after_the_end = jnp.zeros((STEPS + 1, BATCH), bool).at[4:, 2].set(True)

    other, noise = experience(seed=1)
    changed = dataclasses.replace(
        trajectory,
        action=jnp.where(unlearnable, (trajectory.action + 1) % ACTIONS, trajectory.action),
        reward=jnp.where(unlearnable, 1e3, trajectory.reward),
        terminated=trajectory.terminated ^ unlearnable,
        behaviour_logits=jnp.where(
            unlearnable[..., None], other.behaviour_logits, trajectory.behaviour_logits
        ),
    )
    no_matter = after_the_end.at[:-1].set(after_the_end[:-1] | unlearnable)
    changed_outputs = {
        "logits": jnp.where(no_matter[..., None], noise["logits"], outputs["logits"]),
        # The truncated episode's last value, at the filler, is bootstrapped from.
        "value": jnp.where(after_the_end, 1e3, outputs["value"]),
    }

    targets, metrics = targets_of(rule, trajectory, outputs)
    changed_targets, changed_metrics = targets_of(rule, changed, changed_outputs)
    loss, gradient = loss_and_gradient(rule, outputs, targets, trajectory)
    changed_loss, changed_gradient = loss_and_gradient(
        rule, changed_outputs, changed_targets, changed
    )
    np.testing.assert_allclose(changed_loss, loss, rtol=1e-12)
    for name in gradient:
        np.testing.assert_allclose(changed_gradient[name], gradient[name], rtol=1e-9, atol=1e-14)
        assert not gradient[name][:-1][unlearnable].any()
    for name in metrics:
        np.testing.assert_allclose(changed_metrics[name], metrics[name], rtol=1e-12)
    assert not np.allclose(changed_targets["value"], targets["value"])


@every_rule
def test_a_batch_without_a_learnable_step_is_finite(rule: HandMade) -> None:
    trajectory, outputs = experience()
    trajectory = dataclasses.replace(trajectory, mask=jnp.zeros((STEPS, BATCH)))
    targets, metrics = targets_of(rule, trajectory, outputs)
    terms = rule.loss(outputs, targets, trajectory)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((targets, metrics, terms)))


def test_ppo_at_ratio_one_is_the_plain_policy_gradient() -> None:
    trajectory, outputs = experience()
    trajectory = dataclasses.replace(trajectory, behaviour_logits=outputs["logits"][:-1])
    ppo, policy_gradient = PPO(entropy_cost=0.0), PolicyGradient(entropy_cost=0.0)
    targets, _ = targets_of(ppo, trajectory, outputs)
    kept = np.asarray(targets["advantage"])[learnable_steps() == 1]
    normalised = (targets["advantage"] - kept.mean()) / kept.std()
    plain_targets = {"advantage": normalised, "value": targets["value"]}
    _, clipped = loss_and_gradient(ppo, outputs, targets, trajectory)
    _, plain = loss_and_gradient(policy_gradient, outputs, plain_targets, trajectory)
    np.testing.assert_allclose(clipped["logits"], plain["logits"], rtol=1e-6, atol=1e-9)


def one_step(action_logit: list[float]) -> tuple[Trajectory, Outputs]:
    """One transition in each of several trajectories, whose first of two actions is taken."""
    count = len(action_logit)
    logits = jnp.zeros((2, count, 2)).at[0, :, 0].set(jnp.array(action_logit))
    trajectory = Trajectory(
        observation=jnp.zeros((2, count)),
        action=jnp.zeros((1, count), int),
        reward=jnp.zeros((1, count)),
        terminated=jnp.zeros((1, count), bool),
        behaviour_logits=jnp.zeros((1, count, 2)),
    )
    return trajectory, {"logits": logits, "value": jnp.zeros((2, count))}


def test_ppo_clips_only_what_has_already_moved_the_right_way() -> None:
    likelier, rarer = np.log(0.75 / 0.25), np.log(0.25 / 0.75)  # ratios 1.5 and 0.5
    trajectory, outputs = one_step([likelier, rarer, likelier, rarer])
    zeros = jnp.zeros((1, 4))
    targets = {
        "advantage": jnp.array([[1.0, 1.0, -1.0, -1.0]]),
        "value": zeros,
        "old_log_pi": zeros + np.log(0.5),
        "old_value": zeros,
    }
    rule = PPO(entropy_cost=0.0)
    _, gradient = loss_and_gradient(rule, outputs, targets, trajectory)
    # A quarter of -ratio * advantage * (1 - pi), where the clip lets it through.
    expected = np.array([0, -0.5 * 0.75, 1.5 * 0.25, 0]) / 4
    np.testing.assert_allclose(gradient["logits"][0, :, 0], expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("value_clip", "expected"), [(None, [-0.5, -0.95, -1.5]), (0.1, [0, -0.95, -1.5])]
)
def test_ppo_clips_values_on_request(value_clip: float | None, expected: list[float]) -> None:
    trajectory, outputs = one_step([0.0, 0.0, 0.0])
    # Old values are 0 and returns 1: beyond the clip, within it, and beyond it the wrong way.
    outputs["value"] = outputs["value"].at[0].set(jnp.array([0.5, 0.05, -0.5]))
    zeros = jnp.zeros((1, 3))
    targets = {
        "advantage": zeros,
        "value": zeros + 1,
        "old_log_pi": zeros + np.log(0.5),
        "old_value": zeros,
    }
    rule = PPO(value_clip=value_clip, value_cost=3.0)
    _, gradient = loss_and_gradient(rule, outputs, targets, trajectory)
    np.testing.assert_allclose(gradient["value"][0], expected, rtol=1e-12, atol=1e-12)
