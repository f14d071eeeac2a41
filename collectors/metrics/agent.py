"""Metrics of the node's agent itself (cost, beat, age of samples), and names of active runs and newest results."""

from __future__ import annotations

from collectors.metrics.metric import NODE, RANK, metrics_in

# The agent itself: the cost of polling, missed beats, and the age of its samples.

AGENT_CPU_SECONDS = NODE.counter(
    "observatory_agent_cpu_seconds_total",
    "CPU time that the agent's process has taken, user and system, including all its threads and scrapes.",
)
AGENT_BEAT_SECONDS = NODE.gauge(
    "observatory_agent_beat_seconds",
    "Time between two beats, as configured; at each beat the agent queries all collectors.",
)
AGENT_BEATS = NODE.counter("observatory_agent_beats_total", "Beats at which the agent queried all collectors.")
AGENT_MISSED_BEATS = NODE.counter(
    "observatory_agent_missed_beats_total",
    "Beats that the agent skipped because the collectors or the machine took too long; it never catches up on them.",
)
AGENT_LATENESS_SECONDS = NODE.counter(
    "observatory_agent_lateness_seconds_total",
    "Total delay between the scheduled and the actual start of the beats; divided by the number of beats, it is"
    " the delay of one.",
)
AGENT_AGE_SECONDS = NODE.gauge(
    "observatory_agent_age_seconds{collector}",
    "Age of a collector's readings at the scrape; more than a beat means that the collector keeps the agent waiting.",
)
AGENT_COLLECTOR = NODE.info(
    "observatory_agent_collector_info{collector, state}",
    "State of a collector: answering, late (observatory_agent_age_seconds is the age of its readings), or"
    " failed until the agent restarts. The collector runs, which reads the logs of runs, is tried again at each"
    " beat. The value is always 1.",
)
AGENT_READ_SECONDS = NODE.counter(
    "observatory_agent_read_seconds_total{collector}",
    "Time that reading a collector took, including its waiting for drivers and the kernel.",
)
AGENT_SAMPLES = NODE.counter(
    "observatory_agent_samples_total{collector}",
    "Samples that a collector returned, including those that it repeats from an earlier reading.",
)
AGENT_FIELDS = NODE.counter(
    "observatory_agent_fields_total{collector}",
    "Fields that a collector requested from its source, answered or not; the rate is the fields per second that"
    " the agent reads. nvml counts each field of a batch, each metric of the performance monitors and each"
    " other call; host counts each value that was read, but not those repeated from an earlier reading.",
)

IMPLAUSIBLE = NODE.counter(
    "observatory_implausible_total{source, question}",
    "Impossible readings that were discarded (a utilization of 627618 %, 65534 CPUs), by source (nvml, or slurm"
    " and ray for the nodes that a run was planned with) and question; the log has the first of each, with its"
    " valid range.",
    unit="errors",
)


# Info series to join with other series: runs, ranks and results.

RUN_INFO = NODE.info(
    "observatory_run_info{run, slot, series, name, strategy, ranks, nodes, device, shape, precision, suite, case,"
    " commit}",
    "An active run, and the slot that the series of its ranks carry: what it measures, in words (name) and as"
    " single labels. shape is empty for a probe, suite and case are empty if no suite runs it, and commit (of"
    " this program) is empty if unknown. The value is always 1.",
)
RUN_LAST_PROGRESS = NODE.gauge(
    "observatory_run_last_progress_timestamp_seconds{run, slot}",
    "Unix time at which a rank of an active run last ended a step of any kind, began a later trial or, in a watched"
    " run, loaded a batch; absent before the first step, and for runs without steps.",
)
RUN_STALL_LIMIT = NODE.gauge(
    "observatory_run_stall_limit_seconds{run, slot}",
    "Time without a step or batch after which an active watched run counts as stalled: at least 300 s, more if its"
    " steps so far are long; absent for other runs.",
)
RANK_INFO = RANK.info(
    "observatory_rank_info{run, host}",
    "A rank of an active run: its run, and where it runs; the value is always 1.",
)
RESULT_INFO = NODE.info(
    "observatory_result_info{series, run, name, strategy, ranks, device, shape, precision, options, suite, case,"
    " commit, torch, driver, nccl, gpu}",
    "The newest successful run of a series that is not ad hoc, whose results are exported: what it measured, in"
    " words (name) and as single labels, and its environment. options are those that differ from their"
    " defaults. suite and case are empty if no suite ran it; driver, nccl and gpu are empty if it used none;"
    " unknown values are empty. The value is always 1.",
)
RUN_LAST_COMPLETION = NODE.gauge(
    "observatory_run_last_completion_timestamp_seconds{strategy, ranks, device, precision, series}",
    "Unix time at which the newest successful run of a series ended, ad hoc runs excluded.",
)
RUN_LAST_FAILURE = NODE.gauge(
    "observatory_run_last_failure_timestamp_seconds{strategy, ranks, device, precision, series, name, run, outcome}",
    "Unix time at which the newest run of a series ended without a result: failed, timed_out or interrupted;"
    " absent if it succeeded. Ad hoc runs do not count, nor do cases of suites, which are reported with their"
    " suite.",
)
SERIES_NEWEST_RUN = NODE.info(
    "observatory_series_newest_run_info{strategy, ranks, device, precision, series, run, outcome}",
    "The newest run of a series, ad hoc runs excluded, and how it ended: done, failed, timed_out or"
    " interrupted; the value is always 1.",
)
USUAL_STEP_SECONDS = NODE.gauge(
    "observatory_series_usual_step_seconds{strategy, ranks, device, precision, series}",
    "Usual step of a series before its newest result: the median over the last nights with a result, 14 at"
    " most; each night counts with the median of its runs. A night is a day (UTC); runs with other numbers of"
    " steps do not count.",
    better="lower",
)
USUAL_EFFICIENCY = NODE.gauge(
    "observatory_series_usual_scaling_efficiency_ratio{strategy, ranks, device, precision, series, scaling, baseline}",
    "Usual scaling efficiency of a series, against baselines of one kind, before its newest result: the median"
    " over the last nights with a result, 14 at most; each night counts with the median of its runs.",
    better="higher",
)

METRICS = metrics_in(globals())
