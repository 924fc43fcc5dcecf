"""Adapters of environments on the host, step by step against the packages that they adapt.

A package is played by hand, one environment at a time, with the seeds and the actions of the
adapter's vector. How observations are shown is written here once more.
"""

import functools

import jax
import numpy as np
import pytest
from packages import needs, shrink_crafter

from discorl.envs.host import seeds_from

COUNT, SEED = 2, 1


def play(environment, package, steps, rounding=0):
    """Plays both with random actions, and compares whatever follows them.

    Args:
        environment: of the adapter.
        package: makes one environment of a seed, with `reset() -> observation` and `step(action) ->
            observation, reward, terminated, truncated, told`. Of an episode that has ended the
            package tells all or some of `return`, `length` and the adapter's metrics.
        steps: how many.
        rounding: by how much observations may differ.

    Returns:
        the ways in which episodes ended.
    """
    vector = environment.start(COUNT, SEED)
    alone = [package(seed) for seed in seeds_from(SEED, COUNT)]
    random = np.random.default_rng(SEED)
    check_same(vector.reset(), [one.reset() for one in alone], rounding)
    over = [False] * COUNT  # the last observation was shown, and is to be followed by a first one
    totals, lengths = np.zeros(COUNT), np.zeros(COUNT)
    ways = set()
    for _ in range(steps):
        actions = random.integers(environment.num_actions, size=COUNT, dtype=np.int32)
        step = vector.step(actions)
        totals, lengths = totals + step.reward, lengths + ~np.array(over)
        shown = []
        for i, one in enumerate(alone):
            found = step.reward[i], step.terminated[i], step.truncated[i], step.first[i]
            if over[i]:
                assert found == (0, False, False, True)
                shown.append(one.reset())
                over[i] = False
                continue
            seen, reward, terminated, truncated, told = one.step(int(actions[i]))
            # Only after a termination may an episode begin at once.
            first = terminated and step.first[i]
            assert found == (np.float32(reward), terminated, truncated and not terminated, first)
            if terminated or truncated:
                ways.add("terminated" if terminated else "truncated")
                found = {"return": totals[i], "length": lengths[i]}
                found |= {name: values[i] for name, values in step.metrics.items()}
                assert set(environment.episode_metrics) <= set(told)
                assert {name: found[name] for name in told} == pytest.approx(told, abs=1e-4)
                totals[i] = lengths[i] = 0
                over[i] = not first
            shown.append(one.reset() if first else seen)
        check_same(step.observation, shown, rounding)
    vector.close()
    return ways


def check_same(found, rows, rounding):
    """Observations, [E, ...], against those of every environment."""
    same = functools.partial(np.testing.assert_allclose, rtol=0, atol=rounding)
    jax.tree.map(same, found, jax.tree.map(lambda *x: np.stack(x), *rows))


# --- Gymnasium ------------------------------------------------------------------------------------


class Gymnasium:
    """Made by its name, with Gymnasium's own limit of time and statistics of episodes."""

    def __init__(self, seed, item, limit, show, actions=None):
        import gymnasium

        env = gymnasium.make(item, max_episode_steps=limit, disable_env_checker=True)
        self.env = gymnasium.wrappers.RecordEpisodeStatistics(env)
        self.seed, self.show, self.actions = seed, show, actions

    def reset(self):
        seed, self.seed = self.seed, None  # given once
        return self.show(self.env.reset(seed=seed)[0])

    def step(self, action):
        chosen = action if self.actions is None else self.actions[action]
        seen, reward, terminated, truncated, info = self.env.step(chosen)
        told = {}
        if terminated or truncated:
            told = {"return": info["episode"]["r"], "length": info["episode"]["l"]}
        return self.show(seen), reward, terminated, truncated, told


def one_hot(*sizes):
    return lambda numbers: tuple(
        np.eye(size, dtype=np.float32)[number] for size, number in zip(sizes, numbers, strict=True)
    )


@pytest.mark.parametrize(
    ("item", "settings", "package", "ways"),
    [
        ("CartPole-v1", {"max_steps": 20}, {"show": np.array}, {"terminated", "truncated"}),
        (
            "Pendulum-v1",
            {"max_steps": 9, "bins": 3},
            {"show": np.array, "actions": np.array([[-2], [0], [2]], np.float32)},
            {"truncated"},
        ),
        (
            "FrozenLake-v1",
            {"max_steps": 6},
            {"show": lambda number: one_hot(16)([number])[0]},
            {"terminated", "truncated"},
        ),
        ("Blackjack-v1", {}, {"show": one_hot(32, 11, 2)}, {"terminated"}),
    ],
)
def test_gymnasium(item, settings, package, ways):
    needs("gymnasium")
    from discorl.envs.host import gymnasium

    made = functools.partial(Gymnasium, item=item, limit=settings.get("max_steps"), **package)
    assert play(gymnasium.make(item, **settings), made, 100) == ways


# --- Atari ----------------------------------------------------------------------------------------


class Atari:
    """ALE's interface to one game, frame by frame."""

    def __init__(self, seed, rom, frames, size, grey):
        import ale_py

        self.ale = ale_py.ALEInterface()
        self.ale.setInt("random_seed", seed)
        self.ale.setInt("max_num_frames_per_episode", frames)
        self.ale.setFloat("repeat_action_probability", 0)
        self.ale.loadROM(ale_py.roms.get_rom_path(rom))
        self.actions = self.ale.getMinimalActionSet()
        self.frame = self.ale.getScreenGrayscale if grey else self.ale.getScreenRGB
        self.size = size

    def reset(self):
        self.ale.reset_game()
        self.total = self.length = 0
        self.shown = [self.frame()]
        return self.show(self.shown)

    def step(self, action):
        reward, frames = 0, []
        while len(frames) < 4 and not self.ale.game_over():  # a cut game is over, too
            reward += self.ale.act(self.actions[action])
            frames.append(self.frame())
        self.total, self.length = self.total + reward, self.length + 1
        ended, cut = self.ale.game_over(with_truncation=False), self.ale.game_truncated()
        told = {"return": self.total, "length": self.length} if ended or cut else {}
        # Where ALE's vector cuts a game it has not looked at the last frame, and shows in its place
        # the picture before.
        self.shown = [*self.shown, frames[-2]] if cut else frames[-2:]
        return self.show(self.shown), reward, ended, cut, told

    def show(self, frames):
        """The brightest of the frames, shrunk by means over areas."""
        picture = np.max(frames, axis=0).astype(float)
        for axis in (0, 1):
            weights = areas(picture.shape[axis], self.size)
            picture = np.moveaxis(np.tensordot(weights, picture, (1, axis)), 0, axis)
        return np.rint(picture).astype(np.uint8).reshape(self.size, self.size, -1)


def areas(pixels, size):
    """Which share each of so many pixels has in each of fewer ones, [size, pixels]."""
    edges = np.arange(size + 1)[:, None] * pixels / size
    covered = np.clip(edges - np.arange(pixels), 0, 1)  # of each pixel, from the left
    return np.diff(covered, axis=0) * size / pixels


@pytest.mark.parametrize("grey", [True, False])
def test_atari(grey):
    needs("ale_py", "gymnasium")
    from discorl.envs.host import atari

    package = functools.partial(Atari, rom="breakout", frames=720, size=42, grey=grey)
    environment = atari.make("Breakout", noops=0, max_frames=720, size=42, grey=grey)
    assert play(environment, package, 250, rounding=1) == {"terminated", "truncated"}


# --- ProcGen --------------------------------------------------------------------------------------


class Maze:
    """A pool of one maze: it is solved, for a reward, or time is over."""

    def __init__(self, seed):
        import envpool

        self.pool = envpool.make_gymnasium(
            "MazeEasy-v0", num_envs=1, seed=[seed], channel_first=False, num_levels=500
        )

    def reset(self):
        return self.pool.reset()[0][0]

    def step(self, action):
        seen, reward, _, _, info = self.pool.step(np.array([action], np.int32))
        solved, length = bool(info["prev_level_complete"][0]), info["elapsed_step"][0]
        cut = length == 500
        told = {"return": 10 * solved, "length": length} if solved or cut else {}
        return seen[0], reward[0], solved, cut, told


def test_procgen():
    needs("envpool")
    from discorl.envs.host import procgen

    environment = procgen.make("maze", mode="easy")
    assert play(environment, Maze, 560) == {"terminated", "truncated"}


# --- Crafter --------------------------------------------------------------------------------------


class Crafter:
    """Whose episodes are over in two ways that `done` does not tell apart."""

    def __init__(self, seed, length):
        import crafter

        self.env = crafter.Env(size=(18, 18), length=length, seed=seed)

    def reset(self):
        self.length = 0
        return self.env.reset()

    def step(self, action):
        seen, reward, done, info = self.env.step(action)
        self.length += 1
        dead, told = info["inventory"]["health"] == 0, {}
        if done:
            told = {
                f"achievement/{name}": float(count > 0)
                for name, count in info["achievements"].items()
            }
            told["length"] = self.length
        return seen, reward, dead, done and not dead, told


def order_creatures(monkeypatch, *, reverse):
    """Crafter removes one of a chunk's creatures now and then: the n-th of a set.

    Its order depends on where in memory they lie, unless it is given here.
    """
    import crafter

    def chunks(world):
        return {
            chunk: sorted(creatures, key=lambda creature: tuple(creature.pos), reverse=reverse)
            for chunk, creatures in world._chunks.items()
        }

    monkeypatch.setattr(crafter.engine.World, "chunks", property(chunks))


@pytest.fixture
def brief_crafter(monkeypatch):
    """A small world, and players who soon die of thirst."""
    needs("crafter")
    import crafter

    shrink_crafter(monkeypatch)
    order_creatures(monkeypatch, reverse=False)
    monkeypatch.setitem(crafter.constants.items["drink"], "initial", 0)
    monkeypatch.setitem(crafter.constants.items["health"], "initial", 1)


@pytest.mark.parametrize(("length", "way"), [(12, "truncated"), (100, "terminated")])
def test_crafter(length, way, brief_crafter):
    from discorl.envs.host import crafter

    environment = crafter.make("reward", size=18, length=length)
    assert play(environment, functools.partial(Crafter, length=length), 40) == {way}


def test_crafter_is_a_function_of_its_seed(monkeypatch):
    """Whatever the order of creatures in memory, on which the bare package depends."""
    needs("crafter")
    import crafter

    from discorl.envs.host import crafter as adapter

    shrink_crafter(monkeypatch)
    ours, theirs = [], []
    for reverse in (False, True):
        order_creatures(monkeypatch, reverse=reverse)
        vector = adapter.make("reward", size=18).start(1, 0)
        bare = crafter.Env(size=(18, 18), seed=seeds_from(0, 1)[0])
        seen = [(vector.reset(), bare.reset())]
        seen += [(vector.step(np.array([0])).observation, bare.step(0)[0]) for _ in range(300)]
        ours.append(np.array([each for each, _ in seen]))
        theirs.append(np.array([each for _, each in seen]))
    np.testing.assert_array_equal(*ours)
    assert not np.array_equal(*theirs)


# --- NetHack --------------------------------------------------------------------------------------


class NetHack(Gymnasium):
    """In another dungeon every episode."""

    def __init__(self, seed, item, limit):
        super().__init__(None, item, limit, show=screen)
        self.random = np.random.default_rng(seed)

    def reset(self):
        core, display = self.random.integers(2**31, size=2)
        self.env.unwrapped.seed(int(core), int(display), reseed=False)
        return super().reset()


def screen(found):
    """The whole screen, the 9 x 9 cells around the hero, and the status on a logarithmic scale."""
    cells = np.stack([found["chars"], found["colors"]], axis=-1)
    status = found["blstats"].astype(np.float32)
    column, row = found["blstats"][:2]
    around = np.pad(cells, ((4, 4), (4, 4), (0, 0)))[row : row + 9, column : column + 9]
    return {
        "around": around,
        "screen": cells,
        "status": np.copysign(np.log1p(np.abs(status)), status),
    }


@pytest.mark.parametrize(
    ("turns", "ways"), [(None, {"truncated"}), (14, {"terminated", "truncated"})]
)
def test_nethack(turns, ways, monkeypatch):
    """Tasks of NLE say themselves when they are over, here after some turns: not all steps are."""
    needs("nle")
    from nle.env.tasks import NetHackScore
    from nle.nethack import NLE_BL_TIME

    from discorl.envs.host import nethack

    def is_over(task, observation):
        return task.StepStatus(int(observation[task._blstats_index][NLE_BL_TIME] > turns))

    if turns is not None:
        monkeypatch.setattr(NetHackScore, "_is_episode_end", is_over)
    package = functools.partial(NetHack, item="NetHackScore-v0", limit=25)
    assert play(nethack.make("NetHackScore-v0", max_steps=25), package, 120) == ways


def test_nethack_shows_the_last_screen_of_a_game_that_nle_gives_up(monkeypatch):
    """It does so if no turn passes for long. The task is not seeded, and not compared."""
    needs("nle")
    import gymnasium
    from nle.nethack import ACTIONS, Command

    from discorl.envs.host import nethack

    challenge = gymnasium.registry["NetHackChallenge-v0"]
    monkeypatch.setitem(challenge.kwargs, "no_progress_timeout", 10)
    vector, escape = (
        nethack.make("NetHackChallenge-v0").start(1, SEED),
        np.array([ACTIONS.index(Command.ESC)]),
    )
    vector.reset()
    before = step = vector.step(escape)  # nothing happens
    while not step.truncated[0]:
        assert not step.terminated[0] and not step.first[0]
        before, step = step, vector.step(escape)
    jax.tree.map(np.testing.assert_array_equal, step.observation, before.observation)
    assert step.observation["around"][0, 4, 4, 0] == ord("@")
    assert vector.step(escape).first[0]
    vector.close()
