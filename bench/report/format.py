"""Formats for people: numbers in fitting units, with their intervals, times, and names on one line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from bench.results.estimate import Estimate, EstimatedRatio
from collectors.metrics import probes as probes_metrics
from collectors.metrics import results
from collectors.metrics.registry import METRICS
from collectors.traces.table import Cell, Unit

# Numbers: two or three digits, in a fitting unit, so that only 0 is shown as 0

_Scale: TypeAlias = tuple[float, float, str]
"""The smallest value for a unit, the unit's size, its sign."""

_CELL_SCALES: dict[str, Sequence[_Scale]] = {
    "ns": ((1e9, 1e9, "s"), (1e6, 1e6, "ms"), (1e3, 1e3, "us"), (0, 1, "ns")),
    "bytes": ((2**30, 2**30, "GiB"), (2**20, 2**20, "MiB"), (2**10, 2**10, "KiB"), (0, 1, "B")),
    "bytes/s": ((1e9, 1e9, "GB/s"), (1e6, 1e6, "MB/s"), (1e3, 1e3, "kB/s"), (0, 1, "B/s")),
    "ratio": ((0, 0.01, "%"),),
}
_FLOPS: Sequence[_Scale] = ((1e11, 1e12, "TFLOP/s"), (0, 1e9, "GFLOP/s"))
# Runs side by side are read across, so small values keep their neighbours' unit: MiB from 0.01 on.
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

WIDE_INTERVALS = "only 2 trials, so intervals wider than their figure are hidden (JSON has them); use --trials 5"
WIDE_RATIOS = "intervals that span most of 0 to 100 % are hidden (JSON has them); use more --trials"
MOST_OF_A_RATIO = 0.8


def digits(value: float) -> str:
    """Return two or three digits, and all before the point below 1e9: `1,234`, `20.5`, `0.123`, `0.0042`, `4.2e-06`."""
    size = abs(value)
    if size == 0:
        return "0"
    return f"{value:#.2g}" if size < 0.1 or size >= 1e9 else f"{value:,.{_decimals(value)}f}"


def whole_percent(share: float) -> str:
    """Return a ratio in whole percent: "79 %"."""
    return f"{100 * share:.0f} %"


def readable(cell: Cell, unit: Unit) -> str:
    """Return the cell in a fitting unit: `84.1 ms`, `1.50 GiB`, `96.5 %`; `-` if unknown."""
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


def figure(estimate: Estimate | None) -> str:
    """Return the median in a fitting unit, with its interval unless that is too wide: `84.1 ms [82.0, 86.3]`."""
    if estimate is None:
        return "-"
    size, sign = _scale_of(estimate.median, _SCALES.get(estimate.metric, ((0, 1, ""),)))
    decimals = 0 if sign == "B" else _decimals(estimate.median / size)
    return _with_interval(estimate, size, lambda shown: f"{shown:,.{decimals}f}", sign)


def percent(ratio: EstimatedRatio | None) -> str:
    """Return a ratio for people: `87.2 % [85.0, 89.5]`."""
    return "-" if ratio is None else _with_interval(ratio, 0.01, "{:z.1f}".format, "%")


def share(value: float | None) -> str:
    """Return a deviation or a change for people: `0.42 %`, `3.1 %`, `x 1.8`."""
    if value is None:
        return "-"
    if value >= 1:
        return f"x {1 + value:.1f}"
    return f"{100 * value:.2f} %" if value < 0.01 else f"{100 * value:.1f} %"


def in_units(estimate: Estimate | None, size: float) -> str:
    """Return the median with its interval, in units of this size, which the column names: `20.5 [19.8, 21.3]`."""
    return "-" if estimate is None else _with_interval(estimate, size, digits)


def has_wide_interval(figure: Estimate | EstimatedRatio) -> bool:
    """Return whether the figure's interval is too wide to be useful."""
    return _has_few_trials(figure) or _spans_a_ratio(figure)


def _has_few_trials(figure: Estimate | EstimatedRatio) -> bool:
    """Return whether the figure has two trials and is smaller than its interval.

    With one degree of freedom, the interval may be tens of times as wide.
    """
    if isinstance(figure, EstimatedRatio):
        value, trials = figure.value, min(figure.numerator_trials, figure.denominator_trials)
    else:
        value, trials = figure.median, len(figure.trials)
    return figure.low is not None and figure.high is not None and trials == 2 and figure.high - figure.low > abs(value)


def _spans_a_ratio(figure: Estimate | EstimatedRatio) -> bool:
    """Return whether the figure is a ratio whose interval covers most of 0 to 1."""
    is_ratio = isinstance(figure, EstimatedRatio) or figure.metric in _RATIOS
    if figure.low is None or figure.high is None or not is_ratio:
        return False
    return min(figure.high, 1.0) - max(figure.low, 0.0) > MOST_OF_A_RATIO


_RATIOS = frozenset(metric.name for metric in METRICS if metric.unit == "ratio")


def wide_interval_notes(shown: Iterable[Estimate | EstimatedRatio], *, is_suite: bool = False) -> list[str]:
    """Return the reasons why intervals are hidden, each once; empty if none is.

    is_suite: the advice is for the trials of a suite, not of a run.
    """
    figures = list(shown)
    lines = [WIDE_INTERVALS] if any(map(_has_few_trials, figures)) else []
    lines += [WIDE_RATIOS] if any(_spans_a_ratio(each) and not _has_few_trials(each) for each in figures) else []
    return [line.replace("--trials 5", "--set defaults.trials=5") for line in lines] if is_suite else lines


def _with_interval(figure: Estimate | EstimatedRatio, size: float, show: Callable[[float], str], sign: str = "") -> str:
    value = figure.value if isinstance(figure, EstimatedRatio) else figure.median
    text = f"{show(value / size)} {sign}".rstrip()
    if figure.low is None or figure.high is None or has_wide_interval(figure):
        return text
    return f"{text} [{show(figure.low / size)}, {show(figure.high / size)}]"


def _scale_of(value: float, scales: Sequence[_Scale]) -> tuple[float, str]:
    return next((size, sign) for least, size, sign in scales if abs(value) >= least)


def _decimals(shown: float) -> int:
    """Return the number of decimals that gives about three digits."""
    size = abs(shown)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


# Names and lines: shortened in the middle, on one line, merged over ranks

NAME_WIDTH = 60
T = TypeVar("T")
_OF_A_RANK = re.compile(r"rank (\d+): (.*)", re.DOTALL)


def shortened(names: Iterable[str], width: int = NAME_WIDTH) -> dict[str, str]:
    """Shorten each name in the middle to this width; to more if different names would then look alike."""
    short: dict[str, str] = {}
    rest = {name: on_one_line(name) for name in names}
    while rest:
        # Keep the cuts that are unique or whole, and cut the other names again at twice the width.
        head = width - len("...") - (width - len("...")) // 2
        tail = (width - len("...")) // 2
        cut = {
            name: line if len(line) <= width else f"{line[:head]}...{line[len(line) - tail :]}"
            for name, line in rest.items()
        }
        counted = Counter(cut.values())
        short |= {name: cut[name] for name, line in rest.items() if counted[cut[name]] == 1 or len(line) <= width}
        rest = {name: line for name, line in rest.items() if name not in short}
        width *= 2
    return short


def grouped(pairs: Iterable[tuple[T, str]]) -> dict[T, list[str]]:
    """Return each reason once, with its names, each once."""
    names: dict[T, dict[str, None]] = {}
    for reason, name in pairs:
        names.setdefault(reason, {})[name] = None
    return {reason: list(of_reason) for reason, of_reason in names.items()}


def on_one_line(text: str) -> str:
    """Return the text with "?" for each line break or other unprintable character."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def merge_ranks(lines: Iterable[str]) -> list[str]:
    """Return each line on one line; lines that are equal except for their rank are merged at the first one's place.

    `rank 0: no events`, `rank 1: no events`, `rank 3: no events` become `ranks 0, 1, 3: no events`.
    """
    matches = [(line, _OF_A_RANK.fullmatch(line)) for line in lines]
    ranks_of = grouped(
        ((line, match is None), "") if match is None else ((match[2], False), match[1]) for line, match in matches
    )
    return [
        on_one_line(text if ranks == [""] else f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {text}")
        for (text, _), ranks in ranks_of.items()
    ]
