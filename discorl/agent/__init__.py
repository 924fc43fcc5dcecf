"""A single agent: acting, replay, and the learner that updates its network by a rule."""

from discorl.agent.assembly import NetworkFactory, make_learner
from discorl.agent.config import AgentConfig, NetworkConfig, OptimiserConfig
from discorl.agent.learner import Learner, LearnerState
from discorl.agent.optimiser import make_optimiser

__all__ = [
    "AgentConfig",
    "Learner",
    "LearnerState",
    "NetworkConfig",
    "NetworkFactory",
    "OptimiserConfig",
    "make_learner",
    "make_optimiser",
]
