"""Training agents: settings, the loop, and what it leaves."""

from discorl.training.config import PRESETS, Config, configure
from discorl.training.evaluation import Evaluation, evaluate
from discorl.training.loop import train
from discorl.training.result import TrainResult

__all__ = ["PRESETS", "Config", "Evaluation", "TrainResult", "configure", "evaluate", "train"]
