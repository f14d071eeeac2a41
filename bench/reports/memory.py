"""A run's memory, one cell a part: what was measured, how far the law is off, and the paper's account."""

from __future__ import annotations

from bench.reports.figures import figure
from bench.summary import Summary
from collectors.catalogue.results import RUN_MEMORY_ACCOUNT_BYTES, RUN_MEMORY_PREDICTED_RATIO

MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other", "unexplained", "total")
NOTHING = "-"
RARE_PARTS = ("other", "unexplained")
"""Their rows are left out where no run has any: tensors that outlive a step, and those of them that no law knows."""


def memory_cell(summary: Summary, part: str) -> str:
    """Such as `3.50 MiB, law +0.0 %, paper 1.75 MiB`; a dash where nothing is known."""
    accounts = {
        found.labels["account"]: figure(found)
        for found in summary.estimates
        if found.metric == RUN_MEMORY_ACCOUNT_BYTES.name and found.labels["part"] == part
    }
    ratios = [
        found.median
        for found in summary.estimates
        if found.metric == RUN_MEMORY_PREDICTED_RATIO.name and found.labels["part"] == part
    ]
    words = [accounts["measured"]] if "measured" in accounts else []
    if ratios:
        words.append(f"law {100 * (ratios[0] - 1):+z.1f} %")
    elif "implementation" in accounts:
        words.append(f"law {accounts['implementation']}")
    if "paper" in accounts:
        words.append(f"paper {accounts['paper']}")
    return ", ".join(words) or NOTHING
