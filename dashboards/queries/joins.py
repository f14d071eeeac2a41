"""Joins of several metrics of which dashboards show one figure: alerts, verdicts, results, a GPU's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collectors.metrics.agent import RESULT_INFO, RUN_INFO
from collectors.metrics.gate import VERDICT
from collectors.metrics.gpu import GPU_MEMORY_FREE_BYTES, GPU_MEMORY_USED_BYTES, RANK_GPU
from collectors.metrics.metric import STATISTICS, Metric, Statistic
from collectors.metrics.registry import form_of
from collectors.metrics.suites import SUITE_LAST_START, SUITE_PERIOD
from dashboards.promql import (
    OWNER_LABELS,
    PLACE,
    Match,
    divide,
    either,
    firing,
    largest,
    none_of,
    plus,
    ranked_choices,
    select,
    times,
    total,
    where,
)


def firing_for(**chosen: str | Match) -> str:
    """Return for how many seconds each alert that fires has been true, its time of being held included.

    chosen: labels of the alerts.
    """
    return f"(time() - ALERTS_FOR_STATE) and ignoring (alertstate) {firing(None, **chosen)}"


def judged_changes(change: Metric, *, by: Sequence[str], but: Sequence[str] = (), **chosen: str | Match) -> str:
    """Return the change of each figure that has another verdict than these, and the verdict as a label.

    chosen: labels of the verdicts.
    """
    verdicts = largest(select(VERDICT, verdict=none_of(*but), **chosen), by=(*by, "verdict"))
    return f"{verdicts} * on ({', '.join(by)}) group_left () {largest(select(change, **_of_cluster(chosen)), by=by)}"


def memory_in_use(**labels: str | Match) -> str:
    """Return the share of a GPU's memory that is used, of what processes can have.

    That is less than all memory: the driver keeps some for itself.
    """
    used, free = (select(metric, **labels) for metric in (GPU_MEMORY_USED_BYTES, GPU_MEMORY_FREE_BYTES))
    return f"({divide(used, plus(used, free))})"


def lateness(**labels: str | Match) -> str:
    """Return the time since each suite began, divided by its period."""
    started, period = (largest(select(metric, **labels), by=("suite",)) for metric in (SUITE_LAST_START, SUITE_PERIOD))
    return f"(time() - {started}) / {period}"


# Results, each with the name that a person reads.


def _of_cluster(chosen: Mapping[str, str | Match]) -> dict[str, str | Match]:
    """Return the condition on the cluster, which is of the metric and of its info: both have a series in each."""
    return {label: value for label, value in chosen.items() if label == "cluster"}


def form_with(metric: Metric, chosen: Mapping[str, str | Match]) -> Metric:
    """Return the metric that shows a figure with these labels, of which its name may tell some."""
    return form_of(metric, {label: value for label, value in chosen.items() if isinstance(value, str)})[0]


def results(metric: Metric, statistic: Statistic, *, by: Sequence[str], **chosen: str | Match) -> str:
    """Return a result's series with what the result's info tells, joined by these labels.

    Neither the run nor the versions of the newest night are joined: a series goes on from one night to the next, and
    exporters that show different nights must not be two answers to one question.
    statistic: of the figure. chosen: labels of the metric or of the result's info; where a value is told by a metric's
    name, as an account's is, that metric is asked for.
    """
    form = form_with(metric, chosen)
    metric, chosen = (
        form.statistic(statistic),
        {label: value for label, value in chosen.items() if label in form.labels or label not in metric.labels},
    )
    own = (*OWNER_LABELS["run"], *metric.labels)
    of_metric = {label: value for label, value in chosen.items() if label in metric.labels} | _of_cluster(chosen)
    of_info = {label: value for label, value in chosen.items() if label not in metric.labels}
    told = [label for label in by if label not in own]
    info = largest(select(RESULT_INFO, **of_info), by=("series", *told))
    shown = largest(select(metric, **of_metric), by=own)
    return largest(f"{shown} * on (series) group_left ({', '.join(told)}) {info}", by=by)


def of_chosen_results(metric: Metric, /, **chosen: str | Match) -> str:
    """Select a shown metric of results by these labels of its own or of the results' info, and add the name.

    Several exporters that show one history count once, also while they show different nights of it.

    Raises:
        ValueError: neither the metric nor a result's info has such a label.
    """
    own = (*OWNER_LABELS[metric.scope], *metric.labels)
    of_metric = {label: value for label, value in chosen.items() if label in own} | _of_cluster(chosen)
    of_info = {label: value for label, value in chosen.items() if label not in own}
    info = largest(select(RESULT_INFO, **of_info), by=("series", "name"))
    return f"{largest(select(metric, **of_metric), by=own)} * on (series) group_left (name) {info}"


def interval_share(metric: Metric, *, by: Sequence[str], **chosen: str | Match) -> str:
    """Return half the width of a result's interval, as a share of its median."""
    median, low, high = (results(metric, which, by=by, **chosen) for which in STATISTICS)
    return f"({high} - {low}) / (2 * {median})"


def info_of_results(metric: Metric, *, by: Sequence[str], **chosen: str | Match) -> str:
    """Return a metric of series that has no statistics, such as when they ended, with labels of the results' info.

    chosen: labels of the info, or else of the metric.
    """
    told = [label for label in by if label not in metric.labels]
    of_info = {label: value for label, value in chosen.items() if label in (*RESULT_INFO.labels, "cluster")}
    of_metric = {label: value for label, value in chosen.items() if label not in RESULT_INFO.labels}
    info = largest(select(RESULT_INFO, **of_info), by=("series", *told))
    shown = largest(select(metric, **of_metric), by=metric.labels)
    return largest(f"{shown} * on (series) group_left ({', '.join(told)}) {info}", by=by)


def told_of_results(expression: str, *, by: Sequence[str], **chosen: str | Match) -> str:
    """Return an expression that has one value for each series, with labels of the results' info."""
    told = [label for label in by if label != "series"]
    info = largest(select(RESULT_INFO, **chosen), by=("series", *told))
    return largest(f"({expression}) * on (series) group_left ({', '.join(told)}) {info}", by=by)


def series_by(badness: str, **chosen: str | Match) -> str:
    """Return the names of series as the choices of a variable: the worst first, last those without this badness.

    badness: one value for each series, the higher the worse. chosen: labels of the results' info.
    """
    unknown = times(_LEAST_BADNESS, largest(select(RESULT_INFO, **chosen), by=("series",)))
    return ranked_choices(told_of_results(either(badness, unknown), by=("name",), **chosen))


_LEAST_BADNESS = -1e9


def single(expression: str) -> str:
    """Return an expression of one series as a number, to divide each series of another by it."""
    return f"scalar({expression})"


def winner(median: str, low: str, high: str, *, is_most: bool) -> str:
    """Return the series with the best median if its interval lies apart from all others', named by the label `name`.

    Else one series whose name says so: no difference is shown, also where a series has no interval, and a series alone
    has nothing that it could be compared with.
    is_most: whether the largest is best; else the least.
    """
    chosen, worse, end, others = ("topk", ">=", low, high) if is_most else ("bottomk", "<=", high, low)
    best = f"{chosen}(1, {median})"
    # Its own interval reaches its end; one more, and they meet.
    meet = f"count(({others}) {worse} scalar(({end}) and on (series) {best}))"
    named = f"{best}\nand on () ({meet} == 1)\nand on () (count({median}) == count({others}))"
    several = f"(count({median}) > 1)"
    return (
        f"({named}\nand on () {several})\nor on () {_word('no difference shown', several)}"
        f"\nor on () {_word('only one series', f'(count({median}) == 1)')}"
    )


def _word(text: str, where: str) -> str:
    return f'label_replace({where}, "name", "{text}", "", "")'


def level_of(series: str, level: str, *, on: Sequence[str]) -> str:
    """Return, for each of these series, the value of the level that belongs to it; their own values do not matter."""
    return f"0 * ({series}) + on ({', '.join(on)}) group_left () ({level})"


def rest_of_one(ratio: str) -> str:
    """Return what a share leaves of the whole."""
    return f"1 - ({ratio})"


def by_the_line(bandwidth: str, elapsed: str, expected: str) -> str:
    """Return the bandwidth that a call would have if it took the time that its cost model expects."""
    return f"({bandwidth}) * ({elapsed}) / ({expected})"


def most_now(number: int, expression: str) -> str:
    """Keep so many series with the largest values at each moment; over weeks that is cheap, and for a table enough."""
    return f"topk({number}, {expression})"


def least_now(number: int, expression: str) -> str:
    """Keep so many series with the least values at each moment."""
    return f"bottomk({number}, {expression})"


# What a run is, and its steps.


def case_of_run(metric: Metric, *, by: Sequence[str], **chosen: str | Match) -> str:
    """Return a metric of these runs with their case in words as a label, `about`: the suite's name for it.

    Of what no suite runs that is strategy and ranks: "ddp on 2". What a run was is no state: of one that has ended
    within the time range, the metric's last value is told.
    metric: has the labels run and slot. by: labels of the runs' info.
    """
    on = (*PLACE, "slot", "run")
    told = ", ".join(label for label in by if label not in on)
    shown = _last_in_view(select(metric, **_of_cluster(chosen)))
    infos = (_last_in_view(select(RUN_INFO, **chosen, case=case)) for case in (none_of(""), ""))
    of_suite, alone = (largest(f"{shown} * on ({', '.join(on)}) group_left ({told}) {info}", by=by) for info in infos)
    named = f'label_join({of_suite}, "about", "", "case")'
    return f'{named} or label_join({alone}, "about", " on ", "strategy", "ranks")'


def _last_in_view(selector: str) -> str:
    return f"last_over_time({selector}[$__range])"


def now_or_last(expression: str) -> str:
    """Return an expression on a run, and where it has ended within the time range its last value of each 15 s.

    At each of these moments the run is asked for that had the slot then: the last values of a slot's series may be of
    another. A run that was over sooner has its lines and no numbers.
    """
    return f"(({expression}) or last_over_time(({expression})[$__range:15s]))"


def observed_in_run(histogram: Metric, **chosen: str | Match) -> str:
    """Return how many values a second fell into each bucket of a histogram lately, of the runs with these labels.

    Where Grafana was not told of a long scrape interval five minutes are taken, as by `recent_rate`.
    """
    counted = f"{histogram.name}_bucket"
    lately = f"(rate({counted}[$__rate_interval]) or (rate({counted}[5m]) and {counted}))"
    return total(where(lately, select(RUN_INFO, **chosen), on=(*PLACE, "slot")), by=("le",))


def quantile_in_run(histogram: Metric, quantile: float, **chosen: str | Match) -> str:
    """Return a quantile of what a histogram observed lately of these runs, over all their nodes."""
    return f"histogram_quantile({quantile:g}, {observed_in_run(histogram, **chosen)})"


# The GPUs of a run.


def of_gpus_of_run(expression: str, **chosen: str | Match) -> str:
    """Return a GPU's values for each rank that computes on it; chosen: labels of a rank's GPU, such as run and rank."""
    on = (*PLACE, "gpu")
    ranks = largest(select(RANK_GPU, **chosen), by=(*on, "rank"))
    return f"(({ranks}) * on ({', '.join(on)}) group_left () {largest(expression, by=on)})"


def memory_for_ranks(**labels: str | Match) -> str:
    """Return the memory of a GPU that processes can have."""
    return plus(*(select(metric, **labels) for metric in (GPU_MEMORY_USED_BYTES, GPU_MEMORY_FREE_BYTES)))
