"""Processes that tests start together on this machine, and the runs that they make."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
from timing import assert_same_tables

TESTS = Path(__file__).parent
SMALL = (
    "discover --start scratch --meta-steps 10 --evaluate-every 10 --checkpoint-every 3 "
    "--block-size 1 --window 2 --lifetimes 30 60 --num-envs 2 --unroll 3 --hidden 6 "
    "--validation-envs 2 --validation-unroll 3 --value-hidden 6 "
    "--evaluate-on bandit:seed=1 --evaluate-updates 4 --evaluate-seeds 1 "
)
NATIVE = SMALL + "--envs bandit --agents 4 --batch 4 --replay 16 --replay-fraction 0.75 "
# Agents that act, learn and are differentiated, each of them a block: by the lean rule, by a small
# Disco network, and in environments on the host.
REAL = {
    "lean": NATIVE + "--rule lean",
    "disco": NATIVE + "--rule disco --action-lstm 4 --action-hidden 4 --prediction-size 4 --bins 5 "
    "--trajectory-lstm 6 --meta-lstm 4 --net-width 4",
    "host": SMALL + "--rule lean --envs gymnasium:CartPole-v1 --agents 2 --batch 2 "
    "--replay-fraction 0",
}


def environment(devices=1, **more):
    """Environment of a process that has so many devices."""
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path} | more


def free_address():
    """Where the coordinator may listen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def start(command, number=0, count=1, address="", devices=1, **more):
    """One of `count` processes of a command of discorl that find each other."""
    options = []
    if count > 1:
        where = {"--coordinator": address, "--processes": count, "--process": number}
        options = [str(x) for pair in where.items() for x in pair]
    return subprocess.Popen(
        [sys.executable, *command, *options],
        env=environment(devices, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(command, count=1, **more):
    """Exit status, errors and output of all processes of a command."""
    address = free_address()
    started = [start(command, i, count, address, **more) for i in range(count)]
    return [(*child.communicate(timeout=1800), child.returncode)[::-1] for child in started]


def assert_same_runs(one, two):
    for name in ("metrics", "agents", "evaluation"):
        assert_same_tables(one / f"{name}.csv", two / f"{name}.csv")
    for name in ("rule.npz", "best.npz"):
        with np.load(one / name) as first, np.load(two / name) as second:
            arrays = [key for key in first.files if key != "metadata"]
            assert arrays == [key for key in second.files if key != "metadata"] != []
            for key in arrays:
                np.testing.assert_array_equal(first[key], second[key])
