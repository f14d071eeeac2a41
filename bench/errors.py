"""The two ways in which a command can fail that a person can mend; the command line turns them into exit codes."""

from __future__ import annotations


class Misuse(ValueError):
    """What was asked for cannot be: the message names the thing, what it may be, and the next move. Exit code 2."""


class InfrastructureFailed(RuntimeError):
    """An engine, a node, a disk or a store failed, and not the workload. Exit code 4."""
