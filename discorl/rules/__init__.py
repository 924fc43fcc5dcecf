"""Update rules: one interface, one module per rule, and rules by name."""

from discorl.rules.actor_critic import ActorCritic
from discorl.rules.base import Rule
from discorl.rules.disco import Disco
from discorl.rules.files import library, weights
from discorl.rules.lean import Lean
from discorl.rules.meta_network import Sizes
from discorl.rules.muesli import Muesli
from discorl.rules.policy_gradient import PolicyGradient
from discorl.rules.ppo import PPO
from discorl.rules.q_lambda import QLambda
from discorl.rules.registry import (
    REGISTRY,
    Given,
    find,
    is_learned,
    load,
    recipe,
    text_of,
    with_defaults,
)

__all__ = [
    "PPO",
    "REGISTRY",
    "ActorCritic",
    "Disco",
    "Given",
    "Lean",
    "Muesli",
    "PolicyGradient",
    "QLambda",
    "Rule",
    "Sizes",
    "find",
    "is_learned",
    "library",
    "load",
    "recipe",
    "text_of",
    "weights",
    "with_defaults",
]
