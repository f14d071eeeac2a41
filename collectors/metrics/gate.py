"""Metrics of the gate: what it says now of each figure of a suite, and what a suite's newest night lacks.

A figure is identified by what it measures: suite, case, ranks, hardware, series, and name (`step`, `efficiency weak`).
"""

from __future__ import annotations

from collectors.metrics.metric import NODE, metrics_in

VERDICT = NODE.info(
    "observatory_verdict_info{suite, case, ranks, hardware, series, figure, verdict}",
    "What the gate says of a figure of a suite, on the newest night that measured it or by what is open from before:"
    " same (the night shows that nothing changed), no_change_shown (a change may be too small to be seen),"
    " insufficient_data, suspicion, regression, confirmed, creep, improvement, recovered, faster_baseline, accepted or"
    " late; the value is always 1.",
)
VERDICT_NIGHT = NODE.gauge(
    "observatory_verdict_night_timestamp_seconds{suite, case, ranks, hardware, series, figure}",
    "Unix time at which the run began that the verdict on a figure is of.",
)


# How much a figure changed, since when, and why.

VERDICT_CHANGE = NODE.gauge(
    "observatory_verdict_change_ratio{suite, case, ranks, hardware, series, figure}",
    "Change of a figure: its present level, divided by the level that it is judged against, less 1; 0.05 is 5 % more."
    " Where no change was found, the newest value against what earlier nights predict.",
)
VERDICT_CHANGE_LOW = NODE.gauge(
    "observatory_verdict_change_low_ratio{suite, case, ranks, hardware, series, figure}",
    "Lower end of the 95 % interval of a figure's change; absent where there is none.",
)
VERDICT_CHANGE_HIGH = NODE.gauge(
    "observatory_verdict_change_high_ratio{suite, case, ranks, hardware, series, figure}",
    "Upper end of the 95 % interval of a figure's change; absent where there is none.",
)
VERDICT_SINCE = NODE.gauge(
    "observatory_verdict_since_timestamp_seconds{suite, case, ranks, hardware, series, figure}",
    "Unix time at which the first night of a figure's change began; absent where no change was found.",
)
VERDICT_CAUSE = NODE.gauge(
    "observatory_verdict_cause_timestamp_seconds{suite, case, ranks, hardware, series, figure, run, good_run, cause}",
    "Of a figure that is worse, Unix time of the night that tells its likely cause: the run that it was measured in,"
    " the last one before the change, and the cause with its evidence; what is not known is empty.",
)


# Levels that people have accepted.

ACCEPTED_CHANGE = NODE.gauge(
    "observatory_accepted_change_ratio{suite, case, ranks, hardware, series, figure}",
    "Newest value of a figure, divided by the level that a person accepted, less 1; absent where nobody accepted one.",
)
ACCEPTED_EFFICIENCY = NODE.gauge(
    "observatory_accepted_scaling_efficiency_ratio{suite, case, ranks, hardware, series, figure}",
    "Scaling efficiency that a person accepted as the level of a figure; absent where nobody accepted one.",
    better="higher",
)


# What is missing.

SUITE_NIGHT = NODE.gauge(
    "observatory_suite_night_timestamp_seconds{suite}",
    "Unix time at which the newest ended night of a suite began, which tells what is missing.",
)
SUITE_MISSING = NODE.gauge(
    "observatory_suite_missing_cases{suite, kind}",
    "Cases that the newest ended night of a suite lacks beside what failed: those that earlier nights have (vanished),"
    " and those that have a figure no longer (stopped).",
)

METRICS = metrics_in(globals())
