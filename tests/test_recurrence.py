"""Recurrent networks: acting and learning remember the same, and never across an episode's end."""

import dataclasses
import functools

import clocks
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from probes import Mortal

import discorl
from discorl.agent import acting
from discorl.agent.learner import Learner
from discorl.networks import standard
from discorl.rules import PPO, ActorCritic
from discorl.training import make_trainer
from discorl.types import OutputSpec, Trajectory, UserError

KEY = jax.random.key(7)
LSTM, T, B = 5, 7, 6


def learner_for(observation, actions=2, lstm=LSTM, rule=None):
    rule = rule or ActorCritic()
    network = standard(rule.outputs(actions), observation, hidden=(6,), lstm=lstm)
    return Learner(rule, network, optax.sgd(1.0), actions)


def enlarged(params):
    """Away from small beginnings, so that what is remembered has a say in every output."""
    return jax.tree.map(
        lambda x: 3 * x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), params
    )


# --- the LSTM itself ------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_lstm_against_numpy():
    """Against numpy, two moments in a row."""
    spec = OutputSpec(2, state={"logits": (2,)})
    network = standard(spec, jax.ShapeDtypeStruct((3,), jnp.float32), hidden=(), lstm=4)
    batch = jax.random.normal(KEY, (2, 5, 3))
    params = enlarged(network.init(KEY, batch[0]))
    state = hidden, cell = [np.zeros((5, 4)), np.zeros((5, 4))]
    w, b = (np.asarray(params["lstm"][name], np.float64) for name in "wb")
    for x in batch:
        features, state = network.advance(params, x, tuple(map(jnp.float32, state)))
        gates = np.concatenate([x, hidden], axis=1) @ w + b
        i, g, f, o = np.split(gates, 4, axis=1)
        cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        np.testing.assert_allclose(state, [hidden, cell], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(features, hidden, rtol=1e-5, atol=1e-6)
        head = params["head"]["logits"]
        expected = hidden @ head["w"] + head["b"]
        logits = network.apply(params, features)["logits"]
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_without_an_lstm_there_is_nothing_to_remember():
    learner = learner_for(jax.ShapeDtypeStruct((3,), jnp.float32), lstm=0)
    assert learner.network.recurrence is None
    assert learner.network.state == ()
    params = learner.init(KEY, jax.ShapeDtypeStruct((3,), jnp.float32), 1).params
    assert learner.policy(params, jnp.ones((4, 3)))[1] == ()
    assert "lstm" not in params


# --- acting and learning --------------------------------------------------------------------------


@functools.cache
def native_rollouts():
    """Parameters, and rollouts in environments whose episodes end in both ways."""
    environment = Mortal(lifetime=3, limit=4)
    learner = learner_for(environment.observation)
    params = enlarged(learner.init(KEY, environment.observation, 1).params)

    def live(state, key):
        policy = functools.partial(learner.policy, params)
        state, trajectory, _ = acting.rollout(environment, policy, state, key, T)
        return state, trajectory

    state = acting.init(environment, KEY, B, learner.network.state)
    parts = jax.jit(lambda s: jax.lax.scan(live, s, jax.random.split(KEY, 6)))(state)[1]
    return learner, params, [jax.tree.map(lambda x, i=i: x[i], parts) for i in range(6)]


@functools.cache
def host_rollouts(resets_cost):
    config = discorl.configure(
        **clocks.TINY | {"unroll": T, "frame_stack": 1, "replay_fraction": 0.0, "batch": 2},
        lstm=LSTM,
    )
    trainer = make_trainer(config, clocks.Clocks(resets_cost=resets_cost))
    learner, agent = trainer.learner, trainer.agent
    params = enlarged(trainer.init().learner.params)
    actor = agent.actor(0)
    actor.start(params)
    parts = [actor.rollout(params, jax.random.fold_in(KEY, i)).trajectory for i in range(6)]
    assert jax.tree.map(jnp.shape, parts[0]) == jax.tree.map(jnp.shape, agent.rollout_like())
    return learner, params, parts


def is_first_native(trajectory):
    """From what an observation shows: the time, one-hot, of two kinds of episode."""
    shown = trajectory.observation
    return np.asarray(shown.argmax(-1) % (shown.shape[-1] // 2) == 0)


def is_first_on_the_host(trajectory):
    return np.asarray(trajectory.observation[..., 1] == 1)  # clocks show the time, from 1


def walk(learner, params, trajectory, first):
    """Logits at all moments [T+1, B, A], asked one by one; nothing is kept where one is first."""
    policy = jax.jit(functools.partial(learner.policy, params))
    state = jax.tree.map(lambda x: x[0], trajectory.recurrent_state)
    logits = []
    for observation, begins in zip(trajectory.observation, first, strict=True):
        state = jax.tree.map(lambda x, b=begins: jnp.where(b[:, None], 0, x), state)
        step, state = policy(observation, state)
        logits.append(step)
    return np.array(logits)


def kinds_of_moments(trajectory, first):
    """Which of these were there: `first`, and of the step before terminated, truncated, filler."""
    before = trajectory.terminated, trajectory.truncated, trajectory.fillers()
    rows = np.stack([first[1:], *map(np.asarray, before)], axis=-1)
    return {tuple(row) for row in rows.reshape(-1, 4).tolist()}


@pytest.mark.parametrize("where", ["native", "host", "host, where resets cost a step"])
def test_the_learner_sees_what_the_actor_saw(where):
    if where == "native":
        (learner, params, parts), is_first = native_rollouts(), is_first_native
    else:
        found = host_rollouts(resets_cost="cost" in where)
        (learner, params, parts), is_first = found, is_first_on_the_host
    unroll = jax.jit(lambda part: learner.outputs(params, part)[0]["logits"])
    kinds = set()
    for part in parts:
        first = is_first(part)
        kinds |= kinds_of_moments(part, first)
        one_by_one = walk(learner, params, part, first)
        np.testing.assert_allclose(unroll(part), one_by_one, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(part.behaviour_logits, one_by_one[:-1], rtol=1e-5, atol=1e-5)
        hidden, _ = jax.tree.map(lambda x: np.asarray(x[0]), part.recurrent_state)
        assert hidden.shape == (part.action.shape[1], learner.network.state[0].shape[0])
        # Something is remembered wherever a rollout begins within an episode, and only there.
        np.testing.assert_array_equal((hidden == 0).all(axis=1), first[0])
    # Every way for an episode to go on and to end was there.
    goes_on, cut, after_filler = (0, 0, 0, 0), (0, 0, 1, 0), (1, 0, 0, 1)
    ending = (0, 1, 1, 0) if "cost" in where else (1, 1, 0, 0)
    assert kinds == {goes_on, cut, after_filler, ending}


class WithTarget(ActorCritic):
    """An actor-critic that asks for a target network."""

    target_decay = 0.9


def test_both_networks_start_from_what_was_stored():
    learner, params, parts = native_rollouts()
    learner, part = dataclasses.replace(learner, rule=WithTarget()), parts[2]
    assert np.any(part.recurrent_state[0])
    other = jax.tree.map(lambda x: x + 0.1, params)
    state = learner.init(KEY, Mortal(lifetime=3, limit=4).observation, 1)
    state = dataclasses.replace(state, params=params, target_params=other)
    after, _, details = jax.jit(learner.update_in_detail)(state, (), part)
    for agent, seen in ((params, details.online), (other, details.target)):
        expected = walk(learner, agent, part, is_first_native(part))
        np.testing.assert_allclose(seen["logits"], expected, rtol=1e-5, atol=1e-5)
    moved = jax.tree.map(lambda x, y: np.any(x != y), params, after.params)
    assert all(jax.tree.leaves(moved["lstm"]))


def test_nothing_is_remembered_across_an_episodes_end():
    """What every output depends on, by its derivatives."""
    terminated, truncated, filler = np.zeros((3, T, 4), bool)
    terminated[2, 1] = True
    truncated[2, 2] = True
    filler[3, 2] = True
    filler[0, 3] = True  # the rollout before was cut by its last step
    terminated[3, 3] = truncated[3, 3] = True  # on the host, where resets cost a step
    filler[4, 3] = True
    terminated[6, 3] = True
    episodes = np.transpose(
        [
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 1, 1, 1, 1, 1],
            [0, 0, 0, 0, 1, 1, 1, 1],  # moment 3 shows the last of what was cut
            [0, 1, 1, 1, 1, 2, 2, 3],
        ]
    )
    rng = np.random.default_rng(0)
    trajectory = Trajectory(
        observation=jnp.asarray(rng.normal(size=(T + 1, 4, 3)), jnp.float32),
        action=jnp.zeros((T, 4), jnp.int32),
        reward=jnp.zeros((T, 4)),
        terminated=jnp.asarray(terminated),
        behaviour_logits=jnp.zeros((T, 4, 2)),
        truncated=jnp.asarray(truncated),
        filler=jnp.asarray(filler),
        recurrent_state=tuple(
            jnp.asarray(rng.normal(size=(1, 4, LSTM)), jnp.float32) for _ in range(2)
        ),
    )
    observation = jax.ShapeDtypeStruct((3,), jnp.float32)
    learner = learner_for(observation)
    params = enlarged(learner.init(KEY, observation, 1).params)

    def values(seen, recurrent_state):
        given = dataclasses.replace(trajectory, observation=seen, recurrent_state=recurrent_state)
        return learner.outputs(params, given)[0]["value"]

    by_seen, by_state = jax.jit(jax.jacrev(values, argnums=(0, 1)))(
        trajectory.observation, trajectory.recurrent_state
    )
    moments, columns = np.ogrid[: T + 1, :4]
    for t, b in np.ndindex(T + 1, 4):
        earlier = (moments <= t) & (columns == b) & (episodes == episodes[t, b])
        np.testing.assert_array_equal(np.any(by_seen[t, b], axis=-1), earlier)
        for leaf in by_state:
            from_start = (columns == b) & (episodes[t, b] == 0)
            np.testing.assert_array_equal(np.any(leaf[t, b], axis=-1), from_start)


def test_a_burn_in_mask_resets_nothing():
    """Masked steps are not learned from, and what follows them still depends on them."""
    learner, params, parts = native_rollouts()
    part, burn_in = parts[2], 2
    # Trajectories whose burn-in and first step after it lie in one episode.
    same_episode = ~is_first_native(part)[1 : burn_in + 1].any(axis=0)
    assert same_episode.any()
    masked = dataclasses.replace(part, mask=jnp.ones((T, B)).at[:burn_in].set(0))
    state = learner.init(KEY, Mortal(lifetime=3, limit=4).observation, 1)
    state = dataclasses.replace(state, params=params)

    def values(observation):
        given = dataclasses.replace(masked, observation=observation)
        return learner.outputs(params, given)[0]["value"]

    np.testing.assert_array_equal(
        values(part.observation), learner.outputs(params, part)[0]["value"]
    )
    change = jnp.zeros_like(part.observation).at[0].set(1.0)
    after = jax.jit(lambda x: jax.jvp(values, (x,), (change,))[1])(part.observation)[burn_in]
    np.testing.assert_array_equal(np.asarray(after) != 0, same_episode)

    update = jax.jit(learner.update)
    expected, _ = update(state, (), masked)
    other_reward = part.reward.at[:burn_in].add(10.0)
    computed, _ = update(state, (), dataclasses.replace(masked, reward=other_reward))
    unmasked, _ = update(state, (), dataclasses.replace(masked, mask=jnp.ones((T, B))))
    jax.tree.map(np.testing.assert_array_equal, computed.params, expected.params)
    assert any(jax.tree.leaves(jax.tree.map(lambda x, y: np.any(x != y), unmasked, expected)))


def test_minibatches_take_their_trajectories_memories_along():
    """Traced only: shapes that did not fit would be refused."""
    part = native_rollouts()[2][0]
    learner = learner_for(
        Mortal(lifetime=3, limit=4).observation, rule=PPO(epochs=2, minibatches=3)
    )
    state = jax.eval_shape(lambda: learner.init(KEY, Mortal(lifetime=3, limit=4).observation, 1))
    after, _ = jax.eval_shape(learner.update, state, (), part)
    assert jax.tree.structure(after) == jax.tree.structure(state)


def test_a_trajectory_without_memories_is_refused():
    learner, params, parts = native_rollouts()
    with pytest.raises(
        UserError, match=r"`recurrent_state` is \(\); expected leaves \[1, B, ...\]"
    ):
        learner.outputs(params, dataclasses.replace(parts[0], recurrent_state=()))


def test_a_negative_width_is_refused():
    with pytest.raises(UserError, match="lstm is -1; expected at least 0"):
        discorl.configure(lstm=-1)
