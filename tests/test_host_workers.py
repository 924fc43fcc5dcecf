"""Environments in processes of their own: the same experience, failures, and ends."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from discorl.envs.host import EnvironmentFailure, SerialVector, WorkerVector, vector_of, workers
from discorl.types import UserError

STEP, RAISE, NOT_A_NUMBER, WRONG_SHAPE, EXIT, HANG = range(6)
SEEDS = [11, 12, 13]
OBSERVATION = {
    "picture": jax.ShapeDtypeStruct((3, 2), np.uint8),
    "vector": jax.ShapeDtypeStruct((2,), np.float32),
}


class Tricky:
    """Random observations and lengths of episodes; actions for everything that can go wrong."""

    def reset(self, seed):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.left = int(self.random.integers(2, 6))
        return self.show()

    def show(self):
        vector = self.random.normal(size=2).astype(np.float32)
        return {"picture": self.random.integers(255, size=(3, 2), dtype=np.uint8), "vector": vector}

    def step(self, action):
        print("environments may print")
        seen, reward = self.show(), self.random.normal()
        if action == RAISE:
            raise ValueError("out of coffee")
        if action == NOT_A_NUMBER:
            seen["vector"][1] = np.nan
        if action == WRONG_SHAPE:
            seen["vector"] = seen["vector"][:1]
        if action == EXIT:
            os._exit(7)
        if action == HANG:
            time.sleep(600)
        self.left -= 1
        kind = self.random.integers(2)
        return seen, reward, self.left == 0 and kind == 0, self.left == 0, {"kind": float(kind)}

    def render(self):
        return np.full((4, 4, 3), self.left, np.uint8)

    def close(self):
        return


def darker(found):
    """Pictures of half the brightness; of as many environments as a process has."""
    return found | {"picture": found["picture"] // 2}


def is_running(process):
    """Whether a process does anything yet; one that ended may still be listed."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(processes, seconds=60):
    deadline = time.monotonic() + seconds
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, "workers are still there"
        time.sleep(0.1)


def columns(step):
    leaves = jax.tree.leaves(step.observation)
    return [*leaves, step.reward, step.terminated, step.truncated, step.first]


def test_workers(monkeypatch):
    serial = SerialVector(Tricky, SEEDS, read=darker)
    vector = vector_of(Tricky, SEEDS, observation=OBSERVATION, workers=2, read=darker)
    assert isinstance(vector, WorkerVector)
    processes = [each.process.pid for each in vector._workers]
    assert len(set(processes)) == 2
    assert os.getpid() not in processes
    first = serial.reset()
    assert first["picture"].max() < 128
    jax.tree.map(np.testing.assert_array_equal, vector.reset(), first)
    ended = 0
    for _ in range(30):
        expected, found = (v.step(np.zeros(3, np.int32)) for v in (serial, vector))
        for one, two in zip(columns(found), columns(expected), strict=True):
            np.testing.assert_array_equal(one, two)
            assert one.dtype == two.dtype
        assert found.metrics.keys() == expected.metrics.keys()
        for name in expected.metrics:
            np.testing.assert_array_equal(found.metrics[name], expected.metrics[name])
            ended += 1
    assert ended > 5
    np.testing.assert_array_equal(vector.render(), serial.render())

    def failure(*actions):
        with pytest.raises(EnvironmentFailure) as caught:
            vector.step(np.array(actions, np.int32))
        return str(caught.value), caught.value.index

    # A reset that is due takes no action: none is after this.
    while (serial.step(np.zeros(3, np.int32)).truncated | vector.step(np.zeros(3)).truncated).any():
        pass
    # The first worker has two environments, the second has one.
    assert failure(STEP, RAISE, STEP) == ("raised ValueError: out of coffee", 1)
    vector._timeout = 1.0
    assert failure(HANG, STEP, EXIT) == ("did not answer within 1 s", None)
    assert failure(STEP, STEP, STEP)[0] == "did not answer within 1 s"
    with pytest.raises(EnvironmentFailure, match="ended its process, with exit code 7") as caught:
        vector._workers[1].answer(0.0, 1.0)
    assert caught.value.index == 2
    monkeypatch.setattr(workers, "_CLOSING_SECONDS", 0.5)
    vector.close()
    assert not any(map(is_running, processes))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (NOT_A_NUMBER, "returned NaN or infinity in an observation"),
        (WRONG_SHAPE, "'vector': (1,)}; expected shape {'picture': (3, 2), 'vector': (2,)}"),
    ],
)
def test_what_workers_return_is_checked_where_it_is_made(action, message):
    """In the worker, as a function: a process would add nothing."""
    from discorl.envs.host import worker

    job = worker.Job(b"", SEEDS[1:], 1, 3, OBSERVATION)
    memory = worker.mmap.mmap(-1, worker.board_size(OBSERVATION, 3, None))
    server = worker._Server(None, job, worker.board_on(memory, OBSERVATION, 3, None))
    server._vector = SerialVector(Tricky, job.seeds, observation=OBSERVATION)
    server._reset()
    sent = []
    server._connection = type("Pipe", (), {"send_bytes": staticmethod(sent.append)})
    board = worker.board_on(memory, OBSERVATION, 3, None)
    board.action[2] = action
    server._answer(server._step)
    answer = worker.json.loads(sent[0])
    assert message in answer["failure"]
    assert answer["index"] == 2


SCRIPT = """
import numpy as np, test_host_workers as test
from discorl.envs.host import vector_of
vector = vector_of(test.Tricky, test.SEEDS, observation=test.OBSERVATION, workers=2)
vector.reset()
print(*[each.process.pid for each in vector._workers], flush=True)
vector.step(np.array([test.HANG, test.STEP, test.STEP], np.int32))
"""


def test_workers_end_with_the_process_that_started_them():
    """One of them in the middle of a step, and the other waiting for the next."""
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        process_group=0,
    )
    try:
        processes = [int(word) for word in parent.stdout.readline().split()]
        assert len(processes) == 2
        # Ctrl-C reaches the parent's group alone: it is the parent that ends its workers.
        assert {os.getpgid(process) for process in processes}.isdisjoint({parent.pid})
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    wait_until_ended(processes)


def test_mistakes_are_told():
    with pytest.raises(UserError, match=r"cannot be sent to another process.*or workers=0"):
        vector_of(functools.partial(Tricky, (x for x in ())), SEEDS, observation=(), workers=2)
    adapter = pytest.importorskip("discorl.envs.host.gymnasium")
    with pytest.raises(UserError, match="mine: workers is -1; expected at least 0"):
        adapter.from_gymnasium(lambda render: None, name="mine", workers=-1)
    assert isinstance(vector_of(Tricky, SEEDS, observation=(), workers=1), SerialVector)
