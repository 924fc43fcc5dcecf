"""One agent: acting, replay, and the learner that moves its network by a rule."""

from discorl.agent.learner import Learner, LearnerState
from discorl.agent.optimiser import Optimisation

__all__ = ["Learner", "LearnerState", "Optimisation"]
