"""Acting on the host: trajectories and stacks of frames."""

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from clocks import KEY, LIFE, LIMIT, Clocks, check_convention, count_frames, rollouts

import discorl
from discorl.agent import frames
from discorl.agent.frames import Frames
from discorl.envs.host import HostStep
from discorl.training import make_trainer
from discorl.training.host.programs import ActingPrograms
from discorl.training.host.rollout import RolloutBuffer, RunningEpisodes

# --- trajectories ---------------------------------------------------------------------------------


@pytest.mark.parametrize("resets_cost", [False, True])
def test_trajectories_show_every_episode_as_the_convention_says(resets_cost):
    episodes = check_convention(rollouts(Clocks(resets_cost=resets_cost)), resets_cost=resets_cost)
    first = [episode for episode in episodes if episode.index == 1][:4]
    assert [episode.length for episode in first] == [LIMIT, LIMIT, LIFE, LIFE]
    if not resets_cost:
        assert [episode.metrics["number"] for episode in first] == [1, 2, 3, 4]


def test_a_rollout_buffer_computes_as_if_step_by_step():
    """Random results, those of fillers included, against a walk along one environment at a time."""
    rng = np.random.default_rng(1)
    length, count, parts = 9, 50, 3
    over, terminal, first = rng.random((3, parts * length, count)) < [[[0.4]], [[0.5]], [[0.4]]]
    reward = rng.normal(size=over.shape).astype(np.float32)
    terminated, truncated = over & terminal, over & ~terminal
    running, data, finished = RunningEpisodes.at_start(count), [], [[] for _ in range(count)]
    scratch = np.empty(count)  # metrics may be overwritten by the next step
    for rows in np.split(np.arange(parts * length), parts):
        buffer = RolloutBuffer(length, count)
        for t, row in enumerate(rows):
            scratch[:] = row
            metrics = {"at": scratch} if row % 2 else {}
            flags = terminated[row], truncated[row], first[row]
            buffer.add(t, HostStep(np.zeros(count), reward[row], *flags, metrics))
        arrays, episodes, running = buffer.finish(running)
        data.append(arrays)
        for episode in episodes:
            finished[episode.index].append(episode)
    data = {name: np.concatenate([part[name] for part in data]) for name in data[0]}
    for e in range(count):
        filler, total, steps, expected = False, 0.0, 0, []
        for row in range(parts * length):
            real = not filler
            assert data["filler"][row, e] == filler
            assert data["reward"][row, e] == (reward[row, e] if real else 0)
            assert data["terminated"][row, e] == (real and terminated[row, e])
            total, steps = total + real * float(reward[row, e]), steps + real
            filler = bool(real and over[row, e] and not first[row, e])
            assert data["truncated"][row, e] == filler
            if real and over[row, e]:
                expected.append((total, steps, {"at": float(row)} if row % 2 else {}))
                total, steps = 0.0, 0
        found = [(episode.total, episode.length, episode.metrics) for episode in finished[e]]
        assert [each[1:] for each in found] == [each[1:] for each in expected]
        np.testing.assert_allclose([x[0] for x in found], [x[0] for x in expected], atol=1e-12)
        left = running.as_list()[e]
        assert (left.index, left.length, running.ended[e]) == (e, steps, filler)
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


def test_example_has_the_shapes_of_a_rollout():
    like = ActingPrograms(Clocks(), count_frames, 2, 5, 3).example()
    real = rollouts(Clocks(), number=1, frame_stack=3)[0].trajectory
    assert jax.tree.map(lambda x: (x.shape, x.dtype), like) == jax.tree.map(
        lambda x: (x.shape, x.dtype), real
    )
    assert isinstance(real.observation, Frames)


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
        num_envs=4, batch=4, unroll=9, frame_stack=size, hidden=(4,), replay_fraction=0.0
    )
    trainer = make_trainer(config, environment)
    state = trainer.init()
    _, fresh, _ = jax.jit(trainer.agent.act)(state.learner.params, state.actor, KEY)
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
