"""The short name of what a run is comparable with, for places where a whole case key is too long."""

from __future__ import annotations

import hashlib

from bench.case import Case


def series_of(case: Case) -> str:
    """The first 12 hex digits of the SHA-256 of the case's key."""
    return hashlib.sha256(case.key().encode()).hexdigest()[:12]
