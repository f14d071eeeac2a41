"""Waits for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 100.0
"""Long: on a busy machine all takes its time."""


def wait_until(is_so: Callable[[], object], *, every_s: float = 0.05) -> None:
    """Ask again and again; fail where it never becomes so."""
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until, "it never became so"
        time.sleep(every_s)
