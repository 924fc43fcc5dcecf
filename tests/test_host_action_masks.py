"""Action masks of host environments, in `info` or in observations."""

import contextlib
import mmap

import jax
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

import discorl  # noqa: E402
from discorl.envs import conformance  # noqa: E402
from discorl.envs.host import WorkerVector, worker  # noqa: E402
from discorl.envs.host.base import EnvironmentFailure  # noqa: E402
from discorl.envs.host.gymnasium import from_gymnasium, from_vector  # noqa: E402
from discorl.envs.host.serial import SerialVector  # noqa: E402
from discorl.envs.host.spaces import mask_in  # noqa: E402
from discorl.runs.metrics import TOTAL_LOSS  # noqa: E402
from discorl.training.evaluation import evaluate  # noqa: E402
from discorl.training.host.acting import check_mask  # noqa: E402

spaces = gymnasium.spaces
MASKS = np.array([[1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], np.int8)


class Gated(gymnasium.Env):
    """Three steps, cut; an illegal action raises, and nothing is legal afterwards."""

    action_space = spaces.Discrete(3)
    render_mode = None

    def __init__(self, where="info"):
        self.where = where
        time = spaces.Box(0, 1, (4,), np.float32)
        mask = spaces.MultiBinary(3)
        if where == "column":  # a mask need not be flat
            mask = spaces.MultiBinary((3, 1))
        together = spaces.Dict({"observation": time, "action_mask": mask})
        self.observation_space = time if where == "info" else together

    def show(self):
        seen, mask = np.eye(4, dtype=np.float32)[self.time], MASKS[self.time]
        if self.where == "info":
            return seen, {"action_mask": mask}
        mask = mask.reshape(self.observation_space["action_mask"].shape)
        return {"observation": seen, "action_mask": mask}, {}

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self.show()

    def step(self, action):
        if not MASKS[self.time][action]:
            raise ValueError(f"illegal: {action} at {self.time}")
        self.time += 1
        seen, info = self.show()
        return seen, 1.0, False, self.time == 3, info


@pytest.mark.parametrize("where", ["info", "observation"])
def test_masks_of_gymnasium_environments(where):
    environment = from_gymnasium(lambda render: Gated(where), name="gated")
    assert environment.has_action_mask
    leaf = jax.ShapeDtypeStruct((4,), np.float32)  # without the mask
    assert environment.observation == (leaf if where == "info" else {"observation": leaf})
    findings = {each.check: each for each in conformance.check(environment, steps=12, count=2)}
    assert [each for each in findings.values() if not each.ok] == []
    assert findings["action mask"].detail == "1 to 2 of 3 actions are legal"


class Silent(Gated):
    """Has no mask in `info` where the episode is over."""

    def step(self, action):
        *outcome, over, info = super().step(action)
        return *outcome, over, {} if over else info


def test_an_environment_may_leave_out_the_mask_where_an_episode_is_over():
    environment = from_gymnasium(lambda render: Silent(), name="silent")
    findings = conformance.check(environment, steps=12, count=2)
    assert [each for each in findings if not each.ok] == []


def test_environments_without_a_mask_have_none():
    environment = from_gymnasium(lambda render: gymnasium.make("CartPole-v1"), name="cart")
    assert not environment.has_action_mask
    vector = environment.start(1, 0)
    vector.reset()
    checks = [each.check for each in conformance.check(environment, steps=2, count=1)]
    assert "action mask" not in checks


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode))
@pytest.mark.parametrize("where", ["observation", "column"])
def test_masks_of_vectors(mode, where):
    """Through a truncation, after which an action is taken that the next episode forbids."""

    def create(count, render):
        make = [lambda: Gated(where)] * count
        return gymnasium.vector.SyncVectorEnv(make, autoreset_mode=mode)

    environment = from_vector(create, name="gated")
    vector = environment.start(2, 0)
    seen, step = vector.reset(), None
    for time in [0, 1, 2, 3, 0, 1, 2, 3]:
        np.testing.assert_array_equal(vector.action_mask(), MASKS[[time, time]].astype(bool))
        np.testing.assert_array_equal(np.argmax(seen["observation"], axis=-1), time)
        illegal_if_begun = 2
        action = MASKS[time].argmax() if time < 3 else illegal_if_begun
        step = vector.step(np.full(2, action, np.int32))
        seen = step.observation
        assert step.truncated.all() == (time == 2)
        assert step.first.all() == (time == 3)
    assert [each for each in conformance.check(environment, steps=20, count=2) if not each.ok] == []


def test_workers_share_their_masks():
    """In the worker, as a function: a process would add nothing."""
    environment = from_gymnasium(lambda render: Gated(), name="gated")
    sizes = environment.observation, 3, 3
    memory = mmap.mmap(-1, worker.board_size(*sizes))
    job = worker.Job(b"", [7, 8], 1, 3, environment.observation, 3)
    server = worker._Server(None, job, worker.board_on(memory, *sizes))
    alone = environment.start(2, 0)
    server._vector = alone
    server._reset()
    board = worker.board_on(memory, *sizes)
    np.testing.assert_array_equal(board.action_mask, MASKS[[3, 0, 0]].astype(bool))
    board.action[...] = 0
    server._step()
    np.testing.assert_array_equal(board.action_mask, MASKS[[3, 1, 1]].astype(bool))
    assert isinstance(alone, SerialVector)


def test_masks_come_from_worker_processes():
    environment = from_gymnasium(lambda render: Gated(), name="gated", workers=2)
    vector = environment.start(3, 0)
    assert isinstance(vector, WorkerVector)
    with contextlib.closing(vector):
        vector.reset()
        for time in [0, 1, 2, 3, 0]:
            np.testing.assert_array_equal(vector.action_mask(), MASKS[[time] * 3].astype(bool))
            vector.step(np.full(3, MASKS[time].argmax(), np.int32))


def test_agents_of_host_environments_take_legal_actions():
    environment = from_gymnasium(lambda render: Gated(), name="gated")
    result = discorl.train(
        rule="actor_critic",
        environment=environment,
        num_envs=2,
        batch=2,
        unroll=7,
        hidden=(4,),
        updates=3,
    )
    assert np.isfinite(result.metrics[TOTAL_LOSS]).all()
    played = evaluate(result, episodes=2, greedy=True)
    np.testing.assert_array_equal(played.returns, 3.0)


def test_a_mask_that_is_missing_or_too_short():
    assert mask_in({}, {"action_mask": [[1, 0], [0, 1]]}, 4).tolist() == [True, False, False, True]
    for info, message in (
        ({}, "returned no action mask; expected one of 3 actions"),
        ({"action_mask": [1]}, r"an action mask of shape \(1,\); expected one of 3 actions"),
    ):
        with pytest.raises(EnvironmentFailure, match=message):
            mask_in(None, info, 3)


def test_a_mask_without_a_legal_action():
    mask = np.array([[True, False], [False, False]])
    check_mask(mask, (2, 2), over=np.array([False, True]))
    with pytest.raises(EnvironmentFailure, match="without a legal action within an episode"):
        check_mask(mask, (2, 2), over=np.array([True, False]))
    with pytest.raises(EnvironmentFailure, match=r"shape \(2, 2\); expected \(2, 3\)"):
        check_mask(mask, (2, 3), over=np.array([False, True]))
