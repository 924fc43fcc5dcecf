"""Adapters of suites that are written in JAX, each where its package is installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discorl
from discorl import envs
from discorl.envs import conformance, references
from discorl.envs.suites import SUITES
from discorl.rules.files import weights
from discorl.runs.metrics import EPISODES, STEP, TOTAL_LOSS
from discorl.training.evaluation import evaluate
from discorl.types import UserError

KEY = jax.random.key(5)

# With limits on time that make episodes end within a few steps.
SAMPLES = {
    "gymnax": "gymnax:CartPole-v1,max_steps_in_episode=12",
    "minatar": "gymnax:Breakout-MinAtar,max_steps_in_episode=20",
    "minigrid": "minigrid:DoorKey-5x5,max_steps=9",
    "sokoban": "sokoban:toy,time_limit=9",
    "craftax": "craftax:Craftax-Classic-Symbolic-v1,max_timesteps=7",
    "jumanji": "jumanji:Snake-v1,time_limit=9",
    "navix": "navix:DoorKey-5x5-v0,max_steps=9",
    "pgx": "pgx:2048,max_steps=9",
}
MASKED = ("jumanji", "pgx")


def installed(suite):
    missing = SUITES[suite].missing()
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def every_suite(*, long=()):
    """Parametrises a test by a sample of each suite; some of them run on demand only."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(
                text,
                id=name,
                marks=[installed(text.partition(":")[0])] + [pytest.mark.long] * (name in long),
            )
            for name, text in SAMPLES.items()
        ],
    )


@every_suite(long=("craftax",))
def test_adapters_keep_the_contract(name):
    findings = conformance.check(envs.make(name), steps=24, count=3)
    assert len(findings) == 6 + name.startswith(MASKED)
    assert [finding for finding in findings if not finding.ok] == []
    ends = next(finding.detail for finding in findings if finding.check == "ends")
    assert ends.startswith("of 3 episodes ")
    ended = [int(word) for word in ends.split() if word.isdigit()][1:3]
    assert sum(ended) == 3


@every_suite(long=("pgx", "craftax"))
def test_agents_are_trained_and_evaluated(name, golden, tmp_path):
    rule = tmp_path / "tiny.npz"
    weights.save(rule, weights.load(golden / "meta_network.npz"), {"bins": 21})
    result = discorl.train(
        rule=str(rule),
        env=name,
        preset="published",
        updates=3,
        num_envs=2,
        unroll=8,
        batch=2,
        replay=4,
        hidden=(8,),
        action_lstm=8,
        action_hidden=(8,),
        checkpoint_every=3,
        out=tmp_path / "run",
    )
    assert 0 < result.metrics[STEP][-1] <= 3 * 2 * 8
    assert result.metrics[EPISODES].sum() > 0
    assert np.isfinite(result.metrics[TOTAL_LOSS]).all()
    played = evaluate(tmp_path / "run", episodes=2)
    assert played.unfinished == 0
    assert np.isfinite(played.returns).all()


# --- against what the suites say themselves -------------------------------------------------------


@installed("gymnax")
def test_gymnax_is_played_as_gymnax_says():
    """Rewards, ends and last observations are those of gymnax's own `step`, which resets."""
    from gymnax.wrappers import LogWrapper

    ours = envs.make("gymnax:CartPole-v1,max_steps_in_episode=12")
    theirs = LogWrapper(ours.environment)
    reset = jax.jit(lambda key: theirs.reset(key, ours.settings))
    step = jax.jit(lambda key, state, action: theirs.step(key, state, action, ours.settings))
    our_reset, our_step = jax.jit(ours.reset), jax.jit(ours.step)
    their_observation, their_state = reset(KEY)
    state, observation = our_reset(KEY)
    total, ends = 0.0, set()
    for time in range(60):
        # Two programs may round their last digit differently.
        np.testing.assert_allclose(observation, their_observation, atol=1e-6)
        key = jax.random.fold_in(KEY, time)
        step_key, reset_key = jax.random.split(key)
        # Alternating actions hold the pole up until the time limit; one action alone drops it.
        action = jnp.int32(time % 2 if time < 30 else 0)
        their_observation, their_state, reward, terminated, truncated, info = step(
            key, their_state, action
        )
        state, result = our_step(state, action, step_key)
        total += float(result.reward)
        assert (result.reward, result.terminated, result.truncated) == (
            reward,
            terminated,
            truncated,
        )
        np.testing.assert_allclose(result.observation, info["final_observation"], atol=1e-6)
        observation = result.observation
        if terminated or truncated:
            ends.add(bool(truncated))
            assert not np.allclose(observation, their_observation, atol=1e-6)
            np.testing.assert_allclose(info["returned_episode_returns"], total)
            total = 0.0
            state, observation = our_reset(reset_key)
    assert ends == {True, False}


@installed("gymnax")
def test_continuous_actions_are_refused_or_cut_up():
    for name in ("Pendulum-v1", "MountainCarContinuous-v0"):
        with pytest.raises(UserError, match=f"gymnax:{name} has continuous actions.*,bins=5"):
            envs.make(f"gymnax:{name}")
    np.testing.assert_allclose(
        envs.make("gymnax:Pendulum-v1,bins=5").actions[:, 0], [-2, -1, 0, 1, 2]
    )
    two = envs.make("gymnax:Reacher-misc,bins=3")
    assert two.num_actions == 9
    assert len(np.unique(two.actions, axis=0)) == 9
    with pytest.raises(UserError, match="bins is 1; expected at least 2"):
        envs.make("gymnax:Pendulum-v1,bins=1")
    with pytest.raises(UserError, match="gymnax:Reacher-misc: 10000 combinations of actions"):
        envs.make("gymnax:Reacher-misc,bins=100")
    with pytest.raises(UserError, match="2 discrete actions: it takes no bins"):
        envs.make("gymnax:CartPole-v1,bins=5")


@installed("gymnax")
def test_gymnax_is_asked_for_by_name():
    for text, message in (
        ("gymnax:breakout", "for example gymnax:Breakout-MinAtar"),
        ("gymnax", "gymnax needs an item; for example gymnax:CartPole-v1"),
        ("gymnax:CartPole-v1,gravitty=2", "has no parameter 'gravitty'; did you mean 'gravity'?"),
        ("gymnax:CartPole-v1,gravity=low", "gravity is 'low'; expected a number"),
    ):
        with pytest.raises(UserError) as error:
            envs.make(text)
        assert message in str(error.value)
    lake = envs.make("gymnax:FrozenLake-misc")
    assert lake.observation == jax.ShapeDtypeStruct((16,), jnp.bool_)
    picture = envs.make("gymnax:Breakout-MinAtar")
    state, _ = picture.reset(KEY)
    assert picture.render(state).shape == (160, 160, 3)


@installed("minigrid")
def test_minigrid_rewards_a_quick_way_to_the_goal():
    """Two cells forward, a turn, two cells forward: 1 - 0.9 * 5 / limit, as MiniGrid defines it."""
    room = envs.make("minigrid:Empty-5x5,max_steps=10")
    state, observation = jax.jit(room.reset)(KEY)
    assert observation.shape == (7, 7, 25)
    np.testing.assert_array_equal(observation.sum(axis=-1), 2)  # one kind and one colour a cell
    step = jax.jit(room.step)
    rewards = []
    for action in (0, 0, 1, 0, 0):
        state, result = step(state, jnp.int32(action), KEY)
        rewards.append(float(result.reward))
    np.testing.assert_allclose(rewards, [0, 0, 0, 0, 1 - 0.9 * 5 / 10], rtol=1e-6)
    assert (result.terminated, result.truncated) == (True, False)
    state, _ = room.reset(KEY)
    for _ in range(10):
        state, result = step(state, jnp.int32(1), KEY)
    assert (result.terminated, result.truncated) == (False, True)
    assert room.render(state).ndim == 3


@installed("sokoban")
def test_sokoban_by_hand():
    """The simple level is solved by pushing four boxes up by one, in a row."""
    game = envs.make("sokoban:simple")
    state, observation = jax.jit(game.reset)(KEY)
    np.testing.assert_array_equal(observation.sum(axis=(0, 1))[1:], [4, 1, 4])
    step = jax.jit(game.step)
    up, right, down = 0, 1, 2
    rewards = []
    for action in [down, up, up, down, right, up, down, right, up, down, right, up]:
        before = observation
        state, result = step(state, jnp.int32(action), KEY)
        observation = result.observation
        rewards.append(float(result.reward))
    # Solving gives 10 on top of the last box's 1; every step costs a tenth.
    expected = [-0.1, -0.1, 0.9, -0.1, -0.1, 0.9, -0.1, -0.1, 0.9, -0.1, -0.1, 10.9]
    np.testing.assert_allclose(rewards, expected, rtol=1e-5)
    assert (result.terminated, result.truncated) == (True, False)
    assert not np.array_equal(before, observation)
    assert (observation[..., 1] == observation[..., 3]).all()  # every target has its box
    left = jnp.int32(3)
    state, _ = game.reset(KEY)
    _, moved = step(state, left, KEY)
    _, blocked = step(step(state, left, KEY)[0], left, KEY)  # a wall is there
    np.testing.assert_array_equal(blocked.observation, moved.observation)
    assert min(game.render(state).shape[:2]) >= 160


@installed("gymnax")
@installed("minigrid")
def test_references_of_gymnax_and_minigrid():
    assert envs.make("gymnax:Breakout-MinAtar").reference() == (0.4, 28)
    assert envs.make("gymnax:Breakout-MinAtar,max_steps_in_episode=20").reference() is None
    assert envs.make("gymnax:Catch-bsuite").reference() is None
    for item in SUITES["minigrid"].names():
        assert references.lookup("minigrid", item) == (0, 1)


@installed("craftax")
def test_craftax_rewards_achievements_and_health():
    game = envs.make("craftax")
    assert game.reference() == (0, 22)
    assert game.num_actions == 17
    state, _ = jax.jit(game.reset)(KEY)
    step, health, total = jax.jit(game.step), int(state.player_health), 0.0
    for time in range(300):
        key = jax.random.fold_in(KEY, time)
        state, result = step(state, jax.random.randint(key, (), 0, 17), key)
        total += float(result.reward)
        if result.terminated:
            break
    gained = int(state.achievements.sum()) + 0.1 * (int(state.player_health) - health)
    assert int(state.achievements.sum()) > 0
    np.testing.assert_allclose(total, gained, atol=1e-4)


def test_an_object_with_gymnaxs_interface_is_an_environment(tmp_path):
    """Here one of gymnax's own classes, as an object and as a factory by name."""
    from gymnax.environments.classic_control.cartpole import CartPole

    own = CartPole()
    result = discorl.train(environment=own, rule="ppo", updates=1, hidden=(4,), out=tmp_path / "a")
    assert result.config.env == "gymnax:CartPole"
    evaluation = evaluate(tmp_path / "a", environment=own, episodes=2)
    assert evaluation.lengths.min() > 0
    named = envs.make("gymnax.environments.classic_control.cartpole:CartPole")
    assert (named.num_actions, named.observation) == (2, envs.make(own).observation)
    with pytest.raises(UserError, match="is 3; expected a name"):
        envs.make(3)


@installed("jumanji")
def test_jumanji_masks_are_in_the_order_of_the_actions():
    """In Minesweeper, an action is a row and a column; a revealed square is illegal."""
    environment = envs.make("jumanji:Minesweeper-v0")
    state, observation = environment.reset(KEY)
    assert sorted(observation) == ["board", "num_mines", "step_count"]  # no mask
    assert environment.action_mask(state).all()
    state, step = environment.step(state, jnp.int32(37), KEY)
    assert environment.actions[37].tolist() == [3, 7]
    assert np.argwhere(step.observation["board"] >= 0).tolist() == [[3, 7]]
    assert np.flatnonzero(~environment.action_mask(state)).tolist() == [37]


@installed("jumanji")
def test_jumanji_tasks_end_by_themselves_or_by_their_time_limit():
    environment = envs.make("jumanji:Snake-v1,time_limit=3")
    state, _ = environment.reset(KEY)
    for time in range(3):
        action = jnp.argmax(environment.action_mask(state))
        state, step = environment.step(state, action, KEY)
        assert (bool(step.terminated), bool(step.truncated)) == (False, time == 2)
    state, _ = environment.reset(KEY)
    illegal = jnp.argmin(environment.action_mask(state))
    _, step = environment.step(state, illegal, KEY)
    assert (bool(step.terminated), bool(step.truncated)) == (True, False)
    with pytest.raises(UserError, match="jumanji:TSP-v1 has no time_limit"):
        envs.make("jumanji:TSP-v1,time_limit=3")


@installed("pgx")
def test_pgx_is_played_as_pgx_says():
    environment = envs.make("pgx:2048")
    state, observation = environment.reset(KEY)
    theirs = environment.environment.init(KEY)
    np.testing.assert_array_equal(observation, theirs.observation)
    action = jnp.argmax(theirs.legal_action_mask)
    np.testing.assert_array_equal(environment.action_mask(state), theirs.legal_action_mask)
    _, step = environment.step(state, action, KEY)
    after = environment.environment.step(theirs, action, KEY)
    np.testing.assert_array_equal(step.observation, after.observation)
    assert step.reward == after.rewards[0]
    assert envs.make("pgx:minatar-breakout,sticky=0").environment.sticky_action_prob == 0
    with pytest.raises(UserError, match="pgx:2048 takes no sticky=0\\.5; MinAtar's"):
        envs.make("pgx:2048,sticky=0.5")


@installed("navix")
def test_navix_shows_its_grid():
    environment = envs.make("navix:Empty-5x5-v0,view=full")
    state, observation = environment.reset(KEY)
    kind = np.argmax(observation[..., :11], axis=-1)
    assert kind[0].tolist() == [2] * 5  # walls
    assert (kind[1, 1], kind[3, 3]) == (10, 8)  # the agent and the goal
    assert environment.render(state).dtype == np.uint8
