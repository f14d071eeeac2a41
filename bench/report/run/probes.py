"""Tables of a probe's measurements; collectives are in nccl-tests' units, microseconds and GB/s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.text import Text

from bench.errors import plural
from bench.report.format import figure, in_units
from bench.report.table import Block, Table
from bench.results.estimate import Estimate, by_labels
from bench.results.gpu_clocks import clock_and_power
from bench.results.probes import LIBRARY
from bench.store.links import placement_words
from bench.store.summary import Summary
from collectors.metrics import probes as metrics
from workloads.probes.cost_model import ALGORITHMS, ORDERS

Labels = tuple[str, ...]
"""Values of a metric's labels: collective, algorithm and size; those of counts also have an account."""

COUNTS = (
    "peak at a node: the most bytes that one rank sends, or receives, in one round; all nodes: the bytes that all ranks"
    " send in one call, and the resulting rate",
    "rounds and bytes are counted, with the prediction in brackets where it differs; the library's are not counted",
)
ONE_RANK = "busbw: - on one rank, which sends nothing to another"
WITH_HOST = (
    "times are the device's alone, which does not wait for the host; with the host: as a loop in Python sees them,"
    " where small calls wait for the host"
)
_MICROSECOND, _GIGABYTE = 1e-6, 1e9


def probe_blocks(summary: Summary, *, most_rows: int | None = None) -> Iterator[Block]:
    """Yield the measurements of the run's probe, the predictions of the cost models, and the meaning of the columns.

    most_rows: limit of a table's rows; a longer table is thinned, see `thinned`.
    """
    times = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_SECONDS)
    rates = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_BUS_BANDWIDTH)
    # The measured textbook algorithms, in the order of `ALGORITHMS`.
    textbook = [algorithm for algorithm in ALGORITHMS if any(name == algorithm for _, name, _ in times)]
    notes = [*(COUNTS if textbook else ()), *([ONE_RANK] if summary.case.ranks == 1 and times.keys() - rates else [])]
    growth = [(name, ORDERS[name].steps, ORDERS[name].peak_node, ORDERS[name].total) for name in textbook]
    tables = (
        _collectives(summary, times, is_textbook=bool(textbook)),
        Table(("algorithm", "rounds", "peak at a node", "all nodes"), growth, keys=1),
        _links(summary),
        _rates(summary),
    )
    for table in tables:
        if table.rows:
            shown = table if most_rows is None else thinned(table, most_rows)
            yield shown
            if hidden := len(table.rows) - len(shown.rows):
                yield f"{plural(hidden, 'more size')}: `observatory show {summary.run} --details`"
            if table is tables[0]:
                yield from notes
            yield ""
    absent_on_a_cpu = (
        metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS,
        metrics.RUN_MATMUL_WITH_HOST_FLOPS,
        metrics.RUN_COPY_WITH_HOST_BANDWIDTH,
        metrics.RUN_PAIR_WITH_HOST_BANDWIDTH,
    )
    if any(by_labels(summary.estimates, metric) for metric in absent_on_a_cpu):
        yield WITH_HOST
        yield ""


def thinned(table: Table, most_rows: int) -> Table:
    """Thin a long table to equally many rows for each name in its first column.

    They are spaced evenly from the name's first row to its last; if there is room for only one row, it is the last.
    """
    if len(table.rows) <= most_rows:
        return table
    rows_of: dict[object, list[Sequence[str | Text]]] = defaultdict(list)
    for row in table.rows:
        rows_of[row[0]].append(row)
    each = max(1, most_rows // len(rows_of))
    chosen: list[Sequence[str | Text]] = []
    for rows in rows_of.values():
        # Example: 7 rows with room for 3 give rows 0, 3 and 6.
        last = len(rows) - 1
        places = [last] if each == 1 else [round(number * last / (each - 1)) for number in range(each)]
        chosen += rows if len(rows) <= each else [rows[place] for place in places]
    return replace(table, rows=chosen[:most_rows])


def _collectives(summary: Summary, times: Mapping[Labels, Estimate], *, is_textbook: bool) -> Table:
    """Return collectives by size: the library's own, or all algorithms with counts if textbook ones were measured."""
    predicted = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_EXPECTED_SECONDS)
    algorithm_rates = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH)
    bus_rates = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_BUS_BANDWIDTH)
    rounds = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_ROUNDS)
    peaks = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_PEAK_BYTES)
    totals = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_TOTAL_BYTES)
    with_host = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS)
    # NCCL's choices, by collective and size.
    choices: dict[Labels, list[str]] = defaultdict(list)
    for collective, size, chosen, protocol in by_labels(summary.estimates, metrics.RUN_COLLECTIVE_CHOICE):
        choices[collective, size].append(f"{chosen} {protocol}")

    def total_rate(labels: Labels) -> str:
        """Return the bytes that all ranks sent divided by the time; the interval comes from the time."""
        total, time = totals.get((*labels, "counted")), times[labels]
        if total is None:
            return "-"
        low, high = (None if end is None else total.median / end for end in (time.high, time.low))
        return in_units(replace(time, median=total.median / time.median, low=low, high=high), _GIGABYTE)

    columns: dict[str, Callable[[Labels], str]] = {
        "algorithm" if is_textbook else "collective": lambda labels: labels[1 if is_textbook else 0],
        "size (B)": lambda labels: labels[2],
        "time (us)": lambda labels: in_units(times[labels], _MICROSECOND),
        "predicted (us)": lambda labels: in_units(predicted.get(labels), _MICROSECOND),
    }
    if not is_textbook:
        columns["algbw (GB/s)"] = lambda labels: in_units(algorithm_rates.get(labels), _GIGABYTE)
    columns["busbw (GB/s)"] = lambda labels: in_units(bus_rates.get(labels), _GIGABYTE)
    if is_textbook:
        columns["rounds"] = lambda labels: _count_cell(rounds, labels)
        columns["peak at a node (B)"] = lambda labels: _count_cell(peaks, labels)
        columns["all nodes (B)"] = lambda labels: _count_cell(totals, labels)
        columns["all nodes (GB/s)"] = total_rate
    if with_host:
        columns["with host (us)"] = lambda labels: in_units(with_host.get(labels), _MICROSECOND)
    words = {0}
    if choices:
        words.add(len(columns))
        columns["chosen"] = lambda labels: (
            (", ".join(choices[labels[0], labels[2]]) if labels[1] == LIBRARY else "") or "-"
        )
    return Table(list(columns), [[cell(labels) for cell in columns.values()] for labels in times], words=words, keys=2)


def _count_cell(estimates: Mapping[Labels, Estimate], labels: Labels) -> str:
    """Return the counted figure, followed by the predicted one if it differs."""
    counted, predicted = estimates.get((*labels, "counted")), estimates.get((*labels, "expected"))
    if counted is None:
        return "-"
    is_other = predicted is not None and predicted.median != counted.median
    return f"{counted.median:,.0f}" + (f" (predicted: {predicted.median:,.0f})" if predicted and is_other else "")


def _links(summary: Summary) -> Table:
    """Return the link's latency and bandwidth from the sweep of each collective, and the ranks that it joins."""
    with_host = by_labels(summary.estimates, metrics.RUN_LINK_WITH_HOST_LATENCY_SECONDS)
    bandwidths = by_labels(summary.estimates, metrics.RUN_LINK_BANDWIDTH)
    columns = ["link by", "latency (us)", "bandwidth (GB/s)", *(["latency with the host (us)"] if with_host else [])]
    columns.append("measured")
    rows = []
    for labels, latency in by_labels(summary.estimates, metrics.RUN_LINK_LATENCY_SECONDS).items():
        host = [in_units(with_host.get(labels), _MICROSECOND)] if with_host else []
        bandwidth = in_units(bandwidths.get(labels), _GIGABYTE)
        rows.append((*labels, in_units(latency, _MICROSECOND), bandwidth, *host, placement_words(summary.case)))
    return Table(columns, rows, keys=1)


def _rates(summary: Summary) -> Table:
    """Return the rates of matrix products, copies and pairs of ranks."""
    products = by_labels(summary.estimates, metrics.RUN_MATMUL_FLOPS)
    copies = by_labels(summary.estimates, metrics.RUN_COPY_BANDWIDTH)
    pairs = by_labels(summary.estimates, metrics.RUN_PAIR_BANDWIDTH)
    with_host = (
        by_labels(summary.estimates, metrics.RUN_MATMUL_WITH_HOST_FLOPS)
        | by_labels(summary.estimates, metrics.RUN_COPY_WITH_HOST_BANDWIDTH)
        | by_labels(summary.estimates, metrics.RUN_PAIR_WITH_HOST_BANDWIDTH)
    )
    clocks = by_labels(summary.estimates, metrics.RUN_MATMUL_CLOCK_HERTZ)
    powers = by_labels(summary.estimates, metrics.RUN_MATMUL_POWER_WATTS)
    has_clock = bool(clocks or powers)
    columns = ["what", "size", "rate", *(["with the host"] if with_host else []), *(["at"] if has_clock else [])]
    rows = []
    names = {labels: (f"matmul {summary.case.precision}", " x ".join(labels)) for labels in products}
    names |= {labels: (labels[0].replace("_", " "), f"{int(labels[1]):,} B") for labels in copies}
    names |= {labels: (f"ranks {labels[0].replace('-', ' and ')}", f"{int(labels[1]):,} B") for labels in pairs}
    for labels, rate in {**products, **copies, **pairs}.items():
        cells = [*names[labels], figure(rate)]
        if with_host:
            cells.append(figure(with_host.get(labels)))
        if has_clock:
            clock, power = clocks.get(labels), powers.get(labels)
            cells.append(clock_and_power(clock.median if clock else None, power.median if power else None) or "-")
        rows.append(cells)
    return Table(columns, rows, keys=2)
