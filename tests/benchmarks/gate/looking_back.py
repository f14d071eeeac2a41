"""What looking back adds to the nightly rule, by scenario, and whether a series can show what it says it can.

    python -m tests.benchmarks.gate.looking_back [--series N] [--only WORDS]
    python -m tests.benchmarks.gate.looking_back --visible [--series N] [--kind KIND ...]

Of each scenario: the share of series whose change for the worse is confirmed within 60 nights by the nightly rule, and
by it or by looking back; the median night; and what was reported before the change. With --visible, of each kind of
tests/benchmarks/gate/kinds.py and length of history: the smallest change that `check` says it would confirm, and the
share of series that confirm a change of 0.6 to 1.6 times that size within 14 nights.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.gate.detector.detector import JudgedNight, judge
from bench.gate.detector.look_back import begun_again, look_back
from bench.gate.detector.night import Night, TrialSample
from bench.gate.detector.power import WITHIN_NIGHTS, visible
from bench.gate.detector.state import SeriesState
from tests.benchmarks.gate.kinds import KINDS
from tests.benchmarks.gate.made_series import MadeSeries, made
from tests.benchmarks.gate.scored_series import told_on, whole_night, wilson

AFTER = 60
HISTORIES = (12, 20, 30, 60, 100)
SIZES = (0.6, 0.8, 1.0, 1.25, 1.6)
Level = Callable[[random.Random, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """before, after: the level of each night of the history and after it, by its place there."""

    name: str
    history: int
    night_sd: float
    trial_sd: float
    before: Level
    after: Level

    def nights(self, seed: int) -> list[Night]:
        generator = random.Random(seed)
        levels = [self.before(generator, place) for place in range(self.history)]
        levels += [self.after(generator, place) for place in range(AFTER)]
        nights = []
        for number, level in enumerate(levels):
            middle = level + generator.gauss(0, self.night_sd)
            values = [middle + generator.gauss(0, self.trial_sd) for _ in range(3)]
            trials = tuple(TrialSample(log_median=value, mad=0.01, steps=30, placement="pool") for value in values)
            nights.append(Night(number=number, trials=trials))
        return nights


def flat(_: random.Random, __: int) -> float:
    return 0.0


def slow(share: float, percent: float) -> Level:
    return lambda generator, _: math.log1p(percent / 100) * (generator.random() < share)


def every_second(percent: float) -> Level:
    return lambda _, place: math.log1p(percent / 100) * (place % 2)


def ramp(percent: float, nights: int) -> Level:
    return lambda _, place: math.log1p(percent / 100) * min(place + 1, nights) / nights


def scenario(name: str, history: int, sd_percent: float, after: Level, before: Level = flat) -> Scenario:
    night_sd = sd_percent / 100
    return Scenario(
        name=f"{name}, nights differ by {sd_percent:g} %, after {history} nights",
        history=history,
        night_sd=night_sd,
        trial_sd=night_sd / 2,
        before=before,
        after=after,
    )


SCENARIOS = (
    *(scenario("10 % -> 90 % of nights 30 % slower", nights, 1, slow(0.9, 30), slow(0.1, 30)) for nights in (30, 60)),
    scenario("10 % -> 90 % of nights 10 % slower", 60, 1, slow(0.9, 10), slow(0.1, 10)),
    *(scenario("twice as slow", nights, 30, lambda _, __: math.log(2)) for nights in (12, 30)),
    *(scenario("+4 % over 32 nights", 60, sd, ramp(4, 32)) for sd in (0.5, 1)),
    *(scenario("every second night +30 %", nights, 1, every_second(30)) for nights in (30, 60)),
    scenario("every second night +10 %", 60, 2, every_second(10)),
    scenario("+4.3 % over 14 nights", 40, 0.02, ramp(4.3, 14)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Nights of the change until it is confirmed: by the nightly rule alone, and with looking back, and by which.

    early: what either reported before the change.
    """

    alone: int | None
    together: int | None
    by: str
    early: int


def is_worse_page(judged: JudgedNight) -> bool:
    alert = judged.alert
    is_page = judged.verdict in ("page", "recovered") and alert is not None and alert.tier == 2
    return is_page and alert is not None and alert.direction > 0


def outcome_of(tried: Scenario, seed: int) -> Outcome:
    state: SeriesState | None = None
    nights = tried.nights(seed)
    early = 0
    for place, night in enumerate(nights):
        judged = judge(state, night)
        after = place - tried.history + 1
        if after > 0 and is_worse_page(judged):
            return Outcome(alone=after, together=after, by="page", early=early)
        early += after <= 0 and judged.verdict == "page"
        state = judged.state
        standing = look_back(state)
        if standing is None:
            continue
        if after > 0 and standing.direction > 0:
            alone = page_after(state, nights[place + 1 :])
            alone = None if alone is None else after + alone
            return Outcome(alone=alone, together=after, by=standing.kind, early=early)
        early += after <= 0
        state = begun_again(state, standing)
    return Outcome(alone=None, together=None, by="-", early=early)


def page_after(state: SeriesState, nights: Sequence[Night]) -> int | None:
    """Return after how many of these nights the nightly rule confirms a change for the worse."""
    for passed, night in enumerate(nights, start=1):
        judged = judge(state, night)
        if is_worse_page(judged):
            return passed
        state = judged.state
    return None


def share_words(delays: Sequence[int], count: int) -> str:
    low, high = wilson(len(delays), count)
    nights = f", n{median(delays):.0f}" if delays else ""
    return f"{100 * len(delays) / count:.0f} % [{100 * low:.0f}, {100 * high:.0f}]{nights}"


def scenarios_table(count: int, words: str) -> None:
    print("| scenario | nightly rule | with looking back | by | reported before |\n|---|---|---|---|---|")
    for tried in SCENARIOS:
        if words not in tried.name:
            continue
        outcomes = [outcome_of(tried, seed) for seed in range(count)]
        alone = [outcome.alone for outcome in outcomes if outcome.alone is not None]
        together = [outcome.together for outcome in outcomes if outcome.together is not None]
        ways = ", ".join(f"{way} {number}" for way, number in Counter(each.by for each in outcomes).most_common())
        early = sum(outcome.early for outcome in outcomes)
        print(
            f"| {tried.name} | {share_words(alone, count)} | {share_words(together, count)} | {ways} | {early} |",
            flush=True,
        )


def visible_table(count: int, kinds: Sequence[str], seed: int) -> None:
    print("| kind | history | smallest | " + " | ".join(f"x {size:g}" for size in SIZES) + " |")
    print("|---|---|---|" + "---|" * len(SIZES))
    for kind in kinds:
        parts = [visible_of(kind, number, seed) for number in range(count)]
        for history in HISTORIES:
            said = median(part[history][0] for part in parts)
            hits = [sum(part[history][1][place] for part in parts) for place in range(len(SIZES))]
            shares = " | ".join(f"{100 * hit / count:.0f} %" for hit in hits)
            print(f"| {kind} | {history} | {100 * said:.2g} % | {shares} |", flush=True)


def visible_of(kind: str, number: int, seed: int) -> dict[int, tuple[float, list[bool]]]:
    """Return for each history what the series says it can show, and whether it shows each multiple of that."""
    series = made(KINDS, kind, seed, number, nights=max(HISTORIES) + WITHIN_NIGHTS)
    state: SeriesState | None = None
    answers: dict[int, tuple[float, list[bool]]] = {}
    for position in range(max(HISTORIES) + 1):
        if position in HISTORIES:
            assert state is not None
            said = visible(state)
            assert said is not None
            steps = [size * math.log1p(said.smallest) for size in SIZES]
            answers[position] = said.smallest, [is_shown(state, series, position, step) for step in steps]
        state = whole_night(state, series, position)[0].state
    return answers


def is_shown(state: SeriesState, series: MadeSeries, onset: int, step: float) -> bool:
    for position in range(onset, onset + WITHIN_NIGHTS):
        judged, _ = whole_night(state, series, position, step)
        news = told_on(series, position, state, judged)
        if news is not None and news.tier == 2 and news.direction > 0:
            return True
        state = judged.state
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--only", default="", help="words of the scenarios' names")
    parser.add_argument("--visible", action="store_true")
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.visible:
        kinds = arguments.kind or ["plain", "sd 1 %", "sd 3 %", "sd 10 %", "correlation 0.5"]
        visible_table(arguments.series, kinds, arguments.seed)
    else:
        scenarios_table(arguments.series, arguments.only)


if __name__ == "__main__":
    main()
