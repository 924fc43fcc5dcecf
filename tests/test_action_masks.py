"""Action masks: illegal actions are neither taken nor learned from."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learners import TINY_SIZES
from probes import Forbidden

import discorl
from discorl.agent import acting, frames
from discorl.agent.learner import Learner
from discorl.envs import conformance
from discorl.networks import Network
from discorl.rules import masks
from discorl.rules.actor_critic import ActorCritic
from discorl.rules.disco import Disco
from discorl.rules.lean import Lean
from discorl.rules.muesli import Muesli
from discorl.rules.ppo import PPO
from discorl.rules.q_lambda import QLambda
from discorl.rules.regularisers import Regularisers
from discorl.runs.metrics import TOTAL_LOSS
from discorl.training.evaluation import evaluate
from discorl.types import Trajectory, UserError
from discorl.verification.cases import cast

T, B, ALL, LEGAL = 5, 3, 5, 3  # steps, batch, actions, and those of them that are legal
MOMENTS = (T + 1) * B

# --- a masked agent learns as one that has no illegal actions -------------------------------------

RULES = {
    "actor_critic": ActorCritic(),
    "ppo": PPO(epochs=2, minibatches=1),
    "q_lambda": QLambda(),
    "muesli": Muesli(),
    "lean": Lean(hidden=3),
    "disco": Disco(sizes=TINY_SIZES, num_bins=7, regularisers=Regularisers(target_improvement=1.0)),
}


def table_learner(rule, num_actions):
    """An agent whose parameters are its outputs at each of a few moments."""
    spec = rule.outputs(num_actions)

    def init(key, observation):
        shapes = spec.state | {n: (num_actions, *shape) for n, shape in spec.action.items()}
        keys = jax.random.split(key, len(shapes))
        draw = zip(keys, shapes.items(), strict=True)
        return {n: jax.random.normal(k, (MOMENTS, *shape)) for k, (n, shape) in draw}

    def apply(params, observation):
        return {n: x[observation] for n, x in params.items()}

    return Learner(rule, Network(init, apply), optax.sgd(0.1), num_actions)


def legal_at_random(rng):
    """The legal actions of each moment in order, [T+1, B, LEGAL], and the same as a mask."""
    drawn = rng.permuted(np.tile(np.arange(ALL), (T + 1, B, 1)), axis=-1)[..., :LEGAL]
    legal = np.sort(drawn, axis=-1)
    return legal, (legal[..., None] == np.arange(ALL)).any(axis=-2)


def removed(params, legal):
    """The tables without illegal actions; aux_pi is about the actions of the next moment."""
    here = legal.reshape(MOMENTS, LEGAL)
    after = np.concatenate([legal[1:], legal[-1:]]).reshape(MOMENTS, LEGAL)

    def take(name, x):
        rows = np.arange(MOMENTS)[:, None]
        if x.ndim == 1 or name == "y":
            return x
        x = x[rows, here]
        return (
            x[rows[..., None], np.arange(LEGAL)[:, None], after[:, None]] if name == "aux_pi" else x
        )

    return {name: take(name, jnp.asarray(x)) for name, x in params.items()}


def experience(rng, legal, mask):
    """The same trajectory with and without illegal actions."""
    chosen = rng.integers(LEGAL, size=(T, B))
    logits = rng.normal(size=(T, B, ALL))
    ends = np.zeros((T, B), bool)
    terminated, truncated = ends.copy(), ends.copy()
    terminated[1, 0] = truncated[2, 1] = True
    whole = Trajectory(
        observation=jnp.arange(MOMENTS).reshape(T + 1, B),
        action=jnp.asarray(np.take_along_axis(legal[:-1], chosen[..., None], -1)[..., 0]),
        reward=jnp.asarray(rng.normal(size=(T, B))),
        terminated=jnp.asarray(terminated),
        behaviour_logits=masks.mask_logits(jnp.asarray(logits), jnp.asarray(mask[:-1])),
        truncated=jnp.asarray(truncated),
        action_mask=jnp.asarray(mask),
    )
    without = dataclasses.replace(
        whole,
        action=jnp.asarray(chosen),
        behaviour_logits=jnp.asarray(np.take_along_axis(logits, legal[:-1], -1)),
        action_mask=None,
    )
    return whole, without


def updated(learner, state, trajectory, eta):
    """After an update; and what discovery would add to its loss for the targets."""

    def update(state, eta):
        state, metrics, details = learner.update_in_detail(state, eta, trajectory)
        rule = learner.rule
        return (
            state,
            metrics,
            rule.penalty(details.targets, trajectory, details.online, details.target),
        )

    return jax.jit(update)(state, eta)


def with_and_without(rule, dtype):
    """Learner, state and experience with a mask, and the same without the illegal actions.

    Also the rule's parameters, and the legal actions of all moments.
    """
    rng = np.random.default_rng(0)
    legal, mask = legal_at_random(rng)
    whole, without = cast(experience(rng, legal, mask), dtype)
    learner, smaller = table_learner(rule, ALL), table_learner(rule, LEGAL)
    # New rules are hand-designed or all but silent; these say something.
    eta = jax.tree.map(
        lambda x: x + 0.3 * jnp.cos(jnp.arange(x.size)).reshape(x.shape),
        cast(rule.init_params(jax.random.key(1)), dtype),
    )
    state = learner.init(jax.random.key(2), jax.ShapeDtypeStruct((), jnp.int32), 10)
    target = None
    if state.target_params is not None:
        target = learner.network.init(jax.random.key(3), None)
    state = dataclasses.replace(state, target_params=target)
    small = dataclasses.replace(
        state,
        params=removed(state.params, legal),
        target_params=None if target is None else removed(target, legal),
    )
    return (learner, state, whole), (smaller, small, without), eta, legal


@pytest.mark.parametrize("name", RULES)
def test_masked_agents_learn_as_if_they_had_no_illegal_actions(name):
    with jax.enable_x64(True):
        masked, bare, eta, legal = with_and_without(RULES[name], "float64")
        (after, *told), (expected, *expected_told) = (updated(*x, eta) for x in (masked, bare))
        close = partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-9)
        jax.tree.map(close, removed(after.params, legal), expected.params)
        jax.tree.map(close, (after.rule, told), (expected.rule, expected_told))
        # Whatever belongs to an illegal action stays exactly as it was.
        _, before, trajectory = masked
        illegal = ~np.asarray(trajectory.action_mask).reshape(MOMENTS, ALL)
        for name, old in before.params.items():
            if old.ndim > 1 and name != "y":
                np.testing.assert_array_equal(after.params[name][illegal], old[illegal])


@pytest.mark.long
@pytest.mark.parametrize("name", ["lean", "disco"])
def test_masked_updates_are_differentiated_as_if_there_were_no_illegal_actions(name):
    def gradient(learner, state, trajectory, eta, legal):
        def moved(eta):
            params = learner.update(state, eta, trajectory)[0].params
            params = params if legal is None else removed(params, legal)
            return sum(
                jnp.sum(x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)) for x in params.values()
            )

        return jax.jit(jax.grad(moved))(eta)

    with jax.enable_x64(True):
        masked, bare, eta, legal = with_and_without(RULES[name], "float64")
        close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-9)
        jax.tree.map(close, gradient(*masked, eta, legal), gradient(*bare, eta, None))
    masked, _, eta, legal = with_and_without(RULES[name], "float32")
    finite = jax.tree.map(lambda x: np.isfinite(x).all(), gradient(*masked, eta, legal))
    assert all(jax.tree.leaves(finite))


# --- acting, replay, evaluation -------------------------------------------------------------------


@pytest.mark.parametrize("cut", [False, True])
def test_rollouts_hold_masks_and_legal_actions(cut):
    environment = Forbidden(cut=cut)

    def policy(observation, recurrent_state, action_mask):
        favourite = jnp.broadcast_to(jnp.array([0.0, 0, 20, 40]), action_mask.shape)
        return masks.mask_logits(favourite, action_mask), recurrent_state

    @jax.jit
    def live(key):
        state = acting.init(environment, key, 3)
        return acting.rollout(environment, policy, state, key, 10)[1]

    trajectory = live(jax.random.key(0))
    time = np.argmax(trajectory.observation, axis=-1)  # [T+1, E]
    expected = jax.vmap(jax.vmap(environment.action_mask))(time)
    np.testing.assert_array_equal(trajectory.action_mask, expected)
    real = ~np.asarray(trajectory.fillers())
    taken = np.asarray(trajectory.action)[real]
    assert np.isfinite(trajectory.reward).all()
    np.testing.assert_array_equal(taken[time[:-1][real] != 1], 2)
    assert set(taken[time[:-1][real] == 1]) == {0, 1}
    # Where nothing is legal, at the last observation of a cut episode, all actions are.
    legal = trajectory.legal()
    assert legal.any(axis=-1).all()
    assert (time == 3).any() == cut
    np.testing.assert_array_equal(legal[time != 3], expected[time != 3])
    assert legal[time == 3].all()


def test_an_agent_finds_the_best_legal_actions():
    result = discorl.train(
        rule="actor_critic",
        environment=Forbidden(),
        preset="small",
        hidden=(16,),
        learning_rate=0.02,
        updates=150,
        seed=1,
    )
    played = evaluate(result, episodes=20, greedy=True)
    np.testing.assert_array_equal(played.returns, 5.0)
    policy = result.policy()
    seen = jnp.eye(4)[:3]
    legal = jax.vmap(Forbidden().action_mask)(jnp.arange(3))
    assert policy(seen, action_mask=legal)[0].tolist() == [2, 1, 2]
    assert policy(seen[0], action_mask=[True, False, False, False])[0] == 0
    sampled = {
        int(policy(seen[1], None, jax.random.key(i), action_mask=legal[1])[0]) for i in range(9)
    }
    assert sampled <= {0, 1}
    for mask, shape in (([True], "(1,)"), (legal, "(3, 4)")):
        with pytest.raises(UserError) as refused:
            policy(seen[0], action_mask=mask)
        assert str(refused.value) == f"action_mask has the shape {shape}; expected (4,)"


def test_masks_with_memory_replay_and_frame_stacks():
    """Illegal actions pay NaN, which would show everywhere."""
    result = discorl.train(
        rule="q_lambda",
        environment=Forbidden(cut=True),
        preset="small",
        hidden=(4,),
        lstm=3,
        frame_stack=2,
        num_envs=2,
        batch=4,
        replay=8,
        unroll=7,
        updates=8,
    )
    assert np.isfinite(result.metrics[TOTAL_LOSS]).all()
    assert result.state.replay.storage.action_mask.shape == (8, 8, 4)
    assert np.isfinite(evaluate(result, episodes=4).returns).all()


def test_frame_stacks_pass_masks_on():
    environment = frames.FrameStack(Forbidden(), 2)
    state, _ = environment.reset(jax.random.key(0))
    assert environment.action_mask(state).tolist() == [True, True, True, False]


# --- the contract ---------------------------------------------------------------------------------


def finding(environment, check):
    found = {each.check: each for each in conformance.check(environment, steps=5, count=2)}
    return found[check].ok, found[check].detail


def test_environments_are_checked_with_legal_actions():
    assert finding(Forbidden(), "values")[0]  # an illegal action pays NaN
    assert finding(Forbidden(), "action mask") == (True, "2 to 3 of 4 actions are legal")


@pytest.mark.parametrize(
    ("mask", "check", "message"),
    [
        (jnp.ones(3, bool), "types", "action_mask is [3] bool; expected [4] bool"),
        (jnp.ones(4), "types", "action_mask is [4] float32; expected [4] bool"),
        (jnp.zeros(4, bool), "action mask", "no action is legal at 6 of 6 steps"),
    ],
)
def test_wrong_masks_are_found(mask, check, message):
    class Wrong(Forbidden):
        def action_mask(self, state):
            return mask

        def step(self, state, action, key):
            return Forbidden().step(state, jnp.int32(1), key)  # which is legal

    assert finding(Wrong(), check) == (False, message)


def test_rules_without_logits_need_a_mask_of_their_own():
    class NoLogits(QLambda):
        mask_actions = discorl.Rule.mask_actions

    with pytest.raises(UserError, match="q_lambda has no output 'logits', and the environment h"):
        NoLogits().mask_actions({"q": jnp.zeros(3)}, jnp.ones(3, bool))
