"""Train agents with discovered reinforcement-learning rules, and discover new ones, in JAX."""

from discorl import networks
from discorl.agent.learner import Learner, LearnerState
from discorl.agent.optimiser import Optimisation
from discorl.comparison import compare
from discorl.discovery import DiscoverConfig, DiscoverResult, configure_discovery, discover
from discorl.envs import Environment, Step
from discorl.envs import make as make_environment
from discorl.networks import Network
from discorl.rules import Rule
from discorl.rules import load as load_rule
from discorl.training import train
from discorl.training.config import PRESETS, Config, configure
from discorl.training.evaluation import Evaluation, evaluate
from discorl.training.result import TrainResult
from discorl.types import OutputSpec, Trajectory, UserError

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "Config",
    "DiscoverConfig",
    "DiscoverResult",
    "Environment",
    "Evaluation",
    "Learner",
    "LearnerState",
    "Network",
    "Optimisation",
    "OutputSpec",
    "Rule",
    "Step",
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
    "networks",
    "train",
]
