"""Metrics of the gate: its current verdict on each figure of a suite, and what a suite's newest night lacks.

A figure is identified by what it measures: suite, case, ranks, hardware, series, and name (`step`, `efficiency weak`).
"""

from __future__ import annotations

from collectors.metrics.metric import NODE, metrics_in

VERDICT = NODE.info(
    "observatory_verdict_info{suite, case, ranks, hardware, series, figure, verdict}",
    "The gate's verdict on a figure of a suite, for the newest night that measured it, or carried over from"
    " earlier nights: same (the night shows that nothing changed), no_change_shown (a change may be too small"
    " to detect), insufficient_data, suspicion, regression, confirmed, creep, improvement, recovered,"
    " faster_baseline, accepted or late; the value is always 1.",
)
VERDICT_NIGHT = NODE.gauge(
    "observatory_verdict_night_timestamp_seconds{suite, case, ranks, hardware, series, figure}",
    "Unix time at which the run that a figure's verdict is based on began.",
)


# How much a figure changed, since when, and why.

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
