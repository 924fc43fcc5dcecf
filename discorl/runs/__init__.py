"""What a run leaves on disk, and how a long command behaves while it makes it."""

from discorl.runs.directory import Run, check_source, config_of

__all__ = ["Run", "check_source", "config_of"]
