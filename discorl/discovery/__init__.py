"""Discovery: meta-training a rule over a population of agents."""

from discorl.discovery.config import DiscoverConfig, configure_discovery
from discorl.discovery.loop import DiscoverResult, discover

__all__ = ["DiscoverConfig", "DiscoverResult", "configure_discovery", "discover"]
