"""Training on several devices: seeds side by side, or one agent by its batch."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discorl
from discorl.agent.config import AgentConfig
from discorl.training.state import add_and_sample, init_replay
from discorl.types import Trajectory

# Trains on one device and on two, and prints the largest difference of a parameter.
SCRIPT = """
import sys, jax, numpy as np, discorl

name, seeds, parts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
small = dict(num_envs=4, unroll=4, batch=8, replay=32, replay_fraction=0.5, hidden=(8,))
if name == "ppo":
    small |= dict(batch=4, replay_fraction=0.0)
rule = None
if name == "disco":
    from discoveries import ETA, RULE
    rule, name = (RULE, ETA), "disco103"
    small |= dict(action_lstm=4, action_hidden=(4,))
config = discorl.configure(
    rule=rule or name, env="catch", seeds=seeds, data_parallel=parts, updates=20, **small
)
found, every = [], jax.local_devices()
for devices in (every[:1], every):
    jax.local_devices = lambda devices=devices: devices
    with discorl.make_trainer(config, rule=rule) as trainer:
        state, _, _ = trainer.run(trainer.init(), 20)
    found.append(jax.device_get(state.learner.params))
    used = jax.tree.leaves(state.replay or state.actor)[0].sharding.device_set
    assert len(used) == len(devices), used
pairs = zip(*map(jax.tree.leaves, found), strict=True)
print(max(float(np.max(np.abs(x - y))) for x, y in pairs))
"""


def difference(name, seeds=1, parts=1):
    tests = Path(__file__).parent
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    path = os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(seeds), str(parts)],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_an_agent_shared_by_two_devices_learns_the_same():
    assert difference("actor_critic", parts=2) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("name", ["ppo", "disco"])
def test_other_rules_on_two_devices(name):
    assert difference(name, parts=2) < 1e-6


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
