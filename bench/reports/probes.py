"""Prints what a probe found as tables; collectives in nccl-tests' own units, microseconds and GB/s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench.analysis.estimate import Estimate
from bench.analysis.gpu_clocks import clock_and_power
from bench.analysis.probes import LIBRARY
from bench.reports.format import figure, part_of, print_figures, print_words, tells_little, with_interval
from bench.runs.summary import Summary
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric
from workloads.probes.cost_model import ALGORITHMS, Algorithm, order

Place = tuple[str, ...]

COUNTS = (
    "peak at a node: the most bytes that one rank sends, or receives, in one round; all nodes: the bytes that all ranks"
    " send in one call, and those over its time",
    "rounds and bytes are counted, and the law's stand behind those that are not what it says; nobody counts the"
    " library's",
)
WITH_HOST_US = "with host (us)"
WITH_HOST = (
    "times are the device's alone, which does not wait for the host; with the host: as a loop in Python has it, which"
    " small calls wait for"
)
_ABSENT_ON_A_CPU = (
    probes_metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS,
    probes_metrics.RUN_MATMUL_WITH_HOST_FLOPS,
    probes_metrics.RUN_COPY_WITH_HOST_BANDWIDTH,
)


def print_probe(summary: Summary, console: Console, *, most_rows: int | None = None) -> None:
    """Print what the run's probe measured, beside what the cost models expect, and what its columns mean.

    most_rows: of a table; a longer one is thinned to some sizes of each thing, see `thinned`.
    """
    tables: tuple[tuple[Table, int, Sequence[str]], ...] = (
        (_collectives(summary), 2, _without_bus(summary)),
        (_algorithms(summary), 2, (*COUNTS, *_without_bus(summary))),
        (_orders(summary), 1, ()),
        (_links(summary), 1, ()),
        (_rates(summary), 2, ()),
    )
    for table, keys, notes in tables:
        if table.row_count:
            shown = table if most_rows is None else thinned(table, most_rows)
            print_figures(console, shown, keys=keys)
            if shown.row_count < table.row_count:
                hidden = table.row_count - shown.row_count
                print_words(console, f"{hidden} more sizes: `observatory show {summary.run} --details`")
            for note in notes:
                print_words(console, note)
            console.print()
    if any(_by_place(summary, metric) for metric in _ABSENT_ON_A_CPU):
        print_words(console, WITH_HOST)
        console.print()


def thinned(table: Table, most_rows: int) -> Table:
    """Return the table itself where it is short; else as many rows as fit of each name in its first column.

    They lie evenly between the name's first and last row; where there is room for only one, it is the last.
    """
    names = [str(cell) for cell in table.columns[0].cells]
    if len(names) <= most_rows:
        return table
    of_name = {name: [place for place, other in enumerate(names) if other == name] for name in names}
    each = max(1, most_rows // len(of_name))
    places = [place for found in of_name.values() for place in _evenly(found, each)][:most_rows]
    return part_of(table, range(len(table.columns)), places)


def _evenly(places: Sequence[int], count: int) -> list[int]:
    if len(places) <= count:
        return list(places)
    if count == 1:
        return [places[-1]]
    return [places[round(number * (len(places) - 1) / (count - 1))] for number in range(count)]


def microseconds(estimate: Estimate | None) -> str:
    """Return a time in nccl-tests' unit, with its interval."""
    return _scaled(estimate, 1e6)


def gigabytes_per_second(estimate: Estimate | None) -> str:
    """Return a rate in nccl-tests' unit, 10^9 bytes per second, with its interval."""
    return _scaled(estimate, 1e-9)


def _scaled(estimate: Estimate | None, scale: float) -> str:
    if estimate is None:
        return "-"
    ends = (None, None) if tells_little(estimate) else (estimate.low, estimate.high)
    low, high = (None if end is None else end * scale for end in ends)
    return with_interval(estimate.median * scale, low, high)


def _collectives(summary: Summary) -> Table:
    """Return the library's collectives by size; no rows where textbook algorithms were measured beside them."""
    table = _table("collective", "size (B)", "time (us)", "law (us)", "algbw (GB/s)", "busbw (GB/s)")
    algbw = _by_place(summary, probes_metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH)
    busbw = _by_place(summary, probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH)
    expected = _by_place(summary, probes_metrics.RUN_COLLECTIVE_EXPECTED_SECONDS)
    with_host = _by_place(summary, probes_metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS)
    if with_host:
        table.add_column(WITH_HOST_US, justify="right", overflow="fold")
    chosen = _choices(summary)
    if chosen:
        table.add_column("chosen", overflow="fold")
    times = _by_place(summary, probes_metrics.RUN_COLLECTIVE_SECONDS)
    for place, time in times.items() if not _measured(times) else ():
        collective, _, size = place
        cells = [
            collective,
            size,
            microseconds(time),
            microseconds(expected.get(place)),
            gigabytes_per_second(algbw.get(place)),
            gigabytes_per_second(busbw.get(place)),
            *([microseconds(with_host.get(place))] if with_host else []),
        ]
        table.add_row(*cells, *([chosen.get((collective, size), "-")] if chosen else []))
    return table


def _algorithms(summary: Summary) -> Table:
    """Return the textbook algorithms beside the library's own: times and counts, each beside the cost model's."""
    table = _table(
        "algorithm",
        "size (B)",
        "time (us)",
        "law (us)",
        "busbw (GB/s)",
        "rounds",
        "peak at a node (B)",
        "all nodes (B)",
        "all nodes (GB/s)",
    )
    busbw = _by_place(summary, probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH)
    expected = _by_place(summary, probes_metrics.RUN_COLLECTIVE_EXPECTED_SECONDS)
    rounds = _by_place(summary, probes_metrics.RUN_COLLECTIVE_ROUNDS)
    peaks = _by_place(summary, probes_metrics.RUN_COLLECTIVE_PEAK_BYTES)
    totals = _by_place(summary, probes_metrics.RUN_COLLECTIVE_TOTAL_BYTES)
    with_host = _by_place(summary, probes_metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS)
    if with_host:
        table.add_column(WITH_HOST_US, justify="right", overflow="fold")
    chosen = _choices(summary)
    if chosen:
        table.add_column("chosen", overflow="fold")
    times = _by_place(summary, probes_metrics.RUN_COLLECTIVE_SECONDS)
    for place, time in times.items() if _measured(times) else ():
        collective, algorithm, size = place
        cells = [
            microseconds(time),
            microseconds(expected.get(place)),
            gigabytes_per_second(busbw.get(place)),
            *(_counted(found, place) for found in (rounds, peaks, totals)),
            _total_rate(totals.get((*place, "counted")), time),
            *([microseconds(with_host.get(place))] if with_host else []),
        ]
        if chosen:
            cells.append(chosen.get((collective, size), "-") if algorithm == LIBRARY else "-")
        table.add_row(algorithm, size, *cells)
    return table


def _total_rate(total: Estimate | None, time: Estimate) -> str:
    """Return the bytes that all ranks sent, over the time; its interval is the time's."""
    if total is None:
        return "-"
    ends = (None, None) if tells_little(time) else (time.high, time.low)
    low, high = (None if end is None else total.median / end * 1e-9 for end in ends)
    return with_interval(total.median / time.median * 1e-9, low, high)


def _without_bus(summary: Summary) -> Sequence[str]:
    """Return why figures have no bus bandwidth, where some have none."""
    times, busbw = (
        _by_place(summary, metric)
        for metric in (probes_metrics.RUN_COLLECTIVE_SECONDS, probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH)
    )
    if summary.case.ranks > 1 or not times.keys() - busbw.keys():
        return ()
    return ("busbw: - on one rank, which has no bus: it sends nothing to another",)


def _measured(times: Mapping[Place, Estimate]) -> list[Algorithm]:
    """Return the textbook algorithms that the run measured, in the order of `ALGORITHMS`."""
    names = {name for _, name, _ in times}
    return [algorithm for algorithm in ALGORITHMS if algorithm in names]


def _counted(found: Mapping[Place, Estimate], place: Place) -> str:
    """Return what was counted; where the cost model expects another figure, that one behind it."""
    counted, expected = found.get((*place, "counted")), found.get((*place, "expected"))
    if counted is None:
        return "-"
    text = f"{counted.median:,.0f}"
    if expected is not None and expected.median != counted.median:
        text += f" (law: {expected.median:,.0f})"
    return text


def _orders(summary: Summary) -> Table:
    """Return how the cost of the measured algorithms grows with the number of ranks n, for a vector of one size."""
    table = _table("algorithm", "rounds", "peak at a node", "all nodes")
    for algorithm in _measured(_by_place(summary, probes_metrics.RUN_COLLECTIVE_SECONDS)):
        growth = order(algorithm)
        table.add_row(algorithm, growth.steps, growth.peak_node, growth.total)
    return table


def _links(summary: Summary) -> Table:
    """Return latency and bandwidth of the link between two ranks, by the sweep of each collective."""
    with_host = _by_place(summary, probes_metrics.RUN_LINK_WITH_HOST_LATENCY_SECONDS)
    table = _table(
        "link by", "latency (us)", "bandwidth (GB/s)", *(["latency with the host (us)"] if with_host else [])
    )
    bandwidths = _by_place(summary, probes_metrics.RUN_LINK_BANDWIDTH)
    for place, latency in _by_place(summary, probes_metrics.RUN_LINK_LATENCY_SECONDS).items():
        host = [microseconds(with_host.get(place))] if with_host else []
        table.add_row(*place, microseconds(latency), gigabytes_per_second(bandwidths.get(place)), *host)
    return table


def _rates(summary: Summary) -> Table:
    """Return the rates of matrix products and copies."""
    products = _by_place(summary, probes_metrics.RUN_MATMUL_FLOPS)
    copies = _by_place(summary, probes_metrics.RUN_COPY_BANDWIDTH)
    with_host = {
        **_by_place(summary, probes_metrics.RUN_MATMUL_WITH_HOST_FLOPS),
        **_by_place(summary, probes_metrics.RUN_COPY_WITH_HOST_BANDWIDTH),
    }
    clocks = _by_place(summary, probes_metrics.RUN_MATMUL_CLOCK_HERTZ)
    powers = _by_place(summary, probes_metrics.RUN_MATMUL_POWER_WATTS)
    has_clock = bool(clocks or powers)
    table = _table("what", "size", "rate", *(["with the host"] if with_host else []), *(["at"] if has_clock else []))
    rows = [
        *((place, f"matmul {summary.case.precision}", " x ".join(place), rate) for place, rate in products.items()),
        *((place, place[0].replace("_", " "), f"{int(place[1]):,} B", rate) for place, rate in copies.items()),
    ]
    for place, what, size, rate in rows:
        host, clock, power = with_host.get(place), clocks.get(place), powers.get(place)
        at = clock_and_power(clock.median if clock else None, power.median if power else None) or "-"
        table.add_row(
            what,
            size,
            figure(rate),
            *([figure(host) if host else "-"] if with_host else []),
            *([at] if has_clock else []),
        )
    return table


def _choices(summary: Summary) -> dict[Place, str]:
    """Return the algorithms and protocols that NCCL chose, by collective and size."""
    found: dict[Place, list[str]] = {}
    for collective, size, chosen, protocol in _by_place(summary, probes_metrics.RUN_COLLECTIVE_CHOICE):
        found.setdefault((collective, size), []).append(f"{chosen} {protocol}")
    return {place: ", ".join(words) for place, words in found.items()}


def _by_place(summary: Summary, metric: Metric) -> dict[Place, Estimate]:
    """Return the metric's estimates by the values of its labels."""
    return {
        tuple(found.labels[name] for name in metric.labels): found
        for found in summary.estimates
        if found.metric == metric.name
    }


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for other in others:
        table.add_column(other, justify="right", overflow="fold")
    return table
