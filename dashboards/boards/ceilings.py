"""The dashboard "What can the machine do at most?": links, matrix products, memory, pairs of ranks."""

from __future__ import annotations

from collectors.metrics import probes
from collectors.metrics.agent import RESULT_INFO
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.boards import choices
from dashboards.boards.results import OF_SUITE, column, interval_column, median, now, with_interval
from dashboards.model import Column, Dashboard, Row, Stat, Table, TimeSeries, Variable, Worst
from dashboards.promql import Match
from dashboards.queries import joins

_CHOSEN = {**OF_SUITE, "name": "$series"}
_OF_CALLS = {**_CHOSEN, "collective": "$collective"}
_CALL = ("collective", "algorithm", "size")
_NO_CALLS = "No collectives run of what is chosen above has ended well. `observatory run collectives --ranks 8`."
_NO_PRODUCTS = "No matmul run of what is chosen above has ended well. `observatory run matmul` measures products."
_NO_COPIES = "No copies run of what is chosen above has ended well. `observatory run copies` measures them."
_NO_PAIRS = "No pairs run of what is chosen above has ended well. `observatory run pairs --ranks 8`."
_SERIES = Variable(name="series", label="Series", query=promql.choices(RESULT_INFO, "name", **OF_SUITE, shape=""))
_COLLECTIVE = Variable(
    name="collective",
    label="Collective",
    query=promql.choices(probes.RUN_COLLECTIVE_BUS_BANDWIDTH.statistic("median"), "collective", **choices.OF_CLUSTER),
)
_SIZE = Variable(
    name="size",
    label="Size of the lines, in bytes",
    query=promql.choices(probes.RUN_COLLECTIVE_BUS_BANDWIDTH.statistic("median"), "size", **choices.OF_CLUSTER),
    is_single=True,
    begins_with_last=True,
)


def _peak(title: str, metric: Metric, absent: str, *, of_calls: bool = False, is_least: bool = False) -> Stat:
    """Return the largest of all newest results, or the least."""
    found = median(metric, (_OF_CALLS if of_calls else _CHOSEN))
    expression = promql.smallest(found, by=()) if is_least else promql.largest(found, by=())
    return Stat(title=title, queries=(now(metric, expression),), width=8, absent=absent)


_SLOWEST = promql.smallest(median(probes.RUN_PAIR_BANDWIDTH, _CHOSEN, "pair", "size"), by=("series", "size"))
_USUAL = promql.middle(median(probes.RUN_PAIR_BANDWIDTH, _CHOSEN, "pair", "size"), by=("series", "size"))
_STATS = (
    _peak("Best bus bandwidth", probes.RUN_COLLECTIVE_BUS_BANDWIDTH, _NO_CALLS, of_calls=True),
    _peak("Link: fitted bandwidth", probes.RUN_LINK_BANDWIDTH, _NO_CALLS, of_calls=True),
    _peak("Link: fitted latency", probes.RUN_LINK_LATENCY_SECONDS, _NO_CALLS, of_calls=True, is_least=True),
    _peak("Fastest matrix product", probes.RUN_MATMUL_FLOPS, _NO_PRODUCTS),
    _peak("Fastest copy", probes.RUN_COPY_BANDWIDTH, _NO_COPIES),
    Stat(
        title="Slowest pair",
        queries=(now(probes.RUN_PAIR_BANDWIDTH, promql.smallest(promql.divide(_SLOWEST, _USUAL), by=()), "ratio"),),
        width=8,
        note="Of the median pair that exchanged as many bytes in the run: below 1, one link is slower than others.",
        absent=_NO_PAIRS,
    ),
)


# Collectives by size, beside the line that is fitted to all_reduce.


def _call(name: str, metric: Metric) -> Column:
    return column(name, metric, _OF_CALLS, *_CALL)


_BUSBW = median(probes.RUN_COLLECTIVE_BUS_BANDWIDTH, _OF_CALLS, *_CALL)
_TIME = median(probes.RUN_COLLECTIVE_SECONDS, _OF_CALLS, *_CALL)
_EXPECTED = median(probes.RUN_COLLECTIVE_EXPECTED_SECONDS, _OF_CALLS, *_CALL)
_COLLECTIVES = Table(
    title="Collectives by size, beside the fitted line",
    width=24,
    height=12,
    columns=(
        Column(name="Case", source="name", link=choices.TO_SERIES),
        Column(name="Collective", source="collective", width=120),
        Column(name="Algorithm", source="algorithm", width=120),
        Column(name="Size", source="size", unit="bytes"),
        _call("Time", probes.RUN_COLLECTIVE_SECONDS),
        interval_column("+-", probes.RUN_COLLECTIVE_SECONDS, _OF_CALLS, *_CALL),
        _call("By line", probes.RUN_COLLECTIVE_EXPECTED_SECONDS),
        Column(
            name="Of line",
            source=now(probes.RUN_COLLECTIVE_SECONDS, promql.divide(_TIME, _EXPECTED), "ratio"),
        ),
        _call("Busbw", probes.RUN_COLLECTIVE_BUS_BANDWIDTH),
        Column(
            name="Busbw by line",
            source=now(
                probes.RUN_COLLECTIVE_BUS_BANDWIDTH,
                joins.by_the_line(_BUSBW, _TIME, _EXPECTED),
            ),
        ),
        _call("With host", probes.RUN_COLLECTIVE_WITH_HOST_SECONDS),
    ),
    sorted_by=("Case", "Collective", "Algorithm", "Size"),
    is_falling=False,
    note="Busbw: bus bandwidth. The line is latency times rounds and bytes over bandwidth, fitted to the library's"
    " all_reduce of the run; a size far above it is one where the library chose badly.",
    absent=_NO_CALLS,
)
_LINKS = Table(
    title="Links, as fitted",
    width=24,
    height=6,
    columns=(
        Column(name="Case", source="name", link=choices.TO_SERIES),
        Column(name="Collective", source="collective"),
        column("Bandwidth", probes.RUN_LINK_BANDWIDTH, _OF_CALLS, "collective"),
        interval_column("+-", probes.RUN_LINK_BANDWIDTH, _OF_CALLS, "collective"),
        column("Latency", probes.RUN_LINK_LATENCY_SECONDS, _OF_CALLS, "collective"),
        column("With the host", probes.RUN_LINK_WITH_HOST_LATENCY_SECONDS, _OF_CALLS, "collective"),
    ),
    sorted_by=("Bandwidth",),
    absent=_NO_CALLS,
)


# Matrix products, copies, pairs.

_PRODUCT = ("m", "n", "k")
_COPY = ("kind", "size")
_PAIR = ("pair", "size")
_PRODUCTS = Table(
    title="Matrix products",
    width=24,
    height=6,
    columns=(
        Column(name="Case", source="name", link=choices.TO_SERIES),
        *(Column(name=label, source=label, unit="number", width=70) for label in _PRODUCT),
        column("Rate", probes.RUN_MATMUL_FLOPS, _CHOSEN, *_PRODUCT),
        interval_column("+-", probes.RUN_MATMUL_FLOPS, _CHOSEN, *_PRODUCT),
        column("With the host", probes.RUN_MATMUL_WITH_HOST_FLOPS, _CHOSEN, *_PRODUCT),
        column("Clock", probes.RUN_MATMUL_CLOCK_HERTZ, _CHOSEN, *_PRODUCT),
        column("Power", probes.RUN_MATMUL_POWER_WATTS, _CHOSEN, *_PRODUCT),
    ),
    sorted_by=("Rate",),
    absent=_NO_PRODUCTS,
)
_COPIES = Table(
    title="Copies",
    width=24,
    height=6,
    columns=(
        Column(name="Case", source="name", link=choices.TO_SERIES),
        Column(name="Kind", source="kind"),
        Column(name="Size", source="size", unit="bytes"),
        column("Bandwidth", probes.RUN_COPY_BANDWIDTH, _CHOSEN, *_COPY),
        interval_column("+-", probes.RUN_COPY_BANDWIDTH, _CHOSEN, *_COPY),
        column("With the host", probes.RUN_COPY_WITH_HOST_BANDWIDTH, _CHOSEN, *_COPY),
    ),
    sorted_by=("Bandwidth",),
    absent=_NO_COPIES,
)
_PAIR_COLUMNS = (
    Column(name="Case", source="name", link=choices.TO_SERIES),
    Column(name="Ranks", source="pair", width=90),
    Column(name="Size", source="size", unit="bytes"),
)
_EXCHANGES = median(probes.RUN_PAIR_BANDWIDTH, _CHOSEN, *_PAIR)
_OF_USUAL = promql.divide(_EXCHANGES, _USUAL, on=("series", "size"))
_PAIRS = Table(
    title="Pairs of ranks: the 20 that are slowest beside the median pair",
    width=24,
    columns=(
        *_PAIR_COLUMNS,
        Column(
            name="Bandwidth",
            source=now(probes.RUN_PAIR_BANDWIDTH, promql.where(_EXCHANGES, joins.least_now(20, _OF_USUAL))),
        ),
        Column(
            name="Of the median pair",
            source=now(probes.RUN_PAIR_BANDWIDTH, joins.least_now(20, _OF_USUAL), "ratio"),
        ),
    ),
    sorted_by=("Of the median pair",),
    is_falling=False,
    absent=_NO_PAIRS,
)


# Over the nights.


def _lines(title: str, metric: Metric, *extra: str, worst: Worst, absent: str, **labels: str | Match) -> TimeSeries:
    return TimeSeries(
        title=title,
        queries=with_interval(metric, labels, *extra),
        worst=worst,
        legend="right",
        absent=absent,
    )


_NIGHTS = Row(
    title="Over the nights",
    panels=(
        _lines(
            "Bus bandwidth of the chosen size",
            probes.RUN_COLLECTIVE_BUS_BANDWIDTH,
            *_CALL[:-1],
            worst="lowest",
            absent=_NO_CALLS,
            **_OF_CALLS,
            size="$size",
        ),
        _lines(
            "Fitted bandwidth of links",
            probes.RUN_LINK_BANDWIDTH,
            "collective",
            worst="lowest",
            absent=_NO_CALLS,
            **_OF_CALLS,
        ),
        _lines(
            "Fitted latency of links",
            probes.RUN_LINK_LATENCY_SECONDS,
            "collective",
            worst="highest",
            absent=_NO_CALLS,
            **_OF_CALLS,
        ),
        _lines(
            "Rate of matrix products",
            probes.RUN_MATMUL_FLOPS,
            *_PRODUCT,
            worst="lowest",
            absent=_NO_PRODUCTS,
            **_CHOSEN,
        ),
        _lines("Bandwidth of copies", probes.RUN_COPY_BANDWIDTH, *_COPY, worst="lowest", absent=_NO_COPIES, **_CHOSEN),
        TimeSeries(
            title="Pairs: the 8 slowest exchanges",
            queries=(
                now(
                    probes.RUN_PAIR_BANDWIDTH,
                    joins.least_now(8, median(probes.RUN_PAIR_BANDWIDTH, _CHOSEN, *_PAIR)),
                    legend="{{name}} ranks {{pair}}, {{size}} bytes",
                ),
            ),
            worst="lowest",
            legend="right",
            absent=_NO_PAIRS,
        ),
    ),
)

DASHBOARD = Dashboard(
    name="ceilings",
    title="What can the machine do at most?",
    summary="The newest results of the probes: collectives by size beside the fitted line, links, matrix products,"
    " copies and pairs of ranks. What trainings reach is to be compared with them.",
    variables=(choices.CLUSTER_OF_RESULTS, choices.SUITE, _SERIES, _COLLECTIVE, _SIZE),
    panels=(*_STATS, _COLLECTIVES, _LINKS, _PRODUCTS, _COPIES, _PAIRS),
    rows=(_NIGHTS,),
    annotations=(choices.verdicts_marked(**_CHOSEN),),
    hours=720,
)
