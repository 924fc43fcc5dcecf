"""Train agents with discovered reinforcement-learning rules, and discover new ones, in JAX."""

from discorl import networks
from discorl.agent import (
    AgentConfig,
    Learner,
    LearnerState,
    NetworkConfig,
    OptimiserConfig,
    make_learner,
    make_optimiser,
)
from discorl.comparison import compare
from discorl.discovery import (
    DiscoverConfig,
    DiscoverResult,
    GroupConfig,
    TaskConfig,
    configure_discovery,
    discover,
)
from discorl.envs import Environment, Step
from discorl.envs import make as make_environment
from discorl.networks import Network
from discorl.rules import Rule
from discorl.rules import load as load_rule
from discorl.training import (
    PRESETS,
    Evaluation,
    TrainConfig,
    TrainResult,
    configure,
    evaluate,
    train,
)
from discorl.types import OutputSpec, Trajectory, UserError

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "AgentConfig",
    "DiscoverConfig",
    "DiscoverResult",
    "Environment",
    "Evaluation",
    "GroupConfig",
    "Learner",
    "LearnerState",
    "Network",
    "NetworkConfig",
    "OptimiserConfig",
    "OutputSpec",
    "Rule",
    "Step",
    "TaskConfig",
    "TrainConfig",
    "TrainResult",
    "Trajectory",
    "UserError",
    "compare",
    "configure",
    "configure_discovery",
    "discover",
    "evaluate",
    "load_rule",
    "make_environment",
    "make_learner",
    "make_optimiser",
    "networks",
    "train",
]
