"""Metrics that tell what the others are of: which run, which rank, which result."""

from __future__ import annotations

from collectors.metric import Metric

RUN_INFO = Metric(
    name="observatory_run_info",
    kind="info",
    unit="info",
    scope="node",
    labels=("run", "slot", "strategy", "ranks", "series"),
    help="A run that goes on now, and the slot that its ranks' series carry; the value is always 1.",
)
RANK_INFO = Metric(
    name="observatory_rank_info",
    kind="info",
    unit="info",
    scope="rank",
    labels=("run", "host"),
    help="A rank of a run that goes on now: which run it is of, and where it runs; the value is always 1.",
)
RESULT_INFO = Metric(
    name="observatory_result_info",
    kind="info",
    unit="info",
    scope="node",
    labels=("series", "run", "strategy"),
    help="The newest run of a series that ended well and is not ad hoc, whose results are shown; the value is always"
    " 1.",
)
RUN_LAST_COMPLETION = Metric(
    name="observatory_run_last_completion_timestamp_seconds",
    kind="gauge",
    unit="timestamp_seconds",
    scope="node",
    labels=("strategy", "ranks", "device", "precision", "series"),
    help="Unix time at which the newest run of a series that is not ad hoc ended well.",
)

METRICS = (RUN_INFO, RANK_INFO, RESULT_INFO, RUN_LAST_COMPLETION)
