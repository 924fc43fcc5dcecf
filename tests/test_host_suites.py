"""Adapters of environments on the host, against the real packages where they are installed."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from clocks import LIFE, LIMIT, Clock, check_convention, count_frames, is_mortal
from packages import needs, shrink_crafter

import discorl
from discorl import envs
from discorl.envs import conformance
from discorl.envs.host import EnvironmentFailure, WorkerVector, seeds_from
from discorl.rules.files import weights
from discorl.runs.metrics import EPISODES, TOTAL_LOSS
from discorl.training.evaluation import evaluate
from discorl.training.host.acting import HostActor
from discorl.training.host.programs import ActingPrograms
from discorl.types import UserError

SMALL = {
    "num_envs": 2,
    "batch": 3,
    "replay": 4,
    "replay_fraction": 0.67,
    "unroll": 4,
    "updates": 2,
    "hidden": (8,),
    "filters": (2,),
    "action_lstm": 4,
    "action_hidden": (4,),
    "frame_stack": 2,
}


@pytest.mark.parametrize(
    ("name", "packages", "ends"),
    [
        ("gymnasium:CartPole-v1,workers=2", ["gymnasium"], True),
        ("gymnasium:Pendulum-v1,bins=3,max_steps=9", ["gymnasium"], True),
        ("gymnasium:Blackjack-v1", ["gymnasium"], True),
        ("atari:Pong", ["ale_py", "gymnasium"], False),
        ("atari:Breakout,grey=false,full_actions=true,sticky=0.25", ["ale_py", "gymnasium"], False),
        ("atari:Pong,size=20,noops=0,max_frames=60", ["ale_py", "gymnasium"], True),
        ("procgen:bigfish,mode=easy", ["envpool"], False),
        ("nethack:NetHackScore-v0,max_steps=30", ["nle"], True),
        ("crafter:reward,size=18,length=30", ["crafter"], True),
    ],
)
def test_adapters_keep_the_contract(name, packages, ends, monkeypatch):
    needs(*packages)
    if "crafter" in packages:
        shrink_crafter(monkeypatch)
    findings = conformance.check(envs.make(name), steps=40, count=2)
    assert all(finding.ok for finding in findings), findings
    assert findings[-1].check == "ends"
    assert findings[-1].detail.startswith("0 episodes terminated and 0 were truncated") != ends


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("gymnasium:CartPole-v1", ["gymnasium"]),
        ("atari:Pong,size=20", ["ale_py", "gymnasium"]),
        ("procgen:coinrun", ["envpool"]),
        ("crafter:reward,size=18,length=7", ["crafter"]),
        ("nethack:NetHackScore-v0,max_steps=20", ["nle"]),
    ],
)
def test_suites_train_with_a_discovered_rule(name, packages, golden, tmp_path, monkeypatch):
    needs(*packages)
    if "crafter" in packages:
        shrink_crafter(monkeypatch)
    rule = tmp_path / "tiny.npz"
    weights.save(rule, weights.load(golden / "meta_network.npz"), {"bins": 21})
    result = discorl.train(**SMALL | {"env": name, "rule": str(rule)}, out=tmp_path / "run")
    assert np.isfinite(result.metrics[TOTAL_LOSS]).all()
    film = None if name.startswith("nethack") else tmp_path / "episode.gif"
    endless = name.startswith(("procgen", "atari"))  # whose episodes take long to play
    limit = 40 if endless else None
    played = evaluate(tmp_path / "run", episodes=2, film=film, max_steps=limit)
    assert np.isfinite(played.returns).all()
    assert played.unfinished == 0 or endless
    assert (film in (None, *played.films)) == (played.no_film is None)
    if name.startswith("crafter"):
        means = [played.metrics[n] for n in envs.make(name).episode_metrics]
        score = np.prod([1 + 100 * mean for mean in means]) ** (1 / 22) - 1
        np.testing.assert_allclose(played.metrics["crafter_score"], score)
        assert played.reference is None  # of whole episodes only
        assert envs.make("crafter").reference() == (2.1, 14.3)
        rates = [n for n in result.metrics if n.startswith("episode/achievement/")]
        assert len(rates) == 22
        assert (played.lengths == 7).all()
        ended = result.metrics[EPISODES] > 0
        assert all(((x := result.metrics[n][ended]) >= 0).all() and (x <= 1).all() for n in rates)


def test_games_on_other_terms_than_humans_played_have_no_scale():
    needs("ale_py", "gymnasium")
    assert envs.make("atari:Pong,size=42,sticky=0.25").reference() is not None
    for setting in ("max_frames=400", "clip_rewards=true"):
        assert envs.make(f"atari:Pong,{setting}").reference() is None


def test_a_game_that_is_cut_shows_its_last_picture():
    needs("ale_py", "gymnasium")
    cut, whole = (
        envs.make(f"atari:Pong,size=20,noops=0{limit}").start(1, seed=0)
        for limit in (",max_frames=60", "")
    )
    cut.reset()
    whole.reset()
    action = np.array([2])
    for number in range(1, 16):
        step, uncut = cut.step(action), whole.step(action)
        assert step.truncated[0] == (number == 15) and not step.terminated[0]
        # Where ALE cuts a game it shows the picture before for the last frame: a ball that moved.
        assert (step.observation != uncut.observation).sum() <= 4 * (number == 15)
    begun, uncut = cut.step(action), whole.step(action)
    assert not begun.truncated[0]
    assert (begun.observation != uncut.observation).sum() > 10
    cut.close()
    whole.close()


# --- Gymnasium ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gym_clock():
    needs("gymnasium")
    import gymnasium

    class GymClock(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1000, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self):
            self.clock = Clock()

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.clock.reset(seed), {}

        def step(self, action):
            return *self.clock.step(action)[:4], {"number": self.clock.episode}

    return GymClock


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vectors_in_every_mode_of_autoreset(mode, gym_clock):
    from gymnasium.vector import SyncVectorEnv

    from discorl.envs.host.gymnasium import from_vector

    def create(count, render):
        return SyncVectorEnv([gym_clock] * count, autoreset_mode=mode)

    environment = from_vector(create, name="vector", episode_metrics=("number",))
    actor = HostActor(ActingPrograms(environment, count_frames, 2, 5), 0)
    params = np.float32(0.5)
    actor.start(params)
    parts = [actor.rollout(params, jax.random.key(i)) for i in range(4)]
    next_step = mode == "NextStep"
    episodes = check_convention(parts, resets_cost=next_step, given_up=0 if next_step else 1)
    numbers = [episode.metrics["number"] for episode in episodes if episode.index == 0]
    assert all(
        episode.length == (LIFE if is_mortal(number) else LIMIT)
        for episode, number in zip([e for e in episodes if e.index == 0], numbers, strict=True)
    )
    findings = conformance.check(environment, steps=40, count=3)
    assert all(finding.ok for finding in findings), findings


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_observations_in_other_forms_than_arrays(kind):
    """As many environments as numbers in an observation, so that a mix-up has the same shape."""
    needs("gymnasium")
    import gymnasium

    from discorl.envs.host.gymnasium import from_gymnasium

    class Counter(gymnasium.Env):
        box = gymnasium.spaces.Box(0, 100, (3,), np.float32)
        observation_space = gymnasium.spaces.Dict({"a": box}) if kind is dict else box
        action_space = gymnasium.spaces.Discrete(2)

        def show(self):
            numbers = [self.start + i for i in range(3)]
            # Beside what is declared there may be anything.
            return {"note": None, "a": numbers, "ids": [[1], []]} if kind is dict else kind(numbers)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.start = 10 * (seed % 3)
            return self.show(), {}

        def step(self, action):
            assert type(action) is int
            return self.show(), 0.0, False, False, {}

    environment = from_gymnasium(lambda render: Counter(), name="counter")
    vector = environment.start(3, 0)
    starts = np.array([10.0 * (seed % 3) for seed in seeds_from(0, 3)])
    for seen in (vector.reset(), vector.step(np.zeros(3, np.int32)).observation):
        numbers = seen["a"] if kind is dict else seen
        np.testing.assert_array_equal(numbers, starts[:, None] + np.arange(3))


REACH = """
import gymnasium
import numpy as np

class Reach(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, goal: float = 0.9, render_mode=None):
        self.goal, self.render_mode = goal, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.time = self.np_random.uniform(-1, 1, 2), 0
        return self.position.astype(np.float32), {}

    def step(self, action):
        self.position = np.clip(self.position + 0.2 * action, -1, 1)
        self.time += 1
        there = bool((self.position > self.goal).all())
        return self.position.astype(np.float32), -1.0, there, self.time == 12, {}

    def render(self):
        return np.full((8, 8, 3), 7, np.uint8)
"""


def test_continuous_environments_of_ones_own_by_name(tmp_path, monkeypatch):
    needs("gymnasium")
    (tmp_path / "reach_for_a_test.py").write_text(REACH)
    monkeypatch.chdir(tmp_path)
    name = "reach_for_a_test:Reach"
    with pytest.raises(UserError, match=f"{name}: actions of Box.* are continuous; give bins"):
        envs.make(name)
    with pytest.raises(UserError, match="bins=many is not of the type int"):
        envs.make(f"{name},bins=many")
    with pytest.raises(UserError, match="has no parameter 'gaol', did you mean 'goal'"):
        envs.make(f"{name},bins=3,gaol=1.0")
    environment = envs.make(f"{name},bins=3,goal=0.5")
    assert environment.num_actions == 9
    findings = conformance.check(environment, steps=30, count=2)
    assert all(finding.ok for finding in findings), findings
    vector = envs.make(f"{name},bins=3,goal=0.5,workers=2").start(2, 0, render=True)
    try:
        assert isinstance(vector, WorkerVector)
        vector.reset()
        np.testing.assert_array_equal(vector.render(), np.full((8, 8, 3), 7))
    finally:
        vector.close()


def test_spaces():
    needs("gymnasium")
    from gymnasium import spaces

    from discorl.envs.host.spaces import actions_of, observation_of

    space = spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2, 2), np.float64),
            "picture": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "parts": spaces.Tuple([spaces.Discrete(3, start=5), spaces.MultiDiscrete([2, 3])]),
        }
    )
    like, read = observation_of(space, "mine")
    assert like["box"] == jax.ShapeDtypeStruct((2, 2), np.float32)
    assert like["picture"] == jax.ShapeDtypeStruct((4, 4, 3), np.uint8)
    picture = np.zeros((4, 4, 3), np.uint8)
    found = read({"box": np.ones((2, 2)), "picture": picture, "parts": (6, [1, 2])})
    np.testing.assert_array_equal(found["parts"][0], [0, 1, 0])
    np.testing.assert_array_equal(found["parts"][1], [0, 1, 0, 0, 1])
    batch = read(
        {
            "box": np.ones((7, 2, 2)),
            "picture": np.zeros((7, 4, 4, 3), np.uint8),
            "parts": (np.full(7, 5), np.tile([1, 2], (7, 1))),
        }
    )
    with pytest.raises(EnvironmentFailure, match="of float64; declared is uint8"):
        read({"box": np.ones((2, 2)), "picture": picture / 255, "parts": (6, [1, 2])})
    assert batch["parts"][0].shape == (7, 3)
    assert batch["parts"][1].shape == (7, 5)
    np.testing.assert_array_equal(actions_of(spaces.Discrete(2, start=3), None, "mine"), [3, 4])
    torques = spaces.Box(np.array([-1, 0]), np.array([1, 2]), dtype=np.float32)
    grid = actions_of(torques, 3, "mine")
    assert grid.shape == (9, 2)
    np.testing.assert_array_equal(grid[[0, 5, 8]], [[-1, 0], [0, 2], [1, 2]])
    with pytest.raises(UserError, match=r"mine: actions of Box.* are continuous; give bins"):
        actions_of(torques, None, "mine")
    with pytest.raises(UserError, match="4096 combinations of actions; expected at most 1000"):
        actions_of(spaces.Box(-1, 1, (12,)), 2, "mine")
    with pytest.raises(UserError, match=r"observations of Text.* cannot be read"):
        observation_of(spaces.Text(5), "mine")


def test_nethack_is_seen_as_bits():
    needs("nle")
    from discorl.envs.host import nethack

    seen = nethack._bits(np.array([[64, 5], [97, 15]], np.uint8))
    assert seen.shape == (2, 11)
    np.testing.assert_array_equal(seen[0], [0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0])
    np.testing.assert_array_equal(seen[1], [1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
    vector = nethack.make("NetHackScore-v0").start(1, 0)
    first = vector.reset()
    # The hero is an @, in the middle of what is around.
    assert first["around"][0, 4, 4, 0] == ord("@")
    vector.close()
    rng = np.random.default_rng(0)
    chars, colors = rng.integers(1, 99, (2, 3, 21, 79), dtype=np.uint8)
    places = np.array([[0, 0], [78, 20], [40, 3]])  # columns and rows: two corners, and between
    status = np.concatenate([places, np.full((3, 25), -1000)], axis=1)
    read = nethack._read({"chars": chars, "colors": colors, "blstats": status})
    for i, (column, row) in enumerate(places):
        for y, x in np.ndindex(9, 9):
            cell = row + y - 4, column + x - 4
            inside = 0 <= cell[0] < 21 and 0 <= cell[1] < 79
            expected = (chars[i][cell], colors[i][cell]) if inside else (0, 0)
            np.testing.assert_array_equal(read["around"][i, y, x], expected)
    np.testing.assert_allclose(read["status"][1, [0, 2]], [np.log(79), -np.log(1001)], rtol=1e-6)


def test_a_missing_qt_is_named():
    needs("envpool")
    code = (
        "from discorl.envs.host import procgen; procgen._load_qt = lambda: None; "
        "procgen.make('coinrun')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        pytest.skip("the system has Qt")
    assert "UserError: procgen needs the Qt 5 libraries" in done.stderr
    assert "`pip install PyQt5-Qt5`" in done.stderr
