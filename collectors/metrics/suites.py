"""Metrics of suites: runs and cases by outcome, start, progress and end of the newest run, and the running cases."""

from __future__ import annotations

from collectors.metrics.metric import NODE, metrics_in

# The whole history. Counters never decrease: a case that failed and then succeeded when repeated counts under both.

SUITE_RUNS = NODE.counter(
    "observatory_suite_runs_total{suite, outcome}",
    "Runs of a suite in the history that have ended, by outcome: done, failed or interrupted.",
)
SUITE_CASES = NODE.counter(
    "observatory_suite_cases_total{suite, outcome}",
    "Cases that have ended in all runs of a suite in the history, by outcome: done, failed, timed_out, interrupted,"
    " skipped, left_out or dropped.",
)


# The newest ended run of each suite, and active runs.

SUITE_LAST_CASES = NODE.gauge(
    "observatory_suite_last_cases{suite, run, outcome}",
    "Cases of the newest ended run of a suite and of each active run, by outcome: done, failed, timed_out,"
    " interrupted, skipped, left_out or dropped; missing, if the run ended without them; running and waiting, for an"
    " active run only.",
)
SUITE_LAST_PROGRESS = NODE.gauge(
    "observatory_suite_last_progress_timestamp_seconds{suite, run}",
    "Unix time at which a run of a suite last ended a step, or began or ended a case; at most 10 s late. For"
    " the newest ended run, the time of its end. Exported for the same runs as observatory_suite_last_cases.",
)
SUITE_LAST_START = NODE.gauge(
    "observatory_suite_last_start_timestamp_seconds{suite}", "Unix time at which the newest run of a suite began."
)
SUITE_LAST_END = NODE.gauge(
    "observatory_suite_last_end_timestamp_seconds{suite}",
    "Unix time at which the newest ended run of a suite ended.",
)
SUITE_PERIOD = NODE.gauge(
    "observatory_suite_period_seconds{suite}",
    "Time from one start of a suite to the next, as its file declares it; absent if the newest run declares none.",
)
SUITE_CASE_INFO = NODE.info(
    "observatory_suite_case_info{suite, run, case}",
    "A running case of an active run of a suite; the value is always 1.",
)
SUITE_CASE_FAILURE = NODE.info(
    "observatory_suite_case_failure_info{suite, run, case, case_run, outcome, rank, cause}",
    "A case that failed or timed out in the newest ended run of a suite or in an active one: the run of the"
    " case, the rank that failed first (empty if unknown) and what happened to it; at most 20 for each run; the"
    " value is always 1.",
)

METRICS = metrics_in(globals())
