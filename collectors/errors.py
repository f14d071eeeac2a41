"""What went wrong, in the words of a line that people read."""

from __future__ import annotations


def in_words(error: BaseException) -> str:
    """What the error says, without Python's name of it where its words stand alone.

    An error of a kind that is no answer of a file, a system or a value is a mistake of ours, and says so by its name.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, (OSError, RuntimeError, ValueError)) and str(error):
        return str(error)
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return f"our own mistake, {type(error).__name__}: {error}"
