"""Metrics of the node's agent itself (cost, beat, age of its samples), and info about live runs and newest results."""

from __future__ import annotations

from collectors.metrics.metric import Metric

# The agent itself: what polling costs, whether it keeps its beat, how old its samples are.

AGENT_CPU_SECONDS = Metric(
    name="observatory_agent_cpu_seconds_total",
    kind="counter",
    unit="seconds",
    scope="node",
    help="CPU time that the agent's process has taken, user and system, all its threads and scrapes included.",
)
AGENT_BEAT_SECONDS = Metric(
    name="observatory_agent_beat_seconds",
    kind="gauge",
    unit="seconds",
    scope="node",
    help="Time between two beats, as the agent was told; at each beat it asks all collectors.",
)
AGENT_BEATS = Metric(
    name="observatory_agent_beats_total",
    kind="counter",
    unit="beats",
    scope="node",
    help="Beats that the agent kept: times at which it asked all collectors.",
)
AGENT_MISSED_BEATS = Metric(
    name="observatory_agent_missed_beats_total",
    kind="counter",
    unit="beats",
    scope="node",
    help="Beats that went by while the collectors or the machine took too long; they are never made up for.",
)
AGENT_LATENESS_SECONDS = Metric(
    name="observatory_agent_lateness_seconds_total",
    kind="counter",
    unit="seconds",
    scope="node",
    help="Time between the moments of the kept beats and when each began; divided by beats, how late one is.",
)
AGENT_AGE_SECONDS = Metric(
    name="observatory_agent_age_seconds",
    kind="gauge",
    unit="seconds",
    scope="node",
    labels=("collector",),
    help="Age, at the scrape, of what is shown of a collector; more than a beat where it keeps the agent waiting.",
)
AGENT_COLLECTOR = Metric(
    name="observatory_agent_collector_info",
    kind="info",
    unit="info",
    scope="node",
    labels=("collector", "state"),
    help="Whether a collector answers: answering, late (what is shown has the age that is told beside it), or failed,"
    " which lasts until the agent is started again; runs, the reading of the logs of runs, is tried again at each beat;"
    " the value is always 1.",
)
AGENT_READ_SECONDS = Metric(
    name="observatory_agent_read_seconds_total",
    kind="counter",
    unit="seconds",
    scope="node",
    labels=("collector",),
    help="Time that a collector's answers took, its waiting for drivers and the kernel included.",
)
AGENT_SAMPLES = Metric(
    name="observatory_agent_samples_total",
    kind="counter",
    unit="samples",
    scope="node",
    labels=("collector",),
    help="Samples that a collector's answers held, those included that it repeats from an earlier answer.",
)
AGENT_FIELDS = Metric(
    name="observatory_agent_fields_total",
    kind="counter",
    unit="fields",
    scope="node",
    labels=("collector",),
    help="Fields that a collector asked its source for, answered or not; their rate is the fields per second that the"
    " agent reads. Of nvml each field of a batch, each metric of the monitors, and each call for anything else; of the"
    " host each figure that was read, and not what is repeated from an earlier answer.",
)

AGENT_METRICS = (
    AGENT_CPU_SECONDS,
    AGENT_BEAT_SECONDS,
    AGENT_BEATS,
    AGENT_MISSED_BEATS,
    AGENT_LATENESS_SECONDS,
    AGENT_AGE_SECONDS,
    AGENT_COLLECTOR,
    AGENT_READ_SECONDS,
    AGENT_SAMPLES,
    AGENT_FIELDS,
)


# Info series to join the others to: which run, which rank, which result.

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

INFO_METRICS = (RUN_INFO, RANK_INFO, RESULT_INFO, RUN_LAST_COMPLETION)

METRICS = (*AGENT_METRICS, *INFO_METRICS)
