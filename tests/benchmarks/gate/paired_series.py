"""What pairs of source trees add to the gate: the judge's series, half of whose shifts come from the environment.

    .venv/bin/python -m tests.benchmarks.gate.paired_series --judge FOLDER --seeds 40 41 42 43

Each shift is drawn to be of the code or of the environment. A likely change is measured by eight pairs of both trees
on its night, as `suite run` does it: both trials of a pair share the night's effect and the placement, and have a
trial's own noise each. Prints the score with and without pairs, with 95 % intervals over series, and how often each
kind of change is told as which.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bench.gate.cause.attribution import SETTINGS, attribute
from bench.gate.detector.detector import JudgedNight, confirm_by_rerun, judge
from bench.gate.detector.night import Night
from bench.gate.detector.paired import likely_change, page_by_pairs
from bench.gate.detector.state import SeriesState
from tests.benchmarks.gate.judged_series import Alerts, evenly, load, trials_of

BOOTSTRAPS = 1_000


@dataclass(slots=True)
class Paired:
    """A series judged with or without pairs.

    pages: as the judge scores them. told: of each detected shift, what it is and what it was told as. pair_trials: that
    pairs took.
    """

    events: list[dict[str, Any]]
    nights: int
    pages: Alerts = field(default_factory=list)
    first_alerts: Alerts = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)
    trials: int = 0
    pair_trials: int = 0


def judged(series: Mapping[str, Any], profile: Mapping[str, float], *, has_pairs: bool) -> Paired:
    """Judge a series night by night. profile: the generator's noise."""
    chance, night_chance = random.Random(series["name"]), random.Random(f"{series['name']} pairs")
    shifts = [event for event in series["events"] if event["type"] == "shift"]
    # What comes back was of the same kind: a revert, or a repaired machine.
    kinds = ["code" if chance.random() < 0.5 else "environment"] * len(shifts)
    result = Paired(events=series["events"], nights=len(series["history"]))
    state: SeriesState | None = None
    asked_until = {1: -1, -1: -1}
    told: dict[int, str] = {}
    for position, night in enumerate(series["history"]):
        again = night["rerun"](3)
        trials = trials_of(night["samples"], night["trial"], night["host"])
        result.trials += len(trials)
        found = judge(state, Night(number=position, trials=trials))
        if found.reruns_wanted:
            result.trials += 3
            found = confirm_by_rerun(found.state, trials_of(*again))
        if found.is_new and found.verdict == "alert" and found.alert is not None:
            result.first_alerts.append(_alert(found, position))
        if has_pairs and (question := _question(found, asked_until)) is not None:
            direction, onset_low, suspected = question
            asked_until[direction] = position
            result.pair_trials += 2 * SETTINGS.pairs
            of_code = sum(
                event["direction"] * np.log1p(event["mag"] / 100)
                for event, kind in zip(shifts, kinds, strict=True)
                if kind == "code" and onset_low <= event["onset"] <= position
            )
            present = [trial.log_median for trial in trials_of(*night["rerun"](SETTINGS.pairs))]
            good = [value + _pair_noise(profile, night_chance) for value in present]
            before = [each.log_value for each in found.state.nights if each.number < onset_low]
            outcome, _, _ = attribute([value - of_code for value in good], present, before, suspected)
            told[direction] = outcome
            if outcome in ("code", "both") and found.verdict not in ("page", "recovered"):
                found = page_by_pairs(found, direction)
        state = found.state
        if found.is_new and found.verdict == "page" and found.alert is not None:
            result.pages.append(_alert(found, position))
            for event, kind in zip(shifts, kinds, strict=True):
                if abs(event["onset"] - found.alert.onset) <= 5 and event["direction"] == found.alert.direction:
                    result.told.append((kind, told.get(found.alert.direction, "not asked")))
    return result


def _alert(found: JudgedNight, position: int) -> dict[str, int]:
    assert found.alert is not None
    return {"index": found.alert.onset, "direction": found.alert.direction, "raised_at": position}


def _question(found: JudgedNight, asked_until: Mapping[int, int]) -> tuple[int, int, float] | None:
    """Return direction, earliest onset and size of the change that is worth pairs, if there is one."""
    candidates = []
    if found.alert is not None and found.verdict in ("alert", "page"):
        alert = found.alert
        candidates.append((1.0, alert.direction, alert.onset_low, alert.log_change))
    for direction in (1, -1):
        likely = likely_change(found.state, direction)
        if likely is not None and likely.probability >= SETTINGS.probability:
            candidates.append((likely.probability, direction, likely.onset_low, likely.log_change))
    candidates = [each for each in candidates if asked_until[each[1]] < each[2]]
    if not candidates:
        return None
    _, direction, onset_low, change = max(candidates)
    return direction, onset_low, change


def _pair_noise(profile: Mapping[str, float], chance: random.Random) -> float:
    """Return how far one trial of a pair is from the other, by the generator's noise of a trial.

    The median of 30 steps with 4 degrees of freedom has 0.172 of a step's deviation; one trial in fifty is a bad one.
    """
    sd = math.hypot(profile["sb"], 0.172 * profile["sw"])
    bad = [chance.uniform(0.04, 0.2) if chance.random() < 0.02 else 0.0 for _ in range(2)]
    return chance.gauss(0.0, math.sqrt(2) * sd) + bad[0] - bad[1]


# The score.


def scored(core: ModuleType, results: Sequence[Paired], alerts: str) -> list[Any]:
    """Return the judge's counts of each series; alerts before its first scored night do not count."""
    return [
        core.score_online(
            [each for each in getattr(result, alerts) if each["raised_at"] >= core.WARMUP], result.events, result.nights
        )
        for result in results
    ]


def interval(core: ModuleType, counts: Sequence[Any], name: str) -> tuple[float, float]:
    """Return a 95 % interval of a figure of the summary, by drawing series anew."""
    chance = np.random.default_rng(1)
    values = []
    for _ in range(BOOTSTRAPS):
        drawn = chance.integers(0, len(counts), len(counts))
        values.append(core.summarise([counts[place] for place in drawn])[name])
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def show(core: ModuleType, without: Sequence[Paired], with_pairs: Sequence[Paired]) -> None:
    """Print the scores of the same series, judged both ways."""
    for name, results in (("without pairs", without), ("with pairs", with_pairs)):
        counts_of_pages = scored(core, results, "pages")
        found, first = core.summarise(counts_of_pages), core.summarise(scored(core, results, "first_alerts"))
        low, high = interval(core, counts_of_pages, "f1")
        least, most = interval(core, counts_of_pages, "fa1000")
        print(
            f"{name}: F1 {found['f1']:.3f} [{low:.3f}, {high:.3f}], precision {found['precision']:.3f}, recall"
            f" {found['recall']:.3f}, false per 1,000 {found['fa1000']:.2f} [{least:.2f}, {most:.2f}], first night:"
            f" pages {found['night0']:.3f}, alerts {first['night0']:.3f}"
        )
    trials, pairs = (sum(getattr(each, name) for each in with_pairs) for name in ("trials", "pair_trials"))
    print(f"pairs take {100 * pairs / trials:.1f} % more trials")
    for kind in ("code", "environment"):
        counts = Counter(told for true, told in (pair for each in with_pairs for pair in each.told) if true == kind)
        total = sum(counts.values())
        words = (
            ", ".join(f"{outcome} {count / total:.3f}" for outcome, count in counts.most_common()) if total else "none"
        )
        print(f"{total} pages of {kind}, told as: {words}")


def main() -> int:
    """Print the scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--judge", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[40, 41, 42, 43])
    parser.add_argument("--series", type=int, help="of each seed; all by default")
    arguments = parser.parse_args()
    core, synth = load(arguments.judge)
    with_pairs: list[Paired] = []
    without: list[Paired] = []
    for seed in arguments.seeds:
        for series in evenly(synth.suite(seed0=seed), arguments.series):
            # Fresh trials are drawn in order, so that each way of judging needs a series of its own.
            again = synth.make(series["profile"], series["kind"], series["mag"], int(series["name"].rsplit("/", 1)[1]))
            with_pairs.append(judged(series, synth.PROFILES[series["profile"]], has_pairs=True))
            without.append(judged(again, synth.PROFILES[series["profile"]], has_pairs=False))
        print(f"to seed {seed}, {len(with_pairs)} series")
        show(core, without, with_pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
