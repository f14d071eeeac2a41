"""The page docs/measured/published.md: every published row and difference with the errors of each prediction.

`python -m tests.bench.analysis.prediction.published > docs/measured/published.md` renders it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench.analysis.prediction.fit import COMPUTE_EFFICIENCY
from tests.bench.analysis.prediction.published import comparison
from tests.bench.analysis.prediction.published.comparison import (
    CHANGES,
    Compared,
    Difference,
    Errors,
    compare_across,
    compare_scale,
    compare_within,
    differences,
    summaries,
)
from tests.bench.analysis.prediction.published.law import COMPILED_SHARE, Law, fitted
from tests.bench.analysis.prediction.published.rows import FILES, Report, Row, read_report, rows_of

PAGE = Path(__file__).parents[5] / "docs" / "measured" / "published.md"
REFERENCE = ("7b", 2048, 8)
"""Model, sequence and GPUs of the row that ratios of llm-foundry's table are relative to."""
WITHIN_GPUS = 8


def page() -> str:
    """Return the page."""
    titan, foundry = (read_report(name) for name in FILES)
    titan_rows, foundry_rows = rows_of(titan), rows_of(foundry)
    known = fitted(foundry_rows)
    across = compare_across(titan_rows, foundry_rows)
    within = compare_within(foundry_rows)
    parts = [
        *_opening(known),
        *_summary(across, within, foundry_rows),
        *_report(titan),
        *_rates(across),
        *_memory(titan_rows),
        *_report(foundry),
        *_rates(within),
        "## Differences\n",
        "Two neighbouring rows that differ by one change. Longer sequences and larger models also have other\n"
        "microbatches.\n",
        *_differences([*differences(across), *differences(within)]),
        *_left_out((titan, foundry)),
    ]
    return "\n".join(parts)


OPENING = """# Predictions compared with published measurements

Rendered by `python -m tests.bench.analysis.prediction.published`. Errors are predicted / measured - 1, of tokens/s per
GPU. The rows were measured by others, with other programs; every error is here. Three predictions:

- **constant**: every row has an MFU of {constant}. This is the baseline, chosen in knowledge of all rows.
- **product**: `run --dry-run --on`, which computes at {assumed} of the peak and hides what communication it can.
- **law**: a x products / peak + b x attention / peak + c x passes over the residual stream / memory bandwidth + d x
  communication (`tests/bench/analysis/prediction/published/law.py`). The product does not use it.

Rows of llm-foundry are predicted by the law of its other models, rows of torchtitan by the law of llm-foundry. Fitted
on all rows of llm-foundry: products reach {products} of the peak, attention's causal half {attention}; a block makes
{passes:.0f} passes, of which {compiled} (counted by hand) are left when compiled; {communication} of the time of
communication adds to the step. The coefficients have not seen the rows that they predict; the form of the law was
chosen with all rows of llm-foundry in view.
"""


def _opening(known: Law) -> Iterator[str]:
    yield OPENING.format(
        constant=_percent(comparison.CONSTANT_MFU, 0),
        assumed=_percent(COMPUTE_EFFICIENCY, 0),
        products=_percent(known.products_share, 0),
        attention=_percent(known.attention_share, 0),
        passes=known.passes,
        compiled=_percent(COMPILED_SHARE, 0),
        communication=_percent(known.communication, 0),
    )


def _summary(across: Sequence[Compared], within: Sequence[Compared], foundry_rows: Sequence[Row]) -> Iterator[str]:
    yield "## Summary\n"
    yield "Median and largest error without sign, and how many are within 15 %.\n"
    yield from _head("rows", "constant", "product", "law")
    yield _summary_row("torchtitan", [each.errors for each in across])
    first, *others = across
    yield _summary_row("torchtitan, relative to its first row", [each.ratio_errors(first) for each in others])
    yield _summary_row("llm-foundry", [each.errors for each in within])
    base = _reference(within)
    relative = [each.ratio_errors(base) for each in within if each is not base]
    yield _summary_row(f"llm-foundry, relative to {base.row.words}", relative)
    larger = compare_scale(foundry_rows, WITHIN_GPUS)
    yield _summary_row(
        f"llm-foundry, more than {WITHIN_GPUS} GPUs by the law of {WITHIN_GPUS}", [each.errors for each in larger]
    )
    pairs = [*differences(across), *differences(within)]
    for kind in CHANGES:
        yield _summary_row(f"differences: {kind}", [pair.errors for pair in pairs if pair.kind == kind])
    yield ""


def _reference(rows: Sequence[Compared]) -> Compared:
    (base,) = (
        each
        for each in rows
        if (each.row.published.model, each.row.published.sequence, each.row.published.gpus) == REFERENCE
    )
    return base


def _summary_row(what: str, errors: Sequence[Errors]) -> str:
    cells = [
        f"{_percent(each.median)}, {_percent(each.largest)}, {each.close} of {each.count}"
        for each in summaries(errors).values()
    ]
    return _line(what, *cells)


def _report(report: Report) -> Iterator[str]:
    yield f"## {report.report}\n"
    yield f"[{report.title}]({report.address}), {report.date}.\n"
    yield "".join(f"- {condition}\n" for condition in report.conditions)


def _rates(rows: Sequence[Compared]) -> Iterator[str]:
    yield from _head("row", "sharded", "recomputed", "measured", "constant", "product", "law")
    for each in rows:
        published = each.row.published
        cells = (each.row.words, published.strategy, published.checkpoint, f"{each.row.measured:,.0f}")
        yield _line(*cells, *_cells(each.errors))
    yield ""


def _memory(rows: Sequence[Row]) -> Iterator[str]:
    yield "Memory of the worst GPU: reserved by the allocator, as published, and needed, as the product predicts.\n"
    yield from _head("row", "measured, GiB", "product, GiB", "error")
    for row in rows:
        memory, measured = row.fit.memory, row.published.memory_gib
        assert measured is not None, "each row of this report has it"
        if memory.is_least:
            yield _line(row.words, f"{measured:.1f}", "-", f"- ({memory.basis})")
            continue
        needed = memory.total_bytes / 2**30
        yield _line(row.words, f"{measured:.1f}", f"{needed:.1f}", f"{_percent(needed / measured - 1, sign=True)}")
    yield ""


def _differences(pairs: Iterable[Difference]) -> Iterator[str]:
    yield from _head("change", "report", "from", "to", "measured", "constant", "product", "law")
    for pair in pairs:
        ends = (pair.base.row.words, pair.changed.row.words)
        yield _line(pair.kind, pair.base.row.report.report, *ends, f"x {pair.measured:.3f}", *_cells(pair.errors))
    yield ""


def _left_out(reports: Iterable[Report]) -> Iterator[str]:
    yield "## Not compared\n"
    yield from _head("report", "rows", "why")
    for report in reports:
        for each in report.not_compared:
            yield _line(report.report, each.rows, each.reason)
    yield ""


def _cells(errors: Errors) -> Iterator[str]:
    for name in comparison.PREDICTIONS:
        yield _percent(getattr(errors, name), sign=True)


def _percent(ratio: float, places: int = 1, *, sign: bool = False) -> str:
    return f"{100 * ratio:{'+' if sign else ''}.{places}f} %"


def _head(*names: str) -> Iterator[str]:
    yield _line(*names)
    yield "|" + "---|" * len(names)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
