"""A run directory with rows and states, and processes that write one."""

import struct
import subprocess
import sys

import numpy as np
from tensorboardX.proto.event_pb2 import Event

CONFIG = {"env": "catch", "updates": 10, "rates": (0.1, 0.2)}
TEMPLATE = {"w": np.zeros(5)}


def state(update):
    return {"w": np.full(5, float(update))}


def rows(*updates):
    return [{"update": update, "steps": 10 * update, "return": update / 4} for update in updates]


def child(script, *arguments):
    """Starts a Python process that can be killed or limited without harm to the tests."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return output


def events(folder):
    """The events of a TensorBoard folder: records of length, checksum, content, checksum."""
    found = []
    for file in sorted(folder.glob("events*")):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            found.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    return found


def logged(folder):
    return [
        (event.step, {value.tag: value.simple_value for value in event.summary.value})
        for event in events(folder)
        if event.HasField("summary")
    ]
