"""The system once more, slowly and in float64: a second opinion on what discorl computes.

Plain numpy, written from the description of the system without looking at discorl, which nothing
here imports. Gradients are derived by hand. Trees are flat dicts, their names joined by "/".
"""

from reference.cases import (
    Sizes,
    flatten,
    learner_case,
    random_outputs,
    random_params,
    random_rule,
    random_trajectory,
    rule_case,
)
from reference.functions import at_action, softmax, squash, unsquash
from reference.learner import Learner, forward
from reference.rule import Rule

__all__ = [
    "Learner",
    "Rule",
    "Sizes",
    "at_action",
    "flatten",
    "forward",
    "learner_case",
    "random_outputs",
    "random_params",
    "random_rule",
    "random_trajectory",
    "rule_case",
    "softmax",
    "squash",
    "unsquash",
]
