"""Errors as text for one line of output."""

from __future__ import annotations


def in_words(error: BaseException) -> str:
    """Return the error's message, without the exception's class name where the message is clear alone.

    Any other kind than OSError, RuntimeError, ValueError and KeyError is a bug of ours, and is called so with its name.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, (OSError, RuntimeError, ValueError)) and str(error):
        return str(error)
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return f"our own mistake, {type(error).__name__}: {error}"
