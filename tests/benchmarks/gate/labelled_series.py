"""Real series in which people have marked the changes, read from a folder of SAP HANA's public performance data.

Two forms are read; both have `data/*.csv`, and none is committed here:

- small_2021 of github.com/SAP/performance-regression-data-set: `Index,GHC,Measurement`, and
  `metadata/dataset_details.csv` with the last index before the one change of a series (0: it has none).
- large_2022 of the same: `index_1based,timestamp,sut_version,value`, and beside `data` the `annotations.json` of
  github.com/mtucci/changepoint-performance-regression-study (rq3): of each series and person the positions that begin a
  new level. Series there are medians of versions, in two overlapping parts where they are long.

A build or version is a night, and each of its measurements is a trial. There are no reruns. Series with builds that
measured nothing but 0 are left out.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.gate.detector.night import Night, TrialSample
from bench.gate.detector.state import SeriesState
from tests.benchmarks.gate.judged_series import Alerts, JudgedSeries, whole_night

PARTS = {"": slice(None), "_split1": slice(0, 800), "_split2": slice(750, None)}
"""Which versions of a series each annotated name stands for. Found by where the marks lie on the measured steps."""
FEWEST_PEOPLE = 3
SAME_CHANGE = 2
"""Marks of several people that are no further apart mean one change."""
LONGEST_FIRST_MARK = 30
"""Nights before which neither a mark nor an alarm is scored: the judge's warm-up."""
NEAR = 5
"""Nights by which the onset of an alarm may differ from the mark, as the judge's `MARGIN`."""
_NAME = re.compile(r"sap_(\d+)(_split\d)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSeries:
    """A series with the positions of the nights that begin a new level. number: odd ones are looked at, even kept."""

    name: str
    number: int
    nights: tuple[Night, ...]
    changes: tuple[int, ...]


def read_folder(folder: Path) -> Iterator[LabelledSeries]:
    """Yield the labelled series of a folder.

    Raises:
        FileNotFoundError: it has neither form.
    """
    details, annotations = folder / "metadata" / "dataset_details.csv", folder / "annotations.json"
    if annotations.is_file():
        yield from _large(folder / "data", json.loads(annotations.read_text()))
    elif details.is_file():
        yield from _small(folder / "data", details)
    else:
        raise FileNotFoundError(f"{folder} has neither annotations.json nor metadata/dataset_details.csv")


def _small(data: Path, details: Path) -> Iterator[LabelledSeries]:
    with details.open(newline="") as lines:
        for row in csv.DictReader(lines, delimiter=";"):
            path, last_before = data / row["Dataset"], int(row["Change Point"])
            rows = list(_rows(path, "GHC", "Measurement"))
            builds = _by_build(rows)
            changes: tuple[int, ...] = ()
            if last_before:  # Counts measurements from 1, so that it is also the position of the first one after it.
                changes = (list(builds).index(rows[last_before][0]),)
            yield LabelledSeries(
                name=path.stem, number=int(path.stem), nights=_nights(list(builds.values())), changes=changes
            )


def _large(data: Path, annotations: dict[str, dict[str, list[int]]]) -> Iterator[LabelledSeries]:
    paths = {int(path.name.partition("__")[0]): path for path in data.glob("*.csv")}
    for name, by_person in sorted(annotations.items()):
        known = _NAME.fullmatch(name)  # Others are synthetic, shuffled, or of other systems.
        if known is None or len(by_person) < FEWEST_PEOPLE or int(known[1]) not in paths:
            continue
        builds = _by_build(_rows(paths[int(known[1])], "sut_version", "value"))
        of_part = list(builds.values())[PARTS[known[2] or ""]]
        if all(max(values) > 0 for values in of_part):
            changes = agreed(by_person.values())
            yield LabelledSeries(name=name, number=int(known[1]), nights=_nights(of_part), changes=changes)


def _rows(path: Path, build: str, value: str) -> Iterator[tuple[str, float]]:
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            yield row[build], float(row[value])


def _by_build(rows: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Return the measurements of each build, in the order of the file."""
    builds: dict[str, list[float]] = {}
    for build, value in rows:
        builds.setdefault(build, []).append(value)
    return builds


def _nights(builds: Sequence[Sequence[float]]) -> tuple[Night, ...]:
    """Return a night for each build; measurements of 0 have no logarithm and are left out."""
    return tuple(
        Night(
            number=number,
            trials=tuple(TrialSample(log_median=math.log(value), mad=0.0, steps=1) for value in values if value > 0),
        )
        for number, values in enumerate(builds)
    )


def agreed(by_person: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the changes that at least half of the people have marked, each at the median of their marks."""
    people = [list(marks) for marks in by_person]
    marks = sorted((mark, person) for person, marks in enumerate(people) for mark in marks)
    clusters: list[list[tuple[int, int]]] = []
    for mark in marks:
        if clusters and mark[0] - clusters[-1][-1][0] <= SAME_CHANGE:
            clusters[-1].append(mark)
        else:
            clusters.append([mark])
    return tuple(
        round(median(position for position, _ in cluster))
        for cluster in clusters
        if 2 * len({person for _, person in cluster}) >= len(people)
    )


def judged_without_reruns(series: LabelledSeries) -> JudgedSeries:
    """Judge a series night by night. What is confirmed is an alarm, also that a level is back."""
    state: SeriesState | None = None
    pages: Alerts = []
    numbers = [night.number for night in series.nights]
    for night in series.nights:
        judged, _ = whole_night(state, night, None)
        state = judged.state
        alert = judged.alert
        if alert is not None and alert.tier == 2 and (judged.is_new or judged.verdict == "recovered"):
            pages.append({"index": alert.onset, "direction": alert.direction, "raised_at": night.number})
    return JudgedSeries(
        name=series.name,
        profile="labelled",
        events=[{"type": "shift", "onset": change} for change in series.changes],
        nights=len(numbers),
        trials=sum(len(night.trials) for night in series.nights),
        extra_trials=0,
        alerts={"tier 2": pages},
        values=[math.exp(median(trial.log_median for trial in night.trials)) for night in series.nights],
        reruns=None,
    )


def counts_of_marks(series: JudgedSeries, alarms: Alerts) -> list[float]:
    """Return what is right and wrong of the alarms, in the order of `tests.benchmarks.detector.COUNTS`.

    An alarm is right if its onset is near a mark; further ones of the same mark count neither way.
    """
    changes = [event["onset"] for event in series.events if event["onset"] >= LONGEST_FIRST_MARK]
    delays: dict[int, int] = {}
    false = 0
    for alarm in sorted(alarms, key=lambda alarm: alarm["raised_at"]):
        if alarm["index"] < LONGEST_FIRST_MARK - NEAR:
            continue
        near = [change for change in changes if abs(change - alarm["index"]) <= NEAR]
        if not near:
            false += 1
            continue
        fresh = [change for change in near if change not in delays]
        if fresh:
            change = min(fresh, key=lambda change: abs(change - alarm["index"]))
            delays[change] = max(alarm["raised_at"] - change, 0)
    first = sum(delay == 0 for delay in delays.values())
    nights = series.nights - LONGEST_FIRST_MARK
    return [len(delays), false, 0, len(changes), first, nights, sum(delays.values())]
