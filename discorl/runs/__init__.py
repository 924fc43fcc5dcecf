"""The files of a run, and the behaviour of long commands."""

from discorl.runs.config_files import check_source, config_of
from discorl.runs.directory import Run

__all__ = ["Run", "check_source", "config_of"]
