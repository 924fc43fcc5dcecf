"""The errors that are told in one line."""


class UserError(Exception):
    """A mistake in the user's input; the message says how to fix it."""


class PassingError(UserError):
    """A failure that may not happen again at the next try, such as a game that crashed."""
