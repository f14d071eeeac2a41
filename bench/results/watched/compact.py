"""Compacts the rank files of a watched run that has ended: a file that is too large keeps quantiles of each minute.

A rank keeps at most 2 MB for each day that it ran. Steps of 50 ms alone can write 100 MB a day, and single steps are
not needed after the run's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.results.watched.rank_files import MOST_NS, OF_A_STEP, Quantiles, Steps, rank_paths, read_lines
from collectors.files import replace_file

MOST_BYTES_A_DAY = 2_000_000
MINUTE_NS = 60 * 10**9
DAY_NS = 86_400 * 10**9
LEAST_BYTES = 200_000
"""A file up to this size stays as it is, however short the run was."""
MOST_MINUTES = 4_000
"""Most lines of quantiles, about 400 bytes each; in a longer run each line covers more minutes."""
QUANTILES = (0.5, 0.9, 0.99)


def compact(folder: Path) -> tuple[str, ...]:
    """Replace the steps in files that are too large by quantiles; return a line about each file that was replaced.

    Begins, notes, windows and ends stay. Compacting again changes nothing.

    Raises:
        OSError: a file cannot be read or written.
    """
    return tuple(line for rank, path in rank_paths(folder).items() for line in _compact_file(rank, path))


def _compact_file(rank: int, path: Path) -> Iterator[str]:
    size = path.stat().st_size
    first_ns, last_ns, number = None, 0, 0
    for line in read_lines(path):
        if isinstance(line, Steps) and line.end_ns:
            first_ns = line.end_ns[0] if first_ns is None else first_ns
            last_ns = max(last_ns, line.end_ns[-1])
            number += len(line.end_ns)
    if first_ns is None:
        return
    days = max(0, last_ns - first_ns) / DAY_NS
    if size <= max(LEAST_BYTES, MOST_BYTES_A_DAY * days):
        return
    minutes = max(0, last_ns - first_ns) // MINUTE_NS + 1
    each_ns = MINUTE_NS * -(-minutes // min(MOST_MINUTES, max(200, int(MOST_BYTES_A_DAY * days / 500))))
    lines = [msgspec.json.encode(line) for line in _compacted(read_lines(path), each_ns)]
    replace_file(path, b"\n".join(lines) + b"\n")
    yield f"rank {rank}: {number} steps were replaced by quantiles of each {each_ns // MINUTE_NS} min ({path.name})"


def _compacted(lines: Iterable[object], each_ns: int) -> Iterator[object]:
    """Yield the lines; lines of steps whose first steps end in the same interval of each_ns are joined into one."""
    batches: list[Steps] = []
    for line in lines:
        if isinstance(line, Steps):
            if batches and line.end_ns[0] // each_ns != batches[0].end_ns[0] // each_ns:
                yield _quantiles(batches)
                batches = []
            batches += [line] if line.end_ns else []
            continue
        if batches:
            yield _quantiles(batches)
            batches = []
        yield line
    if batches:
        yield _quantiles(batches)


def _quantiles(batches: list[Steps]) -> Quantiles:
    """Return one line for these batches: quantiles, maxima and sums of the known values, times in nanoseconds."""
    figures: dict[str, Any] = {}
    for name in OF_A_STEP:
        column = "tokens" if name == "tokens" else f"{name}_ns"
        values = [
            value
            for line in batches
            for value in getattr(line, column) or ()
            if value is not None and 0 <= value < MOST_NS
        ]
        if values:
            middle = [round(float(value)) for value in np.quantile(values, QUANTILES)]
            figures[column] = {"quantiles": middle, "most": max(values), "sum": sum(values), "steps": len(values)}
    return Quantiles(
        rule=batches[0].rule,
        first=batches[0].first,
        steps=sum(len(line.end_ns) for line in batches),
        begin_ns=batches[0].end_ns[0],
        end_ns=batches[-1].end_ns[-1],
        quantiles=QUANTILES,
        figures=figures,
        peak_bytes=max((line.peak_bytes for line in batches if line.peak_bytes is not None), default=None),
        peak_reserved_bytes=max(
            (line.peak_reserved_bytes for line in batches if line.peak_reserved_bytes is not None), default=None
        ),
        rss_bytes=max((line.rss_bytes for line in batches if line.rss_bytes is not None), default=None),
    )
