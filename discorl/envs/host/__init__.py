"""Host environments: their contract, and one adapter module per suite."""

from discorl.envs.host.base import (
    EnvironmentFailure,
    HostEnvironment,
    HostStep,
    HostVector,
    seeds_from,
)
from discorl.envs.host.serial import SerialVector, Single
from discorl.envs.host.workers import WorkerVector, vector_of

__all__ = [
    "EnvironmentFailure",
    "HostEnvironment",
    "HostStep",
    "HostVector",
    "SerialVector",
    "Single",
    "WorkerVector",
    "seeds_from",
    "vector_of",
]
