"""Recomputes golden values and reports the errors."""

from discorl.verification.verify import Check, verify

__all__ = ["Check", "verify"]
