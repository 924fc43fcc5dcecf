# The public names, which `__init__.py` imports when they are used.

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
from discorl.comparison import (
    ComparisonConfig,
    compare,
    configure_comparison,
    configure_sweep,
)
from discorl.comparison import Results as ComparisonResults
from discorl.discovery import (
    DiscoverConfig,
    DiscoverResult,
    GroupConfig,
    TaskConfig,
    configure_discovery,
    discover,
)
from discorl.envs import Environment, HostEnvironment, Step
from discorl.envs import make as make_environment
from discorl.networks import Network
from discorl.reports.inspection import Inspection, inspect
from discorl.rules import Rule
from discorl.rules import load as load_rule
from discorl.runs.trackers import Tracker
from discorl.training import (
    PRESETS,
    Episodes,
    Evaluation,
    Policy,
    PolicyState,
    TrainConfig,
    Trainer,
    TrainResult,
    TrainState,
    configure,
    evaluate,
    load_agent,
    make_trainer,
    train,
)
from discorl.types import OutputSpec, Trajectory, UserError
from discorl.verification import verify

__version__: str

__all__ = [
    "PRESETS",
    "AgentConfig",
    "ComparisonConfig",
    "ComparisonResults",
    "DiscoverConfig",
    "DiscoverResult",
    "Environment",
    "Episodes",
    "Evaluation",
    "GroupConfig",
    "HostEnvironment",
    "Inspection",
    "Learner",
    "LearnerState",
    "Network",
    "NetworkConfig",
    "OptimiserConfig",
    "OutputSpec",
    "Policy",
    "PolicyState",
    "Rule",
    "Step",
    "TaskConfig",
    "Tracker",
    "TrainConfig",
    "TrainResult",
    "TrainState",
    "Trainer",
    "Trajectory",
    "UserError",
    "compare",
    "configure",
    "configure_comparison",
    "configure_discovery",
    "configure_sweep",
    "discover",
    "evaluate",
    "inspect",
    "load_agent",
    "load_rule",
    "make_environment",
    "make_learner",
    "make_optimiser",
    "make_trainer",
    "networks",
    "train",
    "verify",
]
