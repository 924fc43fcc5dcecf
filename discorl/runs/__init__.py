"""What a run leaves on disk, and how a long command behaves while it makes it."""

from discorl.runs.directory import Run, check_settings, check_source

__all__ = ["Run", "check_settings", "check_source"]
