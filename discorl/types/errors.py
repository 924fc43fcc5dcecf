"""The error for mistakes in what the user gave."""


class UserError(Exception):
    """A mistake in the user's input; the message says how to fix it."""
