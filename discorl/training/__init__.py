"""Training agents: settings, trainers, the loop and its results."""

from discorl.training.assembly import make_trainer
from discorl.training.config import TrainConfig, configure
from discorl.training.evaluation import Evaluation, evaluate
from discorl.training.loading import load_agent
from discorl.training.loop import train
from discorl.training.policy import Policy, PolicyState
from discorl.training.presets import PRESETS
from discorl.training.result import TrainResult
from discorl.training.state import TrainState
from discorl.training.trainer import Episodes, Trainer

__all__ = [
    "PRESETS",
    "Episodes",
    "Evaluation",
    "Policy",
    "PolicyState",
    "TrainConfig",
    "TrainResult",
    "TrainState",
    "Trainer",
    "configure",
    "evaluate",
    "load_agent",
    "make_trainer",
    "train",
]
