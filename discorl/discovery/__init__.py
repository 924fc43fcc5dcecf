"""Discovery: meta-training a rule over a population of agents."""

from discorl.discovery.config import DiscoverConfig
from discorl.discovery.loop import DiscoverResult, discover
from discorl.discovery.presets import configure_discovery

__all__ = ["DiscoverConfig", "DiscoverResult", "configure_discovery", "discover"]
