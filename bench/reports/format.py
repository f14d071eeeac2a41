"""Formatting of results: the console, tables and figures for people, and JSON and CSV for programs."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TextIO, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from bench.analysis.estimate import Estimate, EstimatedRatio
from bench.errors import CONTROL
from bench.errors import on_one_line as escaped
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from collectors.metrics.registry import METRICS
from collectors.traces.table import Cell, Unit

PIPED_WIDTH = 120
_NO_EDGE = 10_000


class PlainConsole(Console):
    """Prints texts as they are, without markup, emoji codes or control characters.

    Names of runs, hosts, folders and events may come from anywhere; a "?" replaces each control character, and in what
    is printed as a line or as a table's cell also each newline, which could begin a line that nobody wrote.
    """

    def __init__(
        self, file: TextIO | None = None, *, width: int | None = None, force_terminal: bool | None = None
    ) -> None:
        super().__init__(
            file=file, width=width, force_terminal=force_terminal, highlight=False, markup=False, emoji=False
        )

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*map(_without_breaks, objects), **options)

    def render_str(self, text: str, **options: Any) -> Text:
        # A table measures its cells before it renders them, so control characters are replaced here already.
        return super().render_str(CONTROL.sub("?", text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or CONTROL.search(segment.text) is None:
                yield segment
            else:
                yield Segment(CONTROL.sub("?", segment.text), segment.style)


def _without_breaks(printed: Any) -> Any:
    """Return a line, or what holds lines, with a "?" for each newline within one; headings may have several lines."""
    if isinstance(printed, str):
        return printed.replace("\n", "?")
    if isinstance(printed, Text) and "\n" in printed.plain:
        return Text(printed.plain.replace("\n", "?"), style=printed.style)
    if isinstance(printed, Padding):
        printed.renderable = _without_breaks(printed.renderable)
    if isinstance(printed, Table):
        for column in printed.columns:
            column._cells = [_without_breaks(cell) for cell in column.cells]
    return printed


def open_console(file: TextIO | None = None) -> Console:
    """Return a console for this file, standard output unless another is given."""
    is_terminal = (sys.stdout if file is None else file).isatty()
    return PlainConsole(file, width=None if is_terminal else PIPED_WIDTH)


def print_figures(console: Console, table: Table, *, keys: int = 0) -> None:
    """Print a table of figures: one line per row, however long, except on a terminal that is narrower.

    keys: how many first columns say what a row is of. On a narrow terminal the others continue below, after these
    again; with no keys, and where one column alone is too wide, cells are folded.
    """
    _without_breaks(table)  # Before it is measured.
    if not console.is_terminal:
        table.width = widest(console, table)
    is_split = console.is_terminal and keys and widest(console, table) > console.width
    for number, block in enumerate(_blocks(console, table, keys) if is_split else [table]):
        if number:
            console.print()
        console.print(block, crop=False)


def _blocks(console: Console, table: Table, keys: int) -> Iterator[Table]:
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


def print_words(console: Console, *lines: str, style: str = "") -> None:
    """Print each sentence on one line, however long; on a terminal it is broken between words."""
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=not console.is_terminal)


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    words: Container[int] = (0,),
    unbroken: Container[int] = (),
    has_heading: bool = True,
) -> Table:
    """Return a table without lines.

    words: columns aligned to the left, which hold words; the others hold figures, and are aligned to the right.
    unbroken: columns whose cells are never folded.
    """
    table = Table(box=None, pad_edge=False, show_header=has_heading)
    for place, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if place in words else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=place in unbroken)
    for row in rows:
        table.add_row(*row)
    return table


# Numbers: two or three digits, in a unit of their size, so that only 0 is shown as 0.

_Scale: TypeAlias = tuple[float, float, str]
"""The least value that a unit is used for, the unit's size, its sign."""

_CELL_SCALES: dict[str, Sequence[_Scale]] = {
    "ns": ((1e9, 1e9, "s"), (1e6, 1e6, "ms"), (1e3, 1e3, "us"), (0, 1, "ns")),
    "bytes": ((2**30, 2**30, "GiB"), (2**20, 2**20, "MiB"), (2**10, 2**10, "KiB"), (0, 1, "B")),
    "bytes/s": ((1e9, 1e9, "GB/s"), (1e6, 1e6, "MB/s"), (1e3, 1e3, "kB/s"), (0, 1, "B/s")),
    "ratio": ((0, 0.01, "%"),),
}
_FLOPS: Sequence[_Scale] = ((1e11, 1e12, "TFLOP/s"), (0, 1e9, "GFLOP/s"))
# Runs side by side are read across, so that small values stay in the unit of their neighbours: MiB from 0.01 on.
_METRIC_SCALES: dict[str, Sequence[_Scale]] = {
    "seconds": ((1, 1, "s"), (1e-3, 1e-3, "ms"), (0, 1e-6, "us")),
    "bytes": ((2**30, 2**30, "GiB"), (2**20 / 100, 2**20, "MiB"), (2**10, 2**10, "KiB"), (0, 1, "B")),
    "bytes_per_second": ((1e8, 1e9, "GB/s"), (0, 1e6, "MB/s")),
    "ratio": ((0, 0.01, "%"),),
    "watts": ((0, 1, "W"),),
    "joules": ((1, 1, "J"), (1e-3, 1e-3, "mJ"), (0, 1e-6, "uJ")),
}
_SCALES = {metric.name: _METRIC_SCALES[metric.unit] for metric in METRICS if metric.unit in _METRIC_SCALES} | {
    metric.name: _FLOPS
    for metric in (results.RUN_FLOPS, probes_metrics.RUN_MATMUL_FLOPS, probes_metrics.RUN_MATMUL_WITH_HOST_FLOPS)
}

WIDE_INTERVALS = (
    "2 trials tell little; --trials 5 would: intervals wider than their figure are left out here, not in JSON"
)
WIDE_RATIOS = "intervals that span most of 0 to 100 % are left out here, not in JSON; more --trials narrow them"
MOST_OF_A_RATIO = 0.8


def digits(value: float) -> str:
    """Return two or three significant digits, nine before the point: `1,234`, `20.5`, `0.123`, `0.0042`, `4.2e-06`."""
    size = abs(value)
    if size == 0:
        return "0"
    return f"{value:#.2g}" if size < 0.1 or size >= 1e9 else f"{value:,.{_decimals(value)}f}"


def readable(cell: Cell, unit: Unit) -> str:
    """Return the cell in a unit of its size: `84.1 ms`, `1.50 GiB`, `96.5 %`; `-` where unknown."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return on_one_line(cell)
    if unit == "":
        return str(cell) if isinstance(cell, int) else digits(cell)
    if cell == 0:
        return "0"
    size, sign = _scale_of(cell, _CELL_SCALES[unit])
    return f"{cell} {sign}" if size == 1 and isinstance(cell, int) else f"{digits(cell / size)} {sign}"


def duration(elapsed_s: float) -> str:
    """Return a time for people, in its two largest units: `0.4 s`, `45 s`, `2 min 10 s`, `1 h 25 min`, `3 d 4 h`."""
    if elapsed_s < 10:
        return f"{elapsed_s:.1f} s"
    seconds = round(elapsed_s)
    for size, sign, smaller, smaller_sign in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size} {sign}" + (f" {rest} {smaller_sign}" if rest else "")
    return f"{seconds} s"


def figure(estimate: Estimate) -> str:
    """Return the median in a unit for people, and its interval where that tells enough: `84.1 ms [82.0, 86.3]`."""
    size, sign = _scale_of(estimate.median, _SCALES.get(estimate.metric, ((0, 1, ""),)))
    decimals = 0 if sign == "B" else _decimals(estimate.median / size)
    return _with_interval(estimate, size, lambda shown: f"{shown:,.{decimals}f}", sign)


def percent(ratio: EstimatedRatio) -> str:
    """Return a ratio for people: `87.2 % [85.0, 89.5]`."""
    return _with_interval(ratio, 0.01, "{:z.1f}".format, "%")


def share(value: float) -> str:
    """Return a deviation or a change for people: `0.42 %`, `3.1 %`, `x 1.8`."""
    if value >= 1:
        return f"x {1 + value:.1f}"
    return f"{100 * value:.2f} %" if value < 0.01 else f"{100 * value:.1f} %"


def in_units(estimate: Estimate | None, size: float) -> str:
    """Return the median in units of this size, which its column names, and its interval: `20.5 [19.8, 21.3]`."""
    return "-" if estimate is None else _with_interval(estimate, size, digits)


def has_wide_interval(found: Estimate | EstimatedRatio) -> bool:
    """Return whether the figure's interval is too wide to tell a reader anything."""
    return _is_of_two(found) or _spans_a_ratio(found)


def _is_of_two(found: Estimate | EstimatedRatio) -> bool:
    """Return whether the figure is of two trials and narrower than its interval.

    With one degree of freedom the interval may be tens of times as wide.
    """
    if isinstance(found, EstimatedRatio):
        value, trials = found.value, min(found.numerator_trials, found.denominator_trials)
    else:
        value, trials = found.median, len(found.trials)
    return found.low is not None and found.high is not None and trials == 2 and found.high - found.low > abs(value)


def _spans_a_ratio(found: Estimate | EstimatedRatio) -> bool:
    """Return whether the figure is a ratio, and its interval covers most of what a ratio may be."""
    is_ratio = isinstance(found, EstimatedRatio) or found.metric in _RATIOS
    if found.low is None or found.high is None or not is_ratio:
        return False
    return min(found.high, 1.0) - max(found.low, 0.0) > MOST_OF_A_RATIO


_RATIOS = frozenset(metric.name for metric in METRICS if metric.unit == "ratio")


def wide_interval_notes(shown: Iterable[Estimate | EstimatedRatio], *, is_suite: bool = False) -> list[str]:
    """Return, once each, why figures have no interval; nothing where all intervals tell enough.

    is_suite: whoever reads it names a suite's number of trials, and no run's.
    """
    figures = list(shown)
    lines = [WIDE_INTERVALS] if any(map(_is_of_two, figures)) else []
    lines += [WIDE_RATIOS] if any(_spans_a_ratio(one) and not _is_of_two(one) for one in figures) else []
    return [line.replace("--trials 5", "--set defaults.trials=5") for line in lines] if is_suite else lines


def _with_interval(found: Estimate | EstimatedRatio, size: float, show: Callable[[float], str], sign: str = "") -> str:
    value = found.value if isinstance(found, EstimatedRatio) else found.median
    text = f"{show(value / size)} {sign}".rstrip()
    if found.low is None or found.high is None or has_wide_interval(found):
        return text
    return f"{text} [{show(found.low / size)}, {show(found.high / size)}]"


def _scale_of(value: float, scales: Sequence[_Scale]) -> tuple[float, str]:
    return next((size, sign) for least, size, sign in scales if abs(value) >= least)


def _decimals(shown: float) -> int:
    """Return the decimals that leave about three digits."""
    size = abs(shown)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


# Names and lines: shortened in the middle, without line breaks, said once of several ranks.

NAME_WIDTH = 60
_OF_A_RANK = re.compile(r"rank (\d+): (.*)", re.DOTALL)


def shortened(names: Iterable[str], width: int = NAME_WIDTH) -> dict[str, str]:
    """Return both ends of each name, in this many letters; in more where different names would then look alike."""
    short: dict[str, str] = {}
    left = {name: on_one_line(name) for name in names}
    while left:
        # Keep the cuts that are unique or whole, and cut the other names again at twice the width.
        head = width - len("...") - (width - len("...")) // 2
        tail = (width - len("...")) // 2
        cut = {
            name: line if len(line) <= width else f"{line[:head]}...{line[len(line) - tail :]}"
            for name, line in left.items()
        }
        counted = Counter(cut.values())
        short |= {name: cut[name] for name, line in left.items() if counted[cut[name]] == 1 or len(line) <= width}
        left = {name: line for name, line in left.items() if name not in short}
        width *= 2
    return short


def on_one_line(text: str) -> str:
    """Return the text with a "?" for each line break and other character that is not printable."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def merge_ranks(lines: Iterable[str]) -> list[str]:
    """Return the lines on one line each; those that say the same of several ranks become one, at the first's place.

    `rank 0: no events`, `rank 1: no events`, `rank 3: no events` become `ranks 0, 1, 3: no events`.
    """
    ranks_of: dict[tuple[str, bool], list[str]] = {}  # By text and whether it is of ranks.
    for line in lines:
        if (found := _OF_A_RANK.fullmatch(line)) is None:
            ranks_of[line, False] = []
        else:
            ranks_of.setdefault((found[2], True), []).append(found[1])
    return [
        on_one_line(f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {text}" if is_of_ranks else text)
        for (text, is_of_ranks), ranks in ranks_of.items()
    ]


# JSON and CSV for programs, and standard output whose reader may leave early.


def print_json(value: object) -> None:
    """Print the value as indented JSON."""
    print(json.dumps(value, indent=2))


def print_csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print the rows under the columns' names."""
    writer = csv.DictWriter(sys.stdout, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: escaped(value) if isinstance(value, str) else value for name, value in row.items()})


@contextmanager
def to_reader() -> Iterator[None]:
    """Print to standard output, and go on when its reader has enough: `observatory run ddp | head -3`."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich raises SystemExit where the pipe is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
