"""Metrics of the gate: its current verdict on each figure of a suite, and the cases that the newest night lacks.

A figure is identified by what it measures: suite, case, ranks, hardware, series, and name (`step`, `efficiency weak`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from collectors.metrics.metric import NODE, metrics_in

Outcome = Literal[
    "confirmed",
    "regression",
    "lasting",
    "redefined",
    "standing",
    "mixture",
    "creep",
    "suspicion",
    "improvement",
    "recovered",
    "faster_baseline",
    "accepted",
    "late",
    "insufficient_data",
    "same",
]
"""Outcomes as the store records them."""
ShownOutcome = Outcome | Literal["no_change_shown"]
"""Outcomes as reports show them: `same` only if the night shows that nothing changed."""
Standing = Literal["confirmed", "found", "crept", "watch", "better", "well", "unclear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeSpec:
    """The display name and the meaning of an outcome.

    standing: confirmed, found and crept are worse: `observatory check` exits with code 5, and the alerts
    RegressionConfirmed, RegressionFound and LevelCrept fire. Boards list crept and watch under "to be watched".
    """

    name: ShownOutcome
    words: str
    standing: Standing
    meaning: str


def _outcome(name: ShownOutcome, words: str, standing: Standing, meaning: str) -> OutcomeSpec:
    return OutcomeSpec(name=name, words=words, standing=standing, meaning=meaning)


OUTCOMES = (
    _outcome("confirmed", "confirmed worse", "confirmed", "for the worse, and later nights agree"),
    _outcome("regression", "regression", "found", "for the worse, by reruns of the same night"),
    _outcome("lasting", "lasting", "found", "a regression that has been open for a week, neither confirmed nor gone"),
    _outcome("redefined", "worse by definition", "found", "worse since the definition of the case changed"),
    _outcome("standing", "standing worse", "confirmed", "on a worse level, which only many nights together show"),
    _outcome("mixture", "more bad nights", "confirmed", "bad nights have become more frequent"),
    _outcome("creep", "crept", "crept", "worse step by step, or than a level that was accepted; each night passed"),
    _outcome("suspicion", "suspicion", "watch", "an unlikely night that reruns did not confirm, or without reruns"),
    _outcome("improvement", "improvement", "better", "for the better, by reruns or later nights"),
    _outcome("recovered", "recovered", "better", "a change of an earlier night has closed itself"),
    _outcome("faster_baseline", "faster baseline", "well", "an efficiency fell because its baseline became faster"),
    _outcome("accepted", "accepted", "well", "worse, but a person accepted it, or within the margin of the case"),
    _outcome("late", "left out", "watch", "the run began more than a day before a night that is judged already"),
    _outcome("insufficient_data", "insufficient data", "unclear", "too few nights or trials"),
    _outcome("same", "same", "well", "the night shows that nothing changed"),
    _outcome("no_change_shown", "no change shown", "unclear", "a change may be too small to detect"),
)
"""All outcomes of a verdict, worst first. Tables, exit codes, boards and alerts follow from these lines."""


def outcomes_of(*standings: Standing) -> tuple[ShownOutcome, ...]:
    """Return the outcomes with these standings, worst first."""
    return tuple(outcome.name for outcome in OUTCOMES if outcome.standing in standings)


PATTERNS = {
    "verdicts.confirmed": "|".join(outcomes_of("confirmed")),
    "verdicts.found": "|".join(outcomes_of("found")),
    "verdicts.crept": "|".join(outcomes_of("crept")),
    "verdicts.worse": "|".join(outcomes_of("confirmed", "found")),
    "verdicts.watch": "|".join(outcomes_of("crept", "watch")),
    "verdicts.well": "|".join(outcomes_of("better", "well")),
}
"""Regular expressions for the label `verdict`, by the names that boards and rules use."""

VERDICT = NODE.info(
    "observatory_verdict_info{suite, case, ranks, hardware, series, figure, verdict}",
    "The gate's verdict on a figure of a suite, for the newest night that measured it, or carried over from"
    f" earlier nights: {'; '.join(f'{outcome.name}: {outcome.meaning}' for outcome in OUTCOMES)}. The value is always"
    " 1.",
)
VERDICT_NIGHT = NODE.gauge(
    "observatory_verdict_night_timestamp_seconds{suite, case, ranks, hardware, series, figure}",
    "Unix time at which the run that a figure's verdict is based on began.",
)


# The size, start and cause of a figure's change.

VERDICT_CHANGE = NODE.gauge(
    "observatory_verdict_change_ratio{suite, case, ranks, hardware, series, figure}",
    "Change of a figure: its present level, divided by the level that it is judged against, minus 1; 0.05 means"
    " 5 % more. If no change was found, the newest value compared with what earlier nights predict.",
)
VERDICT_CHANGE_LOW = NODE.gauge(
    "observatory_verdict_change_low_ratio{suite, case, ranks, hardware, series, figure}",
    "Lower end of the 95 % interval of a figure's change; absent if there is none.",
)
VERDICT_CHANGE_HIGH = NODE.gauge(
    "observatory_verdict_change_high_ratio{suite, case, ranks, hardware, series, figure}",
    "Upper end of the 95 % interval of a figure's change; absent if there is none.",
)
VERDICT_SINCE = NODE.gauge(
    "observatory_verdict_since_timestamp_seconds{suite, case, ranks, hardware, series, figure}",
    "Unix time at which the first night of a figure's change began; absent if no change was found.",
)
VERDICT_CAUSE = NODE.gauge(
    "observatory_verdict_cause_timestamp_seconds{suite, case, ranks, hardware, series, figure, run, good_run, cause}",
    "Unix time of the night that shows the likely cause of a worse figure. Labels: the run that measured it,"
    " the last run before the change, and the cause with its evidence; unknown values are empty.",
)


# Levels that people have accepted.

ACCEPTED_CHANGE = NODE.gauge(
    "observatory_accepted_change_ratio{suite, case, ranks, hardware, series, figure}",
    "Newest value of a figure, divided by the level that a person accepted, minus 1; absent if nobody accepted one.",
)
ACCEPTED_EFFICIENCY = NODE.gauge(
    "observatory_accepted_scaling_efficiency_ratio{suite, case, ranks, hardware, series, figure}",
    "Scaling efficiency that a person accepted as the level of a figure; absent if nobody accepted one.",
    better="higher",
)


# What is missing.

SUITE_NIGHT = NODE.gauge(
    "observatory_suite_night_timestamp_seconds{suite}",
    "Unix time at which the newest ended night of a suite began; the missing cases are those of this night.",
)
SUITE_MISSING = NODE.gauge(
    "observatory_suite_missing_cases{suite, kind}",
    "Cases that the newest ended night of a suite lacks, apart from failed ones: cases that only earlier nights"
    " have (vanished), and cases that no longer have all their figures (stopped).",
)

METRICS = metrics_in(globals())
