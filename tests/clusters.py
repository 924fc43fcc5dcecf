"""Processes that tests start together on this machine."""

import os
import socket
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


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
