"""Runs commands of the command line inside the test's process."""

import pytest

from discorl import cli


def run(capsys, *arguments):
    """Status, output and errors of a command."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    status = 0 if stopped.value.code is None else stopped.value.code
    return status, captured.out, captured.err
