"""The data that flows through discorl, its shapes, and names with settings."""

from discorl.types.errors import PassingError, UserError
from discorl.types.trajectory import (
    Array,
    Key,
    Metrics,
    Outputs,
    OutputSpec,
    Params,
    PyTree,
    Trajectory,
)

__all__ = [
    "Array",
    "Key",
    "Metrics",
    "OutputSpec",
    "Outputs",
    "Params",
    "PassingError",
    "PyTree",
    "Trajectory",
    "UserError",
]
