"""Environments on the host: trajectories, stacks of frames, training, and failing ones."""

import dataclasses
import itertools
import re
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

import discorl
from discorl import frames, host_acting, training
from discorl.envs import conformance
from discorl.envs.host import EnvironmentFailure, HostEnvironment, HostStep, HostVector
from discorl.envs.host.base import check_observation, seeds_from
from discorl.envs.host.serial import SerialVector
from discorl.evaluation import evaluate
from discorl.frames import Frames
from discorl.host_acting import HostActor
from discorl.host_tape import Standing, Tape
from discorl.rules import weights
from discorl.types import UserError

KEY = jax.random.key(5)
LIFE, LIMIT = 3, 4


def is_mortal(episode):
    """Two and two in turns."""
    return episode % 4 in (0, 3)


class Clock:
    """Mortal episodes terminate after LIFE steps, others are cut after LIMIT; reward 1 a step.

    The observation is the number of the episode and the time in it, both counted from 1, so that
    zeros cannot be mistaken for a frame.
    """

    def __init__(self):
        self.episode = 0

    def observe(self):
        return np.array([self.episode, self.time + 1], np.float32)

    def reset(self, seed):
        self.episode += 1
        self.time = 0
        return self.observe()

    def step(self, action):
        self.time += 1
        mortal = is_mortal(self.episode)
        ended, cut = mortal and self.time == LIFE, not mortal and self.time == LIMIT
        return self.observe(), 1.0, ended, cut, {"number": self.episode}

    def render(self):
        return np.full((4, 4, 3), self.time, np.uint8)

    def close(self):
        return


@dataclasses.dataclass(frozen=True)
class Clocks(HostEnvironment):
    """A vector of clocks; `resets_cost` makes every reset take a call, as in EnvPool."""

    make: type = Clock
    resets_cost: bool = False
    timeout: float = 60.0

    name = "clocks"
    num_actions = 2
    episode_metrics = ("number",)
    observation = jax.ShapeDtypeStruct((2,), np.float32)

    def start(self, count, seed, *, render=False):
        if self.resets_cost:
            return NextStep([self.make() for _ in range(count)])
        return SerialVector(self.make, seeds_from(seed, count))


class NextStep(HostVector):
    def __init__(self, clocks):
        self.clocks = clocks
        self.ended = np.zeros(len(clocks), bool)

    def reset(self):
        return np.stack([clock.reset(None) for clock in self.clocks])

    def step(self, action):
        first = self.ended
        rows = [
            (clock.reset(None), 0, False, False) if again else clock.step(0)[:4]
            for clock, again in zip(self.clocks, first, strict=True)
        ]
        seen, reward, terminated, truncated = map(np.array, zip(*rows, strict=True))
        self.ended = terminated | truncated
        return HostStep(seen, reward.astype(np.float32), terminated, truncated, first)


def count_frames(params, stack, core=()):
    """Logits that show the whole stack."""
    weights = jnp.arange(1, stack.shape[-1] + 1) * params
    return jnp.stack([stack @ weights, jnp.zeros(stack.shape[0])], axis=-1), core


def rollouts(environment, number=4, count=2, length=5, frame_stack=1):
    actor = HostActor(
        environment, count_frames, count=count, length=length, seed=0, frame_stack=frame_stack
    )
    params = jnp.float32(0.5)
    actor.start(params)
    return [actor.rollout(params, jax.random.fold_in(KEY, i)) for i in range(number)]


# --- trajectories ---------------------------------------------------------------------------------


def check_convention(parts, *, resets_cost, given_up=0):
    """Walks through rollouts of clocks; `given_up` episodes follow each truncated one unseen."""
    seen_fillers = 0
    for before, after in itertools.pairwise(parts):
        np.testing.assert_array_equal(
            before.trajectory.observation[-1], after.trajectory.observation[0]
        )
    for part in parts:
        data = jax.tree.map(np.asarray, part.trajectory)
        np.testing.assert_array_equal(part.trajectory.filler(), ~data.mask)
        assert part.steps == data.mask.sum()
        for t, e in np.ndindex(data.action.shape):
            (episode, time), following = data.observation[t, e], data.observation[t + 1, e]
            mortal = is_mortal(episode)
            if not data.mask[t, e]:
                assert time - 1 == (LIFE if mortal else LIMIT), "fillers are at last moments only"
                assert resets_cost or not mortal
                assert data.reward[t, e] == 0
                assert not data.terminated[t, e]
                assert not data.truncated[t, e]
                np.testing.assert_array_equal(following, [episode + 1 + given_up, 1])
                seen_fillers += 1
                continue
            assert data.reward[t, e] == 1
            ends = time == (LIFE if mortal else LIMIT)
            assert data.terminated[t, e] == (ends and mortal)
            assert data.truncated[t, e] == (ends and (resets_cost or not mortal))
            at_once = ends and mortal and not resets_cost
            np.testing.assert_array_equal(
                following, [episode + 1, 1] if at_once else [episode, time + 1]
            )
    assert seen_fillers
    episodes = [episode for part in parts for episode in part.episodes]
    assert {episode.length for episode in episodes} == {LIFE, LIMIT}
    assert all(episode.total == episode.length for episode in episodes)
    return episodes


@pytest.mark.parametrize("resets_cost", [False, True])
def test_trajectories_show_every_episode_as_the_convention_says(resets_cost):
    episodes = check_convention(rollouts(Clocks(resets_cost=resets_cost)), resets_cost=resets_cost)
    first = [episode for episode in episodes if episode.index == 1][:4]
    assert [episode.length for episode in first] == [LIMIT, LIMIT, LIFE, LIFE]
    if not resets_cost:
        assert [episode.metrics["number"] for episode in first] == [1, 2, 3, 4]


def test_a_tape_is_read_as_if_step_by_step():
    """Random answers, those of fillers included, against a walk along one environment at a time."""
    rng = np.random.default_rng(1)
    length, count, parts = 9, 50, 3
    over, terminal, first = rng.random((3, parts * length, count)) < [[[0.4]], [[0.5]], [[0.4]]]
    reward = rng.normal(size=over.shape).astype(np.float32)
    terminated, truncated = over & terminal, over & ~terminal
    standing, told, finished = Standing.at_start(count), [], [[] for _ in range(count)]
    scratch = np.empty(count)  # metrics may be overwritten by the next step
    for rows in np.split(np.arange(parts * length), parts):
        tape = Tape(length, count)
        for t, row in enumerate(rows):
            scratch[:] = row
            metrics = {"at": scratch} if row % 2 else {}
            flags = terminated[row], truncated[row], first[row]
            tape.write(t, HostStep(np.zeros(count), reward[row], *flags, metrics))
        arrays, episodes, standing = tape.read(standing)
        told.append(vars(arrays))
        for episode in episodes:
            finished[episode.index].append(episode)
    told = {name: np.concatenate([part[name] for part in told]) for name in told[0]}
    for e in range(count):
        filler, total, steps, expected = False, 0.0, 0, []
        for row in range(parts * length):
            real = not filler
            assert told["mask"][row, e] == real
            assert told["reward"][row, e] == (reward[row, e] if real else 0)
            assert told["terminated"][row, e] == (real and terminated[row, e])
            total, steps = total + real * float(reward[row, e]), steps + real
            filler = bool(real and over[row, e] and not first[row, e])
            assert told["truncated"][row, e] == filler
            if real and over[row, e]:
                expected.append((total, steps, {"at": float(row)} if row % 2 else {}))
                total, steps = 0.0, 0
        found = [(episode.total, episode.length, episode.metrics) for episode in finished[e]]
        assert [each[1:] for each in found] == [each[1:] for each in expected]
        np.testing.assert_allclose([x[0] for x in found], [x[0] for x in expected], atol=1e-12)
        left = standing.episodes()[e]
        assert (left.index, left.length, standing.ended[e]) == (e, steps, filler)
        np.testing.assert_allclose(left.total, total, atol=1e-12)


def test_logits_and_actions_are_those_of_the_policy():
    for part in rollouts(Clocks(), frame_stack=3):
        data = part.trajectory
        stacks = frames.expand(data.observation, 3)
        logits = count_frames(0.5, stacks[:-1].reshape(-1, 6))[0].reshape(5, 2, 2)
        np.testing.assert_allclose(data.behaviour_logits, logits, rtol=1e-6)
    # A margin of many units leaves no chance to noise.
    certain = logits[..., 0] > 20
    assert certain.any()
    assert (np.asarray(data.action)[certain] == 0).all()


# --- stacks of frames -----------------------------------------------------------------------------


def expected_stack(episode, time, size):
    """Frames of the same episode, its first one repeated."""
    return np.concatenate([[episode, max(1, time - age)] for age in reversed(range(size))])


@pytest.mark.parametrize("resets_cost", [False, True])
def test_stacks_of_the_host(resets_cost):
    size = 4
    for part in rollouts(Clocks(resets_cost=resets_cost), frame_stack=size):
        held = part.trajectory.observation
        assert held.frame.shape == (size - 1 + 5 + 1, 2, 2), "each frame once"
        stacks = np.asarray(frames.expand(held, size))
        newest = np.asarray(held.frame[size - 1 :])
        for t, e in np.ndindex(newest.shape[:2]):
            np.testing.assert_array_equal(stacks[t, e], expected_stack(*newest[t, e], size))


def test_stacks_of_native_environments():
    environment, size = probes.Mortal(lifetime=3, limit=5), 3
    config = discorl.configure(
        environments=4, batch=4, unroll=9, frame_stack=size, hidden=(4,), replay_fraction=0.0
    )
    trainer, _ = training.build(config, environment)
    state = training.initial_state(trainer)
    _, fresh, _ = jax.jit(trainer.act)(state.learner.params, state.actor, KEY)
    stacks = np.asarray(frames.expand(fresh.observation, size))
    width = environment.observation.shape[0]
    assert fresh.observation.frame.shape == (size - 1 + 10, 4, width)
    shown = np.asarray(fresh.observation.frame[size - 1 :]).argmax(-1)
    kind, time = np.divmod(shown, width // 2)
    for age in range(size):
        reached = np.maximum(time - (size - 1 - age), 0) + kind * (width // 2)
        part = stacks[..., age * width : (age + 1) * width]
        np.testing.assert_array_equal(part.argmax(-1), reached)
    assert frames.stacked(environment.observation, size).shape == stacks.shape[2:]


def test_channels_of_stacked_images():
    rng = np.random.default_rng(0)
    images = {"grey": (3, 1, 5, 6), "colour": (3, 1, 5, 6, 2)}
    images = {name: jnp.asarray(rng.random(shape)) for name, shape in images.items()}
    stack = frames.window(images, jnp.array([1]), 3)
    # One frame before: the oldest of three is the episode's first, frame 1, once more.
    np.testing.assert_allclose(
        stack["grey"][0], np.stack(images["grey"][np.array([1, 1, 2]), 0], -1)
    )
    np.testing.assert_allclose(
        stack["colour"][0], np.concatenate(images["colour"][np.array([1, 1, 2]), 0], -1)
    )


# --- training -------------------------------------------------------------------------------------

TINY = {
    "env": "clocks",
    "rule": "actor_critic",
    "environments": 2,
    "batch": 4,
    "replay": 8,
    "replay_fraction": 0.5,
    "unroll": 5,
    "hidden": (8,),
    "action_lstm": 4,
    "action_hidden": (4,),
    "frame_stack": 2,
    "updates": 6,
    "checkpoint_every": 2,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("host") / "run"
    return discorl.train(**TINY, environment=Clocks(), out=path)


def test_a_run_is_acting_and_learning_in_turns_one_update_behind(trained):
    """The pipeline, played by hand without any threads."""
    config = trained.config
    trainer, eta = training.build(config, Clocks())
    state = training.initial_state(trainer)
    seed = int(np.random.SeedSequence([config.seed, 0]).generate_state(1)[0])
    actor = trainer.actor(seed)
    learner, buffer, key = state.learner, state.replay, state.key
    actor.start(learner.params)
    root = jax.random.fold_in(jax.random.key(config.seed), 0xAC7)
    learn, behind, steps, losses = jax.jit(trainer.learn), learner.params, 0, []
    for k in range(config.updates):
        rollout = actor.rollout(behind, jax.random.fold_in(root, k))
        behind = learner.params
        buffer, learner, key, metrics = learn(buffer, rollout.trajectory, learner, key, eta)
        steps += rollout.steps
        losses.append(metrics["loss"])
    np.testing.assert_allclose(trained.metrics["loss"], losses, rtol=1e-6)
    assert trained.metrics["steps"][-1] == steps
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7),
        trained.state.learner.params,
        learner.params,
    )


def test_metrics_of_episodes(trained):
    metrics = trained.metrics
    ended = metrics["episodes"] > 0
    assert ended.any()
    assert set(metrics["return"][ended]) <= {3, 3.5, 4}
    assert np.isfinite(metrics["episode/number"][ended]).all()


def test_a_resumed_run_starts_its_environments_anew(trained, tmp_path, capsys):
    stop = []

    def on_rows(rows):
        if rows[-1]["update"] == 4:
            stop.append(True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        discorl.train(**TINY, environment=Clocks(), out=tmp_path / "run", on_rows=on_rows)
    assert stop
    result = discorl.train(resume=tmp_path / "run", environment=Clocks())
    assert result.finished
    assert "start anew, with other seeds" in capsys.readouterr().err
    assert result.metrics["update"].tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(result.metrics["loss"][:2], trained.metrics["loss"][:2])


def test_evaluation_plays_whole_episodes_and_films_one(trained, tmp_path):
    film = tmp_path / "episode.gif"
    played = evaluate(trained.path, episodes=35, environment=Clocks(), film=film)
    # 16 environments: the first three play three episodes, the third of which is mortal.
    assert sorted(played.lengths[0]) == [LIFE] * 3 + [LIMIT] * 32
    np.testing.assert_array_equal(played.returns, played.lengths)
    assert played.unfinished == 0
    assert film.read_bytes().startswith(b"GIF")
    assert set(played.metrics) == {"number"}
    assert played.no_film is None


class Undrawable(Clock):
    def render(self):
        raise ImportError("no pygame")


def test_what_was_played_is_kept_if_it_cannot_be_drawn(trained, tmp_path):
    film = tmp_path / "episode.gif"
    played = evaluate(trained.path, episodes=2, environment=Clocks(Undrawable), film=film)
    assert played.returns.tolist() == [[LIMIT, LIMIT]]
    assert played.film is None
    assert "raised ImportError: no pygame" in played.no_film
    stopped = evaluate(trained.path, episodes=1, environment=Clocks(Endless), max_steps=40)
    assert (stopped.unfinished, stopped.lengths.tolist()) == (1, [[64]])  # two looks
    assert stopped.metrics == {}


class Endless(Clock):
    def step(self, action):
        return self.observe(), 1.0, False, False, {}


def test_a_discovered_rule_learns_on_the_host(golden, tmp_path):
    rule = tmp_path / "tiny.npz"
    weights.save(rule, weights.load(golden / "meta_network.npz").eta, {"bins": 21})
    result = discorl.train(**TINY | {"rule": str(rule), "updates": 2}, environment=Clocks())
    assert np.isfinite(result.metrics["loss"]).all()


class Lever(Clock):
    """One step, reward 1 for the second action and -1 for the first."""

    def step(self, action):
        self.time += 1
        return self.observe() * 0 + 1, float(2 * action - 1), True, False, {}


def test_an_agent_learns_on_the_host():
    settings = TINY | {"updates": 150, "replay_fraction": 0.0, "batch": 2, "learning_rate": 3e-3}
    result = discorl.train(**settings, environment=Clocks(Lever))
    assert result.metrics["return"][:5].mean() < 0.7
    assert result.recent_return()[0] > 0.8


def test_several_seeds_are_refused():
    with pytest.raises(UserError, match=r"seeds is 2; expected 1.*one run for each seed"):
        discorl.train(**TINY | {"seeds": 2}, environment=Clocks())


# --- environments that fail -----------------------------------------------------------------------

FAILS_AT = 13  # a step of the third rollout


class Faulty(Clock):
    steps = 0

    def step(self, action):
        self.steps += 1
        outcome = super().step(action)
        return self.fail(*outcome) if self.steps == FAILS_AT else outcome


class Raises(Faulty):
    def fail(self, *outcome):
        raise ValueError("out of coffee")


class NotANumber(Faulty):
    def fail(self, seen, *outcome):
        return seen * np.nan, *outcome


class InfiniteReward(Faulty):
    def fail(self, seen, reward, *outcome):
        return seen, np.inf, *outcome


class WrongShape(Faulty):
    def fail(self, seen, *outcome):
        return seen[:1], *outcome


class Hangs(Faulty):
    let_go = threading.Event()

    def fail(self, *outcome):
        self.let_go.wait(60)
        return outcome


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Raises, r"environment 0 \(seed \d+\) failed at step 1\d: it raised ValueError: out of"),
        (NotANumber, r"environment 0 \(seed \d+\) failed at step 1\d: it returned NaN or infinity"),
        (InfiniteReward, r"environment 0 .* NaN or infinity in a reward"),
        (
            WrongShape,
            r"environment 0 \(seed \d+\) failed at step 1\d: it returned an observation of "
            r"shape \(1,\); expected \(2,\)",
        ),
        (
            Hangs,
            r"one of the environments \(seeds \d+ to \d+\) failed .* did not answer within 1 s",
        ),
    ],
)
def test_a_failing_environment_ends_the_run_after_a_checkpoint(make, message, tmp_path):
    environment = Clocks(make, timeout=1.0 if make is Hangs else 60.0)
    settings = TINY | {"checkpoint_every": 100, "updates": 50, "batch": 2, "replay_fraction": 0.0}
    with pytest.raises(EnvironmentFailure, match=f"clocks: {message}") as caught:
        discorl.train(**settings, environment=environment, out=tmp_path / "run")
    if make is Hangs:
        Hangs.let_go.set()  # the thread can end
    assert "saved as of update 2; go on with" in str(caught.value)
    assert [path.stem for path in (tmp_path / "run/checkpoints").iterdir()] == ["00000002"]


class Poisoned(NotANumber):
    def step(self, action):
        if self.steps == FAILS_AT:
            raise ValueError("all is lost")
        return super().step(action)


def test_the_first_thing_that_went_wrong_is_reported():
    """NaN and, in the step after it, an error; two calls before were resets."""
    message = rf"environment 0 \(seed \d+\) failed at step {FAILS_AT + 2}: it returned NaN"
    with pytest.raises(EnvironmentFailure, match=message):
        rollouts(Clocks(Poisoned), length=7)


def test_an_environment_that_cannot_start():
    class Broken(Clock):
        def reset(self, seed):
            raise OSError("no display")

    with pytest.raises(EnvironmentFailure, match=r"environment 0 .* at the start.*no displ"):
        discorl.train(**TINY, environment=Clocks(Broken))


def test_environments_are_closed_if_a_later_one_cannot_be_made():
    made, closed = [], []

    class Third(Clock):
        def __init__(self):
            if len(made) == 2:
                raise OSError("no more")
            made.append(self)

        def close(self):
            closed.append(self)

    with pytest.raises(OSError, match="no more"):
        SerialVector(Third, [1, 2, 3])
    assert closed == made
    assert len(made) == 2


def test_observations_of_another_structure():
    class Nested(Clock):
        def observe(self):
            return {"time": super().observe()}

    with pytest.raises(
        EnvironmentFailure, match=r"environment 0 \(seed \d+\) failed at the start.*structure"
    ):
        discorl.train(**TINY, environment=Clocks(Nested))


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), {"time": np.zeros(2, np.float32)}])
def test_the_one_environment_that_differs_from_the_others_is_named(wrong):
    class Odd(Clock):
        def step(self, action):
            return (wrong, *super().step(action)[1:]) if action else super().step(action)

    vector = SerialVector(Odd, [5, 6, 7])
    vector.reset()
    vector.step(np.array([0, 0, 0]))
    with pytest.raises(EnvironmentFailure, match=r"returned an .* expected shape \(2,\)") as caught:
        vector.step(np.array([0, 1, 0]))
    assert caught.value.index == 1
    declared = SerialVector(Odd, [5], observation=jax.ShapeDtypeStruct((2,), np.float32))
    declared.reset()  # and with one environment, it is what was declared that tells
    with pytest.raises(EnvironmentFailure) as caught:
        check_observation(declared.step(np.array([1])).observation, declared._expected, count=1)
    assert caught.value.index == 0


def test_the_one_environment_that_cannot_be_read_is_named():
    def read(found):
        if (found[:, 1] > LIFE).any():
            raise KeyError("too late")
        return {"now": found[:, 1:], "before": found[:, 1:] - 1}

    class Late(Clock):
        def step(self, action):
            self.time += action  # beside the one of every step
            return super().step(action)

    vector = SerialVector(Late, [5, 6], read=read)
    np.testing.assert_array_equal(vector.reset()["now"], [[1], [1]])
    seen = vector.step(np.array([0, 1])).observation
    np.testing.assert_array_equal(seen["now"], [[2], [3]])
    np.testing.assert_array_equal(seen["before"], [[1], [2]])
    with pytest.raises(EnvironmentFailure, match="raised KeyError: 'too late'") as caught:
        vector.step(np.array([0, 0]))
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("found", "dtype", "message"),
    [
        (np.full((2, 3), 0.5), np.uint8, r"of float64; declared is uint8"),
        (np.full((2, 3), np.nan, np.float32), np.int32, r"of float32; declared is int32"),
        (np.array([[1] * 3, [300] * 3]), np.uint8, r"of int64 from 300 to 300; declared is uint8"),
        (np.array([[1] * 3, [-1] * 3]), np.uint8, r"from -1 to -1; declared is uint8"),
        (np.array([[1] * 3, [2] * 3]), np.bool_, r"from 2 to 2; declared is bool"),
        ([[1, 2, 255], [0, 0, 0]], np.uint8, None),
        (np.full((2, 3), 7, np.int64), np.float32, None),
        (np.full((2, 3), 0.5), np.float32, None),
        (np.full((2, 3), 1), np.bool_, None),
        (np.full((2, 3), True), np.uint8, None),
    ],
)
def test_numbers_are_of_the_kind_that_was_declared(found, dtype, message):
    like = jax.ShapeDtypeStruct((3,), dtype)
    if message is None:
        seen = check_observation(found, like, 2)
        assert seen.dtype == dtype
        np.testing.assert_array_equal(seen, found)
        return
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        check_observation(found, like, 2)
    # Of values, the second row's; of dtypes, any row's.
    assert caught.value.index == (1 if "from" in message else 0)


# --- the checker ----------------------------------------------------------------------------------


class Tuples(HostVector):
    """Steps as Gymnasium has them, not as `HostStep`."""

    def __init__(self, clocks):
        self.vector = clocks

    def reset(self):
        return self.vector.reset()

    def step(self, action):
        return tuple(vars(self.vector.step(action)).values())


@dataclasses.dataclass(frozen=True)
class OfTuples(Clocks):
    def start(self, count, seed, *, render=False):
        return Tuples(super().start(count, seed))


class NoReset(Clock):
    def reset(self, seed):
        raise OSError("no display")


@pytest.mark.parametrize(
    ("environment", "detail"),
    [
        (Clocks(Raises), r"step raised ValueError: out of coffee at step 15, seed \d+ \(env.* 0\)"),
        (Clocks(NoReset), r"reset raised OSError: no display, seed \d+ \(environment 0\)"),
        (
            Clocks(Hangs, timeout=1.0),
            r"step did not answer within 1 s at step 15, one of the seeds",
        ),
        (OfTuples(), r"step returned a tuple at step 1; expected a HostStep"),
    ],
)
def test_the_checker_reports_what_an_environment_does_wrong(environment, detail):
    Hangs.let_go.clear()
    *_, failed = conformance.check(environment, steps=20, count=2)
    Hangs.let_go.set()
    assert not failed.ok
    assert re.match(detail, failed.detail), failed.detail


def test_example_has_the_shapes_of_a_rollout():
    like = host_acting.example(Clocks(), 2, 5, 3)
    real = rollouts(Clocks(), number=1, frame_stack=3)[0].trajectory
    assert jax.tree.map(lambda x: (x.shape, x.dtype), like) == jax.tree.map(
        lambda x: (x.shape, x.dtype), real
    )
    assert isinstance(real.observation, Frames)


# --- documentation --------------------------------------------------------------------------------


def test_the_documented_environment_trains():
    text = (Path(__file__).parent.parent / "docs" / "environments.md").read_text()
    section = text.split("## Your own on the host\n")[1]
    code = section.split("```python\n")[1].split("```")[0]
    assert "updates=200" in code
    names = {}
    exec(code.replace("updates=200", "updates=3"), names)
    assert names["result"].finished
    assert all(f.ok for f in conformance.check(names["Corridor"](), steps=60, count=2))
