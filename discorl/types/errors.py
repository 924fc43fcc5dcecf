"""Errors that are reported in one line."""


class UserError(Exception):
    """A mistake in the user's input; the message says how to fix it."""


class PassingError(UserError):
    """A transient failure that a retry may avoid, such as a crashed game."""
