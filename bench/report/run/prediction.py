"""The table of a run's stored prediction: each part as predicted before the first trial, as measured, and the error."""

from __future__ import annotations

from collections.abc import Iterator

from bench.report.format import grouped, readable
from bench.report.table import Block, Table
from bench.store.prediction import PartError, errors_of
from bench.store.summary import Summary


def prediction_blocks(summary: Summary) -> Iterator[Block]:
    """Yield the table and why parts are absent; nothing for a run without a stored prediction."""
    parts = errors_of(summary)
    if not parts:
        return
    yield ""
    name = summary.case.title
    rows = [
        (part.name, _amount(part, part.predicted), _amount(part, part.measured), _error(part), _interval(part))
        for part in parts
    ]
    columns = (f"{name}, before its first trial", "predicted", "measured", "error", "range")
    yield Table(columns, rows, words=(0, 4), keys=1)
    absent = [(part.why_absent, part.name) for part in parts if part.predicted is None and part.why_absent]
    for reason, names in grouped(absent).items():
        yield f"{name}: not predicted: {', '.join(names)}: {reason}"
    stored = summary.prediction
    assert stored is not None, "it has parts"
    if stored.interval_basis:
        yield f"{name}: the range rests on {stored.interval_basis}"


def _amount(part: PartError, value: float | None) -> str:
    if value is None:
        return "-"
    return readable(1e9 * value, "ns") if part.unit == "seconds" else readable(int(value), "bytes")


def _error(part: PartError) -> str:
    """Return the error in percent; for parts of a step, in percent of the step."""
    if part.error is None:
        return "-"
    of_step = " of the step" if part.unit == "seconds" and part.name != "step" else ""
    return f"{100 * part.error:+z.1f} %{of_step}"


def _interval(part: PartError) -> str:
    if part.low is None or part.high is None:
        return "-"
    place = "" if part.is_inside is None else ", inside" if part.is_inside else ", outside"
    return f"{_amount(part, part.low)} to {_amount(part, part.high)}{place}"
