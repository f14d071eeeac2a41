"""The fit of the constants of the product's law on published rows (`bench.analysis.prediction.calibration`).

A step takes products / (a x peak) + attention / (b x peak) + c x counted bytes / memory + d x communication + the
optimizer, where memory is MEMORY_EFFICIENCY of the data sheet's bandwidth. All terms are the product's own: work by
`work_of`, communication by its model of links. d is 1 - HIDDEN_SHARE: the product also exposes what no phase can hide,
which is little here. No coefficient may be negative.

The constants are fitted on the rows of every second model by size, `FITTED`, and held against the other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from bench.analysis.prediction.calibration import MEMORY_EFFICIENCY
from bench.analysis.prediction.forecast import optimizer_bytes, work_of
from tests.bench.analysis.prediction.published.rows import Row
from workloads.cost_models.roofline import ForwardTimes, compute_of
from workloads.cost_models.step_time import StepTime

FITTED = ("760m", "3b", "13b", "70b")
"""Models of llm-foundry's table that the product's constants are fitted on."""
LARGE_PART = 0.2
"""A row says something of a constant if its term is this share of the step or more."""
MIDDLE = (0.1, 0.9)
Terms = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Constants as the product has them. products, attention: shares of the peak. hidden: of the communication."""

    products: float
    attention: float
    elementwise: float
    hidden: float

    @property
    def coefficients(self) -> Terms:
        """The coefficients of `terms`."""
        return np.array([1 / self.products, 1 / self.attention, self.elementwise, 1 - self.hidden])


def terms(row: Row) -> Terms:
    """Return the four terms of a step with coefficients of 1, in seconds."""
    work, ranks = work_of(row.case), row.case.spec().training_ranks(row.case)
    nothing = dict.fromkeys(("products_s", "head_s", "attention_s", "elementwise_s"), 0.0)

    def computed_s(**times: float) -> float:
        compute = compute_of(ForwardTimes(**{**nothing, **times}), row.recomputed)
        return compute.forward_s + compute.backward_s

    peak, memory = row.peak.flops_per_second * ranks, row.memory_bytes_per_second * MEMORY_EFFICIENCY * ranks
    step = row.predicted.step
    assert isinstance(step, StepTime), step
    return np.array(
        [
            computed_s(products_s=sum(each.flops for each in work.products) / peak, head_s=work.head.flops / peak),
            computed_s(attention_s=work.attention.flops / peak),
            computed_s(elementwise_s=work.elementwise_bytes / memory),
            step.communication_s,
        ]
    )


def optimizer_s(row: Row) -> float:
    """Return the optimizer's time, which has no coefficient."""
    moved = optimizer_bytes(row.case)
    assert isinstance(moved, float | int), moved
    return moved / (row.memory_bytes_per_second * MEMORY_EFFICIENCY)


def fitted(rows: Sequence[Row]) -> Law:
    """Return the law whose relative errors of time over these rows have the least squares."""
    relative = np.array([terms(row) / row.step_s for row in rows])
    left = np.array([1 - optimizer_s(row) / row.step_s for row in rows])
    (products, attention, elementwise, exposed), _ = nnls(relative, left)
    return Law(
        products=1 / float(products),
        attention=1 / float(attention),
        elementwise=float(elementwise),
        hidden=1 - float(exposed),
    )


def scatter(rows: Sequence[Row], law: Law) -> list[tuple[float, float]]:
    """Return for each coefficient the middle 80 % of the values that would make a row exact.

    Only rows count in which the coefficient's term is LARGE_PART of the step or more.
    """
    ends = []
    for place, coefficient in enumerate(law.coefficients):
        exact = []
        for row in rows:
            parts = terms(row) * law.coefficients
            if parts[place] >= LARGE_PART * row.step_s:
                left_s = row.step_s - optimizer_s(row) - (parts.sum() - parts[place])
                exact.append(float(coefficient * left_s / parts[place]))
        low, high = np.quantile(exact, MIDDLE)
        ends.append((float(low), float(high)))
    return ends


def products_alone(row: Row, law: Law) -> float:
    """Return the share of the peak at which products would make a row exact."""
    parts = terms(row) * law.coefficients
    return float(parts[0] * law.products / (row.step_s - optimizer_s(row) - parts[1:].sum()))


def is_fitted(row: Row) -> bool:
    """Whether the product's constants are fitted on this row."""
    return row.report.report == "llm-foundry" and row.published.model in FITTED
