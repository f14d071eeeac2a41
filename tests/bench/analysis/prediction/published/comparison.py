"""Errors of two predictions of published rows: a constant MFU, and the product.

Also of differences: what one change does (compiled, more GPUs, a longer sequence, a larger model), measured as the
ratio of two published rows, and predicted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from bench.analysis.prediction.calibration import Range
from tests.bench.analysis.prediction.published.rows import Row

CONSTANT_MFU = 0.41
"""The baseline: every row reaches this MFU."""
CLOSE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Predicted / measured - 1, of a rate or a ratio of two."""

    constant: float
    product: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A row with what each prediction says of it, in tokens per second and GPU.

    is_inside: whether the product's range has the measured rate.
    """

    row: Row
    constant: float
    product: float
    is_inside: bool

    @property
    def errors(self) -> Errors:
        measured = self.row.measured
        return Errors(constant=self.constant / measured - 1, product=self.product / measured - 1)

    def ratio_errors(self, base: Compared) -> Errors:
        """Return the errors of the ratio of this row to another."""
        measured = self.row.measured / base.row.measured
        return Errors(
            constant=self.constant / base.constant / measured - 1,
            product=self.product / base.product / measured - 1,
        )


def compare(row: Row) -> Compared:
    """Return a row's predictions."""
    step_s = row.predicted.step_s
    assert isinstance(step_s, Range), step_s
    flops_per_token = row.shape.flops_per_step() / row.shape.tokens
    return Compared(
        row=row,
        constant=CONSTANT_MFU * row.peak.flops_per_second / flops_per_token,
        product=row.tokens_per_gpu / step_s.value,
        is_inside=step_s.low <= row.step_s <= step_s.high,
    )


# Differences.


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two rows that differ by one change. kind: the change, for people."""

    kind: str
    base: Compared
    changed: Compared

    @property
    def measured(self) -> float:
        return self.changed.row.measured / self.base.row.measured

    @property
    def errors(self) -> Errors:
        return self.changed.ratio_errors(self.base)


def _compiled(row: Row) -> tuple[Hashable, int]:
    each = row.published
    return (each.model, each.sequence, each.gpus, each.strategy, each.checkpoint), int(each.compile != "none")


def _more_gpus(row: Row) -> tuple[Hashable, int]:
    each = row.published
    alike = (each.model, each.sequence, each.microbatch, each.strategy, each.checkpoint, each.compile)
    return alike, each.gpus


def _longer(row: Row) -> tuple[Hashable, int]:
    each = row.published
    return (each.model, each.gpus, each.strategy, each.checkpoint, each.compile), each.sequence


def _larger(row: Row) -> tuple[Hashable, int]:
    each = row.published
    return (each.sequence, each.gpus, each.strategy, each.checkpoint, each.compile), row.shape.parameters()


CHANGES: dict[str, Callable[[Row], tuple[Hashable, int]]] = {
    "compiled": _compiled,
    "more GPUs": _more_gpus,
    "longer sequence": _longer,
    "larger model": _larger,
}
"""Each change with what its two rows have in common, and what differs."""


def differences(rows: Sequence[Compared]) -> Iterator[Difference]:
    """Yield each pair of neighbouring rows of one report that differ by one change.

    Longer sequences and larger models have other microbatches too, since memory allows no other.
    """
    for kind, key in CHANGES.items():
        ordered = sorted(rows, key=lambda each: (repr(key(each.row)[0]), key(each.row)[1]))
        for _, alike in groupby(ordered, key=lambda each: key(each.row)[0]):
            for base, changed in pairwise(alike):
                if key(base.row)[1] != key(changed.row)[1]:
                    yield Difference(kind=kind, base=base, changed=changed)


# Summaries.


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of one prediction. median, largest: of their absolute values. close: how many are within 15 %."""

    median: float
    largest: float
    close: int
    count: int


def summary(errors: Sequence[float]) -> Summary:
    """Return the summary of errors, of which there is at least one."""
    sizes = [abs(error) for error in errors]
    return Summary(
        median=statistics.median(sizes),
        largest=max(sizes),
        close=sum(size <= CLOSE for size in sizes),
        count=len(sizes),
    )


PREDICTIONS = ("constant", "product")


def summaries(errors: Sequence[Errors]) -> dict[str, Summary]:
    """Return a summary of each prediction."""
    return {name: summary([getattr(each, name) for each in errors]) for name in PREDICTIONS}
