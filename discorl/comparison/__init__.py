"""Comparing rules: many runs, robust statistics and a report."""

from discorl.comparison.config import ComparisonConfig, configure_comparison
from discorl.comparison.results import Results
from discorl.comparison.runner import compare, load
from discorl.comparison.suite_files import suites
from discorl.comparison.sweeps import configure_sweep

__all__ = [
    "ComparisonConfig",
    "Results",
    "compare",
    "configure_comparison",
    "configure_sweep",
    "load",
    "suites",
]
