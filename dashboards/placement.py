"""A GPU's series beside the rank that computes on it."""

from __future__ import annotations

from collections.abc import Sequence

from collectors.catalogue.placement import RANK_GPU
from dashboards import combining, promql

GPU = (*promql.SCRAPE_LABELS, "gpu")
"""The labels that a GPU's series and its rank's have in common."""

SLICE = (*GPU, "slice")
"""Those of a slice of a GPU, and of the rank that computes on it."""

WORK = "work"
"""The label that says, in words, which rank of which run computes there."""


def with_work(expression: str, *, on: Sequence[str] = GPU) -> str:
    """The expression, its series bearing what computes on their GPU, or slice of one, where that is one rank."""
    return combining.bearing(expression, promql.select(RANK_GPU), ("run", "rank"), on=on, called=WORK, between=" rank ")


def at_work(expression: str) -> str:
    """The expression, of GPUs on which at least one rank computes."""
    return combining.where(expression, promql.select(RANK_GPU), on=GPU)
