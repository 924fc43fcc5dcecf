"""Agent networks: the standard one, and the contract for a user's own."""

from discorl.networks.base import Network, Parts, check_outputs, parts_of
from discorl.networks.recurrence import Recurrence
from discorl.networks.standard import standard

__all__ = ["Network", "Parts", "Recurrence", "check_outputs", "parts_of", "standard"]
