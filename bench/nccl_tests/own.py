"""Which of our own runs can stand beside what nccl-tests measured."""

from __future__ import annotations

from collections.abc import Iterable

from bench.errors import Misuse
from bench.judgement.expected_collectives import LIBRARY
from bench.nccl_tests.reading import Imported
from bench.summary import Summary
from collectors.catalogue import ceilings


def require_collectives(summary: Summary) -> None:
    """Nothing, where the run measured a collective.

    Raises:
        Misuse: it measured none.
    """
    if not any(found.metric == ceilings.RUN_COLLECTIVE_SECONDS.name for found in summary.estimates):
        raise Misuse(
            f"run {summary.run} is of {summary.case.strategy} and measured no collective;"
            " `observatory run collectives` does"
        )


def most_like(imported: Imported, newest_first: Iterable[Summary]) -> Summary | None:
    """The run that ended well with the same collective on as many ranks, None where there is none.

    One that measured a size of the same type is before one that shares sizes alone, and that before all others; of
    those that are as like, the newest.
    """
    wanted = {row.size_bytes for row in imported.rows}
    typed = {(row.size_bytes, row.dtype) for row in imported.rows}
    best, best_likeness = None, (False, False)
    for summary in newest_first:
        if summary.outcome != "done" or summary.case.ranks != imported.ranks:
            continue
        sizes = _sizes(summary, imported.collective)
        if not sizes:
            continue
        likeness = (any((size, summary.case.precision) in typed for size in sizes), bool(sizes & wanted))
        if best is None or likeness > best_likeness:
            best, best_likeness = summary, likeness
    return best


def _sizes(summary: Summary, collective: str) -> set[int]:
    """The sizes of this collective that the run measured of the library."""
    return {
        int(found.labels["size"])
        for found in summary.estimates
        if found.metric == ceilings.RUN_COLLECTIVE_SECONDS.name
        and (found.labels["collective"], found.labels["algorithm"]) == (collective, LIBRARY)
    }
