"""Recomputing golden values, and how far off the results are."""

from discorl.verification.verify import Check, verify

__all__ = ["Check", "verify"]
