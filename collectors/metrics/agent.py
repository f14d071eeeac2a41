"""Metrics of the node's agent itself (cost, beat, age of its samples), and info about live runs and newest results."""

from __future__ import annotations

from collectors.metrics.metric import NODE, RANK, metrics_in

# The agent itself: what polling costs, whether it keeps its beat, how old its samples are.

AGENT_CPU_SECONDS = NODE.counter(
    "observatory_agent_cpu_seconds_total",
    "CPU time that the agent's process has taken, user and system, all its threads and scrapes included.",
)
AGENT_BEAT_SECONDS = NODE.gauge(
    "observatory_agent_beat_seconds",
    "Time between two beats, as the agent was told; at each beat it asks all collectors.",
)
AGENT_BEATS = NODE.counter(
    "observatory_agent_beats_total", "Beats that the agent kept: times at which it asked all collectors."
)
AGENT_MISSED_BEATS = NODE.counter(
    "observatory_agent_missed_beats_total",
    "Beats that went by while the collectors or the machine took too long; they are never made up for.",
)
AGENT_LATENESS_SECONDS = NODE.counter(
    "observatory_agent_lateness_seconds_total",
    "Time between the moments of the kept beats and when each began; divided by beats, how late one is.",
)
AGENT_AGE_SECONDS = NODE.gauge(
    "observatory_agent_age_seconds{collector}",
    "Age, at the scrape, of what is shown of a collector; more than a beat where it keeps the agent waiting.",
)
AGENT_COLLECTOR = NODE.info(
    "observatory_agent_collector_info{collector, state}",
    "Whether a collector answers: answering, late (what is shown has the age that is told beside it), or failed,"
    " which lasts until the agent is started again; runs, the reading of the logs of runs, is tried again at each"
    " beat; the value is always 1.",
)
AGENT_READ_SECONDS = NODE.counter(
    "observatory_agent_read_seconds_total{collector}",
    "Time that a collector's answers took, its waiting for drivers and the kernel included.",
)
AGENT_SAMPLES = NODE.counter(
    "observatory_agent_samples_total{collector}",
    "Samples that a collector's answers held, those included that it repeats from an earlier answer.",
)
AGENT_FIELDS = NODE.counter(
    "observatory_agent_fields_total{collector}",
    "Fields that a collector asked its source for, answered or not; their rate is the fields per second that the"
    " agent reads. Of nvml each field of a batch, each metric of the monitors, and each call for anything else; of the"
    " host each figure that was read, and not what is repeated from an earlier answer.",
)

IMPLAUSIBLE = NODE.counter(
    "observatory_implausible_total{source, question}",
    "Answers that cannot be (a utilization of 627618 %, 65534 CPUs) and are left out, by who gave them (nvml, or slurm"
    " and ray of the nodes by which a run was planned) and the question; the first of each is in the log, with its"
    " range.",
    unit="errors",
)


# Info series to join the others to: which run, which rank, which result.

RUN_INFO = NODE.info(
    "observatory_run_info{run, slot, series, name, strategy, ranks, nodes, device, shape, precision, suite, case,"
    " commit}",
    "A run that goes on now, and the slot that its ranks' series carry: what it measures, in words (name) and one by"
    " one; shape is empty of a probe, suite and case of what no suite runs, commit (of this program) where it is"
    " unknown; the value is always 1.",
)
RUN_LAST_PROGRESS = NODE.gauge(
    "observatory_run_last_progress_timestamp_seconds{run, slot}",
    "Unix time at which a rank of a run that goes on last ended a step of any kind, or began a later trial; absent"
    " before the first step, and of what has no steps.",
)
RANK_INFO = RANK.info(
    "observatory_rank_info{run, host}",
    "A rank of a run that goes on now: which run it is of, and where it runs; the value is always 1.",
)
RESULT_INFO = NODE.info(
    "observatory_result_info{series, run, name, strategy, ranks, device, shape, precision, options, suite, case,"
    " commit, torch, driver, nccl, gpu}",
    "The newest run of a series that ended well and is not ad hoc, whose results are shown: what it measured, in words"
    " (name) and one by one, and with what. Options are those that differ from their defaults; suite and case are empty"
    " of what no suite ran, driver, nccl and gpu of what used none, and so is what is unknown; the value is always 1.",
)
RUN_LAST_COMPLETION = NODE.gauge(
    "observatory_run_last_completion_timestamp_seconds{strategy, ranks, device, precision, series}",
    "Unix time at which the newest run of a series that is not ad hoc ended well.",
)
RUN_LAST_FAILURE = NODE.gauge(
    "observatory_run_last_failure_timestamp_seconds{strategy, ranks, device, precision, series, name, run, outcome}",
    "Unix time at which the newest run of a series ended without a result: failed, timed_out or interrupted; absent"
    " where it ended well. Neither ad hoc runs nor cases of suites, which are told of with their suite.",
)
SERIES_NEWEST_RUN = NODE.info(
    "observatory_series_newest_run_info{strategy, ranks, device, precision, series, run, outcome}",
    "The newest run of a series that is not ad hoc, whoever asked for it, and how it ended: done, failed, timed_out or"
    " interrupted; the value is always 1.",
)
USUAL_STEP_SECONDS = NODE.gauge(
    "observatory_series_usual_step_seconds{strategy, ranks, device, precision, series}",
    "What the step of a series was before its newest result: the median over the last nights that have one, 14 at most,"
    " each with the median of its runs. A night is a day (UTC); runs with other numbers of steps do not count.",
    better="lower",
)
USUAL_EFFICIENCY = NODE.gauge(
    "observatory_series_usual_scaling_efficiency_ratio{strategy, ranks, device, precision, series, scaling, baseline}",
    "What the scaling efficiency of a series against baselines of one kind was before its newest result: the median"
    " over the last nights that have one, 14 at most, each with the median of its runs.",
    better="higher",
)

METRICS = metrics_in(globals())
