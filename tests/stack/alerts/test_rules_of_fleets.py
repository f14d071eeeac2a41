"""The alert on results where others show them than yesterday, or several do: a series is told by what it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from collectors.metrics.agent import RUN_LAST_COMPLETION
from collectors.metrics.metric import STATISTICS
from collectors.metrics.results import RUN_SCALING_EFFICIENCY
from tests.dashboards.alert_links import THRESHOLDS
from tests.stack.alerts.nights import BEAT_MINUTES, KIND, NIGHT, OWNER, USUAL, alert_of, rehearse
from tests.support.grafana_expressions import select

pytestmark = [pytest.mark.stack, pytest.mark.slow]

LOW = 0.80
HALF_INTERVAL = 0.01
NODES = ("node1:9464", "node2:9464", "node3:9464")
SERIES = {**OWNER, "device": "cpu"}
BEAT_S = 60 * BEAT_MINUTES
BEFORE = USUAL[: THRESHOLDS.efficiency.least_nights + 1]
LAST = len(BEFORE)
"""The night of the low result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run gave. completed_s: by the clock of who ran it."""

    efficiency: float
    completed_s: float


Shown = Sequence[Result | None]
"""What one exporter shows at each beat, None where it is not there or knows of no result."""


def _nightly(results: Sequence[float]) -> list[Result]:
    """A result at the beginning of each night."""
    return [Result(efficiency=one, completed_s=night * NIGHT * BEAT_S) for night, one in enumerate(results)]


def _shared(results: Sequence[Result], *, from_beat: int = 0, to_beat: int | None = None, late: int = 0) -> Shown:
    """An exporter of the store that all runs are in. late: how many beats after a run's end it finds it."""
    beats = [results[max(0, beat - late) // NIGHT] for beat in range(len(results) * NIGHT)]
    end = len(beats) if to_beat is None else to_beat
    return [one if from_beat <= beat < end else None for beat, one in enumerate(beats)]


def _own(results: Sequence[Result], nodes: Sequence[str], node: str) -> Shown:
    """The exporter of a node that keeps what ran there alone, and goes on showing it. nodes: the one of each night."""
    shown: list[Result | None] = []
    for result, drawn in zip(results, nodes, strict=True):
        shown += [result if drawn == node else shown[-1] if shown else None] * NIGHT
    return shown


def _one_node(results: Sequence[Result]) -> dict[str, Shown]:
    return {NODES[0]: _shared(results)}


def _three_in_turn(results: Sequence[Result]) -> dict[str, Shown]:
    nodes = [NODES[night % len(NODES)] for night in range(len(results))]
    return {node: _own(results, nodes, node) for node in NODES}


def _a_new_node(results: Sequence[Result]) -> dict[str, Shown]:
    nodes = [*(NODES[0] for _ in results[1:]), NODES[1]]
    return {node: _own(results, nodes, node) for node in NODES[:2]}


def _a_pod_rolled_out(results: Sequence[Result]) -> dict[str, Shown]:
    at_beat = LAST * NIGHT - 5
    return {
        "10.0.0.7:9464": _shared(results, to_beat=at_beat),
        "10.0.0.9:9464": _shared(results, from_beat=at_beat + 2),
    }


def _two_exporters(results: Sequence[Result]) -> dict[str, Shown]:
    return {NODES[0]: _shared(results), NODES[1]: _shared(results, late=1)}


FLEETS: dict[str, Callable[[Sequence[Result]], dict[str, Shown]]] = {
    "one node": _one_node,
    "three nodes in turn": _three_in_turn,
    "a new node": _a_new_node,
    "a pod rolled out": _a_pod_rolled_out,
    "two exporters of one store": _two_exporters,
}


def _series(fleet: Mapping[str, Shown], kind: Callable[[Result], str] = lambda result: "beside") -> dict[str, str]:
    """All exporters' series in promtool's notation. kind: of each result's baseline."""
    values: dict[str, str] = {}
    for instance, shown in fleet.items():
        target = {"job": "observatory", "instance": instance}
        completed = [None if one is None else one.completed_s for one in shown]
        values[select(RUN_LAST_COMPLETION, **SERIES, **target)] = _written(completed)
        for baseline in {kind(one) for one in shown if one is not None}:
            labels = {**SERIES, **KIND, "baseline": baseline, **target}
            for which, offset in zip(STATISTICS, (0.0, -HALF_INTERVAL, HALF_INTERVAL), strict=True):
                values[select(RUN_SCALING_EFFICIENCY.statistic(which), **labels)] = _written(
                    [one.efficiency + offset if one is not None and kind(one) == baseline else None for one in shown]
                )
    return values


def _written(values: Sequence[float | None]) -> str:
    """A series that goes stale where its exporter is gone."""
    return " ".join("stale" if value is None else f"{value:.6f}" for value in values)


def _low(baseline: str = "beside") -> list[dict[str, object]]:
    return [alert_of({**SERIES, **KIND, "baseline": baseline}, LOW)]


@pytest.mark.parametrize("fleet", FLEETS.values(), ids=FLEETS)
def test_a_drop_is_one_alert_whoever_shows_it(
    fleet: Callable[[Sequence[Result]], dict[str, Shown]], tmp_path: Path
) -> None:
    before, after = LAST * 24 - 1, LAST * 24 + 3
    rehearse(_series(fleet(_nightly((*BEFORE, LOW)))), {before: [], after: _low()}, tmp_path)


@pytest.mark.parametrize("fleet", FLEETS.values(), ids=FLEETS)
def test_usual_nights_are_silent_whoever_shows_them(
    fleet: Callable[[Sequence[Result]], dict[str, Shown]], tmp_path: Path
) -> None:
    every_hour = dict.fromkeys(range((LAST + 1) * 24), ())
    rehearse(_series(fleet(_nightly((*BEFORE, 0.89)))), every_hour, tmp_path)


def test_a_low_result_that_another_node_made_good_is_over(tmp_path: Path) -> None:
    nights = _series(_three_in_turn(_nightly((*BEFORE, LOW, 0.90))))
    rehearse(nights, {LAST * 24 + 23: _low(), (LAST + 1) * 24 + 3: []}, tmp_path)


def test_an_older_low_result_is_not_judged_again_when_the_newest_goes(tmp_path: Path) -> None:
    results = _nightly((*BEFORE, LOW, 0.90))
    gone = _three_in_turn(results)
    newest = NODES[(LAST + 1) % len(NODES)]
    gone[newest] = [one if beat < (LAST + 1) * NIGHT + 2 else None for beat, one in enumerate(gone[newest])]
    rehearse(_series(gone), {(LAST + 1) * 24 + hours: [] for hours in range(2, 24)}, tmp_path)


def test_a_result_of_a_clock_that_is_ahead_hides_no_other(tmp_path: Path) -> None:
    ahead = [Result(efficiency=0.9, completed_s=1e6 * BEAT_S)] * ((LAST + 1) * NIGHT)
    fleet = {**_one_node(_nightly((*BEFORE, LOW))), NODES[1]: ahead}
    rehearse(_series(fleet), {LAST * 24 + 3: _low()}, tmp_path)


def test_results_compare_with_those_of_the_same_kind_of_baseline(tmp_path: Path) -> None:
    fleet = _one_node(_nightly((*BEFORE, LOW)))
    last_alone = _series(fleet, lambda result: "history" if result.efficiency == LOW else "beside")
    rehearse(last_alone, {LAST * 24 + hours: [] for hours in range(24)}, tmp_path)
    rehearse(_series(fleet, lambda result: "history"), {LAST * 24 + 3: _low("history")}, tmp_path)


def test_nights_count_though_rules_are_evaluated_more_seldom_than_prometheus_looks_back(tmp_path: Path) -> None:
    beat_minutes = 11  # No divisor of a day, and more than the five minutes of the look back.
    nights = THRESHOLDS.efficiency.least_nights + 2  # A result just after midnight is of the next day.
    beats = nights * 24 * 60 // beat_minutes
    series = {
        name: _written([by_hour[minutes // 60] for minutes in range(0, beats * beat_minutes, beat_minutes)])
        for name, by_hour in _hours(_nightly((*USUAL[: nights - 1], LOW))).items()
    }
    rehearse(series, {nights * 24 - 1: _low()}, tmp_path, beat_minutes=beat_minutes)


def _hours(results: Sequence[Result]) -> dict[str, list[float]]:
    """Values of one node's series, one each hour."""
    series = _series(_one_node(results))
    return {name: [float(value) for value in values.split()] for name, values in series.items()}
