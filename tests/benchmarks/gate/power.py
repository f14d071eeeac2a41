"""Power of the detector: of steps of so many percent after so many nights of history, the share that is confirmed.

A series is judged once; its state is then branched for each size, so that all sizes are asked of the same nights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from bench.gate.detector.state import SeriesState
from tests.benchmarks.gate.kinds import KINDS
from tests.benchmarks.gate.made_series import MadeSeries, made
from tests.benchmarks.gate.scored_series import told_on, whole_night, wilson

SIZES_PERCENT = (1, 2, 3, 5, 10, 30, 100, 200, 400, 900)
HISTORIES = (12, 30, 60, 100)
Delays = dict[tuple[int, int], int | None]
"""Of each history and size the nights until the page, 1 on the night of the step itself; None without one in time."""


def shares_head(sizes: Sequence[int]) -> str:
    return "| kind | history | " + " | ".join(f"+{size} %" for size in sizes) + " |\n|---|---|" + "---|" * len(sizes)


def power_of(
    kind: str,
    seed: int,
    within: int,
    number: int,
    histories: Sequence[int] = HISTORIES,
    sizes: Sequence[int] = SIZES_PERCENT,
) -> Delays:
    """Return the delays on the series of this seed and number, up to so many nights."""
    series = made(KINDS, kind, seed, number, nights=max(histories) + within)
    delays: Delays = {}
    state: SeriesState | None = None
    for position in range(max(histories) + 1):
        if position in histories:
            delays |= {(position, size): _delay(state, series, position, within, size) for size in sizes}
        state = whole_night(state, series, position)[0].state
    return delays


def _delay(state: SeriesState | None, series: MadeSeries, onset: int, within: int, size: int) -> int | None:
    added = math.log1p(size / 100)
    for position in range(onset, onset + within):
        judged, _ = whole_night(state, series, position, added)
        told = told_on(series, position, state, judged)
        if told is not None and told.tier == 2 and told.direction > 0:
            return position - onset + 1
        state = judged.state
    return None


def power_rows(
    kind: str, parts: Sequence[Delays], histories: Sequence[int] = HISTORIES, sizes: Sequence[int] = SIZES_PERCENT
) -> Iterator[str]:
    """Yield a row for each history: of each size the share with its 95 % interval, and the median night of the page.

    In brackets: the share that is confirmed by the third night.
    """
    for history in histories:
        cells = [kind, str(history)]
        for size in sizes:
            nights = [delay for part in parts if (delay := part[history, size]) is not None]
            low, high = wilson(len(nights), len(parts))
            share = f"{100 * len(nights) / len(parts):.0f} [{100 * low:.0f}, {100 * high:.0f}]"
            by_third = sum(delay <= 3 for delay in nights) / len(parts)
            cells.append(share + (f" n{median(nights):.0f} ({100 * by_third:.0f})" if nights else ""))
        yield "| " + " | ".join(cells) + " |"
