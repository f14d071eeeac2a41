"""Formatting of results: the console, tables and figures for people, and JSON and CSV for programs."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bench.analysis.estimate import Estimate, Ratio
from bench.errors import CONTROL
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from collectors.metrics.registry import METRICS
from collectors.traces.table import Cell, Unit

PIPED_WIDTH = 120
_NO_EDGE = 10_000


class PlainConsole(Console):
    """Prints texts as they are, without markup, emoji codes or control characters.

    Names of runs, hosts, folders and events may come from anywhere; a "?" replaces each control character.
    """

    def __init__(
        self, file: TextIO | None = None, *, width: int | None = None, force_terminal: bool | None = None
    ) -> None:
        super().__init__(
            file=file, width=width, force_terminal=force_terminal, highlight=False, markup=False, emoji=False
        )

    def render_str(self, text: str, **options: Any) -> Text:
        # A table measures its cells before it renders them, so control characters are replaced here already.
        return super().render_str(CONTROL.sub("?", text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or CONTROL.search(segment.text) is None:
                yield segment
            else:
                yield Segment(CONTROL.sub("?", segment.text), segment.style)


def open_console(file: TextIO | None = None) -> Console:
    """Return a console for this file, standard output unless another is given."""
    is_terminal = (sys.stdout if file is None else file).isatty()
    return PlainConsole(file, width=None if is_terminal else PIPED_WIDTH)


def print_figures(console: Console, table: Table, *, keys: int = 0) -> None:
    """Print a table of figures: one line per row, however long, except on a terminal that is narrower.

    keys: how many first columns say what a row is of. On a narrow terminal the others continue below, after these
    again; with no keys, and where one column alone is too wide, cells are folded.
    """
    if not console.is_terminal:
        table.width = widest(console, table)
    parts = [table]
    if console.is_terminal and keys and widest(console, table) > console.width:
        parts = list(_parts(console, table, keys))
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part, crop=False)


def _parts(console: Console, table: Table, keys: int) -> Iterator[Table]:
    """Split the table's columns into tables that fit, each with the keys."""
    places = list(range(keys))
    for place in range(keys, len(table.columns)):
        if len(places) > keys and widest(console, part_of(table, [*places, place])) > console.width:
            yield part_of(table, places)
            places = list(range(keys))
        places.append(place)
    yield part_of(table, places)


def part_of(table: Table, columns: Sequence[int], rows: Sequence[int] | None = None) -> Table:
    """Return these columns of the table, and these rows, or all."""
    part = Table(box=None, pad_edge=False)
    for place in columns:
        column = table.columns[place]
        part.add_column(column.header, justify=column.justify, overflow=column.overflow, no_wrap=column.no_wrap)
    cells = [list(table.columns[place].cells) for place in columns]
    for row in range(table.row_count) if rows is None else rows:
        part.add_row(*(of_column[row] for of_column in cells))
    return part


def widest(console: Console, table: Table) -> int:
    """Return the width, in letters, at which no cell of the table is folded."""
    return Measurement.get(console, console.options.update_width(_NO_EDGE), table).maximum


def print_words(console: Console, line: str, *, style: str = "") -> None:
    """Print a sentence on one line, however long; on a terminal it is broken between words."""
    console.print(Text(line, style=style), soft_wrap=not console.is_terminal)


# Numbers to two or three digits, so that only 0 is shown as 0.


def digits(value: float) -> str:
    """Return two or three significant digits, nine before the point: `1,234`, `20.5`, `0.123`, `0.0042`, `4.2e-06`."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.1 or size >= 1e9:
        return f"{value:#.2g}"
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def with_interval(value: float, low: float | None, high: float | None) -> str:
    """Return the value with its interval behind it, where it has one: `20.5 [19.8, 21.3]`."""
    if low is None or high is None:
        return digits(value)
    return f"{digits(value)} [{digits(low)}, {digits(high)}]"


# Cells of an analysis for people: times, bytes and ratios scaled, long names shortened.

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
    """Return the cell in a unit of its size: `84.1 ms`, `1.50 GiB`, `96.5 %`; `-` where unknown."""
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
    """Return both ends of each name, in this many letters; in more where different names would then look alike."""
    short: dict[str, str] = {}
    left = set(names)
    while left:
        # Keep the cuts that are unique or whole, and cut the other names again at twice the width.
        cut = {name: _cut(on_one_line(name), width) for name in left}
        counted = Counter(cut.values())
        apart = {name for name in left if counted[cut[name]] == 1 or len(on_one_line(name)) <= width}
        short |= {name: cut[name] for name in apart}
        left -= apart
        width *= 2
    return short


def on_one_line(text: str) -> str:
    """Return the text with a "?" for each line break and other character that is not printable."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def said_of_ranks(lines: Iterable[str]) -> list[str]:
    """Return the lines; those that say the same of several ranks become one, where the first of them stands.

    `rank 0: no events`, `rank 1: no events`, `rank 3: no events` become `ranks 0, 1, 3: no events`.
    """
    said: dict[tuple[str, bool], list[str]] = {}  # By text and whether it is of ranks: the ranks.
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


# Estimates for people: base units scaled, an interval behind the median.

TELLS_LITTLE = (
    "2 trials tell little; --trials 5 would: intervals wider than their figure are left out here, not in JSON"
)


def tells_little(found: Estimate | Ratio) -> bool:
    """Return whether the figure is of two trials and narrower than its interval.

    With one degree of freedom the interval may be tens of times as wide, and says nothing to a reader.
    """
    if isinstance(found, Ratio):
        value, trials = found.value, min(found.numerator_trials, found.denominator_trials)
    else:
        value, trials = found.median, len(found.trials)
    return found.low is not None and found.high is not None and trials == 2 and found.high - found.low > abs(value)


def little(shown: Iterable[Estimate | Ratio]) -> list[str]:
    """Return, once, why figures of two trials have no interval; nothing where all intervals tell enough."""
    return [TELLS_LITTLE] if any(tells_little(one) for one in shown) else []


def figure(estimate: Estimate) -> str:
    """Return the median in a unit for people, and its interval where that tells enough: `84.1 ms [82.0, 86.3]`."""
    scale, unit, decimals = _scaled(estimate)
    text = f"{estimate.median * scale:,.{decimals}f}{unit}"
    if estimate.low is None or estimate.high is None or tells_little(estimate):
        return text
    return f"{text} [{estimate.low * scale:,.{decimals}f}, {estimate.high * scale:,.{decimals}f}]"


def percent(ratio: Ratio) -> str:
    """Return a ratio for people: `87.2 % [85.0, 89.5]`."""
    text = f"{100 * ratio.value:.1f} %"
    if ratio.low is None or ratio.high is None or tells_little(ratio):
        return text
    return f"{text} [{100 * ratio.low:.1f}, {100 * ratio.high:.1f}]"


def _scaled(estimate: Estimate) -> tuple[float, str, int]:
    """Return the factor, the unit's sign and the decimals that leave about three digits."""
    unit = _UNITS.get(estimate.metric)
    scale, sign = unit(estimate.median) if unit else (1.0, "")
    shown = abs(estimate.median * scale)
    return scale, sign, 0 if shown >= 100 or sign == " B" else 1 if shown >= 10 else 2 if shown >= 1 else 3


def _seconds(value: float) -> tuple[float, str]:
    if value >= 1:
        return 1.0, " s"
    return (1e3, " ms") if value >= 1e-3 else (1e6, " us")


def _flops(value: float) -> tuple[float, str]:
    return (1e-12, " TFLOP/s") if value >= 1e11 else (1e-9, " GFLOP/s")


def _bytes(value: float) -> tuple[float, str]:
    if value >= 2**20 / 100:  # 0.01 MiB or more.
        return (2**-30, " GiB") if value >= 2**30 else (2**-20, " MiB")
    return (2**-10, " KiB") if value >= 2**10 else (1.0, " B")


def _percent(value: float) -> tuple[float, str]:
    return 100.0, " %"


def _bytes_per_second(value: float) -> tuple[float, str]:
    return (1e-9, " GB/s") if value >= 1e8 else (1e-6, " MB/s")


_BY_UNIT: dict[str, Callable[[float], tuple[float, str]]] = {
    "seconds": _seconds,
    "bytes": _bytes,
    "bytes_per_second": _bytes_per_second,
    "ratio": _percent,
}
_UNITS = {metric.name: _BY_UNIT[metric.unit] for metric in METRICS if metric.unit in _BY_UNIT} | {
    metric.name: _flops
    for metric in (results.RUN_FLOPS, probes_metrics.RUN_MATMUL_FLOPS, probes_metrics.RUN_MATMUL_WITH_HOST_FLOPS)
}


# JSON and CSV for programs, and standard output whose reader may leave early.


def print_json(value: object) -> None:
    """Print the value as indented JSON."""
    print(json.dumps(value, indent=2))


def print_csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print the rows under the columns' names."""
    writer = csv.DictWriter(sys.stdout, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


@contextmanager
def to_reader() -> Iterator[None]:
    """Print to standard output, and go on when its reader has enough: `observatory run ddp | head -3`."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich raises SystemExit where the pipe is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
