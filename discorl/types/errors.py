"""The error for mistakes in what the user gave."""


class UserError(Exception):
    """A mistake in what the user gave, with a message that says how to mend it."""
