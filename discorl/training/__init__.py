"""Training agents: settings, the loop, and what it leaves."""

from discorl.training.config import TrainConfig, configure
from discorl.training.evaluation import Evaluation, evaluate
from discorl.training.loop import train
from discorl.training.presets import PRESETS
from discorl.training.result import TrainResult

__all__ = ["PRESETS", "Evaluation", "TrainConfig", "TrainResult", "configure", "evaluate", "train"]
