"""Training on several devices and processes: seeds side by side, or one agent by its batch."""

import clusters
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discorl
from discorl.agent.config import AgentConfig
from discorl.runs import processes
from discorl.training.assembly import check_processes
from discorl.training.state import add_and_sample, init_replay
from discorl.types import Trajectory

SETTINGS = """
import os, signal, sys, jax, numpy as np, discorl

def settings(name, parts):
    small = dict(num_envs=4, unroll=4, batch=8, replay=32, replay_fraction=0.5, hidden=(8,))
    if name == "ppo":
        small |= dict(batch=4, replay_fraction=0.0)
    rule = name
    if name == "disco":
        from discoveries import ETA, RULE
        rule = RULE, ETA
        small |= dict(action_lstm=4, action_hidden=(4,))
    return dict(rule=rule, env="catch", data_parallel=parts, updates=20) | small
"""
# Trains on one device and on two, and prints the largest difference of a parameter.
DEVICES = """
from discorl.runs import processes

name, seeds, parts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chosen = settings(name, parts)
config = discorl.configure(seeds=seeds, **chosen)
found, every = [], jax.devices()
for devices in (every[:1], every):
    processes.devices = lambda devices=devices: devices
    with discorl.make_trainer(config, rule=chosen["rule"]) as trainer:
        state, _, _ = trainer.run(trainer.init(), 20)
    found.append(jax.device_get(state.learner.params))
    used = jax.tree.leaves(state.replay or state.actor)[0].sharding.device_set
    assert len(used) == len(devices), used
pairs = zip(*map(jax.tree.leaves, found), strict=True)
print(max(float(np.max(np.abs(x - y))) for x, y in pairs))
"""
# One of several processes that train an agent for each rule, and stop at an update, 0: at none.
PROCESSES = """
from discorl.runs.processes import Cluster

out, stop, names = sys.argv[1], int(sys.argv[2]), sys.argv[3].split()
cluster = Cluster(sys.argv[5], *map(int, sys.argv[7::2])) if len(sys.argv) > 4 else False

def follow(rows):
    if rows[-1]["update"] == stop:
        os.kill(os.getpid(), signal.SIGTERM)

for name in names:
    evaluated = 10 if name == "actor_critic" else 0
    chosen = settings(name, 2) | dict(checkpoint_every=5, eval_every=evaluated, eval_episodes=2)
    more = dict(out=f"{out}/{name}", resume_if_exists=True, distributed=cluster, track=follow)
    try:
        discorl.train(**chosen, **more)
    except KeyboardInterrupt:
        assert stop
"""


def difference(name, seeds=1, parts=1):
    command = ["-c", SETTINGS + DEVICES, name, str(seeds), str(parts)]
    ((status, errors, output),) = clusters.run(command, devices=2)
    assert status == 0, errors
    return float(output)


def test_an_agent_shared_by_two_devices_learns_the_same():
    assert difference("actor_critic", parts=2) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("name", ["ppo", "disco"])
def test_other_rules_on_two_devices(name):
    assert difference(name, parts=2) < 1e-6


def train_all(out, names, count=1, stop=0):
    command = ["-c", SETTINGS + PROCESSES, str(out), str(stop), " ".join(names)]
    found = clusters.run(command, count)
    assert all(status == 0 for status, _, _ in found), found


@pytest.mark.long
def test_two_processes_train_like_one(tmp_path):
    names = ("actor_critic", "ppo", "disco")
    train_all(tmp_path / "one", names)
    train_all(tmp_path / "two", names, 2)
    for name in names:
        assert_close(tmp_path / "one" / name, tmp_path / "two" / name)
    # Two start, and one finishes.
    stopped = tmp_path / "two, then one"
    train_all(stopped, names[:1], 2, stop=10)
    assert (stopped / names[0] / "checkpoints" / "00000010.npz").exists()
    train_all(stopped, names[:1])
    assert_close(tmp_path / "one" / names[0], stopped / names[0])


def assert_close(one, two):
    assert not list((two / "checkpoints").glob("*.part-*")), "process 0 writes all"
    with (
        np.load(one / "checkpoints" / "00000020.npz") as first,
        np.load(two / "checkpoints" / "00000020.npz") as second,
    ):
        assert first.files == second.files
        params = [name for name in first.files if ".params" in name]
        furthest = max(np.max(np.abs(first[name] - second[name])) for name in params)
    print(f"{two.parent.name}, {two.name}: {furthest:.1e}")
    assert furthest < 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "data_parallel is 1; expected a multiple of the number of processes, 2"),
        ({"seeds": 4}, "seeds is 4; expected 1: 2 processes train one agent"),
        ({"env": "gymnasium:CartPole-v1"}, "CartPole-v1, which runs on the host, and there are 2"),
    ],
)
def test_what_processes_cannot_train_together_is_refused(settings, message, monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    config = discorl.configure(**settings)
    with pytest.raises(discorl.UserError, match=message):
        check_processes(config, discorl.envs.make(config.env))


@pytest.mark.long
def test_seeds_on_two_devices():
    assert difference("actor_critic", seeds=4) < 1e-6


def test_every_part_samples_from_its_own_replay():
    agent = AgentConfig(
        num_envs=4, unroll=2, batch=8, replay=8, replay_fraction=0.5, data_parallel=2
    )
    # Every number is the environment that it comes from.
    number = jnp.broadcast_to(jnp.arange(4.0), (2, 4))
    rollout = Trajectory(
        observation=jnp.broadcast_to(jnp.arange(4.0), (3, 4)),
        action=number.astype(jnp.int32),
        reward=number,
        terminated=jnp.zeros((2, 4), bool),
        behaviour_logits=jnp.zeros((2, 4, 2)),
    )
    buffer, batch = add_and_sample(agent, init_replay(agent, rollout), rollout, jax.random.key(0))
    assert buffer.storage.reward.shape == (2, 4, 2)
    halves = np.asarray(batch.reward).reshape(2, 2, 4)
    assert halves[0, 0, :2].tolist() == [0, 1] and halves[0, 1, :2].tolist() == [2, 3]
    assert set(halves[:, 0].ravel()) <= {0, 1} and set(halves[:, 1].ravel()) <= {2, 3}


@pytest.mark.parametrize("name", ["num_envs", "batch", "replay"])
def test_parts_divide_what_is_split(name):
    sizes = {"num_envs": 4, "batch": 8, "replay": 16, "replay_fraction": 1.0}
    with pytest.raises(
        discorl.UserError, match=f"data_parallel is 4; expected a divisor of {name}"
    ):
        AgentConfig(**sizes | {name: sizes[name] + 2}, data_parallel=4)
