"""Discovery: meta-training a rule over a population of agents."""

from discorl.discovery.config import DiscoverConfig, GroupConfig, TaskConfig
from discorl.discovery.loop import discover
from discorl.discovery.presets import configure_discovery
from discorl.discovery.result import DiscoverResult

__all__ = [
    "DiscoverConfig",
    "DiscoverResult",
    "GroupConfig",
    "TaskConfig",
    "configure_discovery",
    "discover",
]
