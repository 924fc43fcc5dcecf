"""Learned rules as files: their format, its checks, and where they are found by name."""
