"""The short name of what a run is comparable with, for places where a whole case key is too long."""

from __future__ import annotations

import hashlib

from bench.case import Case


def series_of(case: Case, hardware: str) -> str:
    """The first 12 hex digits of the SHA-256 of the case's key and of what it ran on, as `Machine.hardware` says it."""
    return hashlib.sha256(f"{case.key()}\n{hardware}".encode()).hexdigest()[:12]
