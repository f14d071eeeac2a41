"""Cells of an analysis as people read them: times, bytes and ratios scaled, names of a bearable length."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from bench.reports.digits import digits
from collectors.traces.table import Cell, Unit

NAME_WIDTH = 60
_MARK = "..."

_OF_A_RANK = re.compile(r"rank (\d+): (.*)", re.DOTALL)

_SCALES: dict[Unit, Sequence[tuple[float, str]]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1, "B")),
    "bytes/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")),
    "ratio": ((0.01, "%"),),
}


def readable(cell: Cell, unit: Unit) -> str:
    """The cell in a unit of its size: `84.1 ms`, `1.50 GiB`, `96.5 %`; `-` for what is not known."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return on_one_line(cell)
    scales = _SCALES.get(unit)
    if scales is None:
        return str(cell) if isinstance(cell, int) else digits(cell)
    if cell == 0:
        return "0"
    size, sign = next((scale for scale in scales if abs(cell) >= scale[0]), scales[-1])
    return f"{cell} {sign}" if size == 1 and isinstance(cell, int) else f"{digits(cell / size)} {sign}"


def shortened(names: Iterable[str], width: int = NAME_WIDTH) -> dict[str, str]:
    """Of each name both ends, in so many letters; in more where names that differ would then look alike."""
    short: dict[str, str] = {}
    left = set(names)
    while left:
        cut = {name: _cut(on_one_line(name), width) for name in left}
        counted = Counter(cut.values())
        apart = {name for name in left if counted[cut[name]] == 1 or len(on_one_line(name)) <= width}
        short |= {name: cut[name] for name in apart}
        left -= apart
        width *= 2
    return short


def on_one_line(text: str) -> str:
    """The text without line breaks and what else a terminal would obey: a "?" for each."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def said_of_ranks(lines: Iterable[str]) -> list[str]:
    """The lines; those that say the same of several ranks are one, where the first of them stands.

    `rank 0: no events`, `rank 1: no events`, `rank 3: no events` become `ranks 0, 1, 3: no events`.
    """
    said: dict[tuple[str, bool], list[str]] = {}  # Of each text the ranks, and whether it is of ranks at all.
    for line in lines:
        found = _OF_A_RANK.fullmatch(line)
        ranks = said.setdefault((line, False) if found is None else (found[2], True), [])
        if found is not None:
            ranks.append(found[1])
    return [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {text}" if is_of_ranks else text
        for (text, is_of_ranks), ranks in said.items()
    ]


def _cut(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    kept = width - len(_MARK)
    return f"{name[: kept - kept // 2]}{_MARK}{name[len(name) - kept // 2 :]}"
