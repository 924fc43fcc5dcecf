"""What a run leaves on disk, and how a long command behaves while it makes it."""

from discorl.runs.config_files import check_source, config_of
from discorl.runs.directory import Run

__all__ = ["Run", "check_source", "config_of"]
