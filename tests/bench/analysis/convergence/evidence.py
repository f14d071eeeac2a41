"""Made-up evidence of a convergence check on two ranks, in which nothing differs unless a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.analysis.convergence.evidence import ConvergenceEvidence
from bench.rank.evidence import StepEvidence

STEPS = 6
EPOCH_STEPS = 2
RATE = 1e-3
CLIP = 0.1
STATISTICS = [0.5, -0.25, 1.0, 2.0]
ORDER = (0, 1, 1, 0, 0, 1)
"""Which half of the data each step reads: the second epoch has another order than the first, the third the first's."""

Change = Callable[[int], dict[str, Any]]
"""What is other than usual in a step."""


def unchanged(step: int) -> dict[str, Any]:
    """Nothing."""
    return {}


def sequences(step: int, rank: int) -> list[str]:
    """Fingerprints that one of two ranks reads."""
    return [f"{2 * ORDER[step] + rank}"]


def steps_of(rank: int | None, change: Change = unchanged) -> list[StepEvidence]:
    """All steps of one of two ranks; None for the one rank that they are compared with."""
    return [msgspec.structs.replace(_seen(step, rank), **change(step)) for step in range(STEPS)]


def evidence_of(
    changes: Sequence[Change] = (unchanged, unchanged), reference: Change = unchanged, **fields: Any
) -> ConvergenceEvidence:
    """All evidence. changes: of each rank. reference: of the one rank."""
    usual: dict[str, Any] = {
        "reference": steps_of(None, reference),
        "backwards": steps_of(None),
        "ranks": [steps_of(rank, change) for rank, change in enumerate(changes)],
        "data_ranks": [0, 1],
        "learning_rates": [RATE] * STEPS,
        "rule": "lr_rule=linear over 2 data ranks",
        "epoch_steps": EPOCH_STEPS,
        "clip": CLIP,
    }
    return ConvergenceEvidence(**{**usual, **fields})


def _seen(step: int, rank: int | None) -> StepEvidence:
    both = [*sequences(step, 0), *sequences(step, 1)]
    return StepEvidence(
        step=step,
        loss=4.0 - 0.1 * step,
        learning_rates=[RATE],
        sequences=both if rank is None else sequences(step, rank),
        statistics=STATISTICS,
        # No two trainings round alike, and so no rank has the one rank's bits but at the start.
        weights=f"{step}" if step == 0 or rank is not None else f"alone {step}",
        initial={} if step else {"head.weight": (9.0, 3.0)},
        gradients={"head.weight": (CLIP, 0.05)},
        gradient_norm=2.0,
        updates={"head.weight": (0.02, 0.01)},
    )
