"""Metrics of a run whose ranks' traced windows were joined: who waits for whom, and how fast what then moves is."""

from __future__ import annotations

from collectors.metric import Metric

RUN_WAITING_RATIO = Metric(
    name="observatory_run_waiting_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    help="Share of the time that ranks spend in collectives of traced steps, summed over ranks, in which they wait for"
    " the last rank to come; each rank's first collective is left out.",
)
RUN_COLLECTIVE_WAIT_SECONDS = Metric(
    name="observatory_run_collective_wait_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    labels=("collective",),
    help="Time of one call of a collective that a rank waits for the last rank to come: the mean over ranks and calls"
    " of a trial's traced steps without each rank's first, and the median over trials.",
)
RUN_COLLECTIVE_TRANSFER_SECONDS = Metric(
    name="observatory_run_collective_transfer_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    labels=("collective",),
    help="Time of one call of a collective from the last rank's arrival to a rank's own end: the mean over ranks and"
    " calls of a trial's traced steps without each rank's first, and the median over trials.",
)
RUN_TRACED_BUS_BANDWIDTH = Metric(
    name="observatory_run_traced_collective_bus_bytes_per_second",
    kind="gauge",
    unit="bytes_per_second",
    scope="run",
    labels=("collective",),
    help="Bus bandwidth of a collective in traced steps without the wait: the bytes of all its calls times the"
    " collective's factor, divided by the time from each call's last arrival to its last end; the median over trials.",
)
RUN_LAST_RATIO = Metric(
    name="observatory_run_last_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("rank",),
    help="Share of its collectives in traced steps to which a rank comes after all others, by more than the clocks are"
    " known; the median over trials.",
)
RUN_HELD_UP_RATIO = Metric(
    name="observatory_run_held_up_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("rank",),
    help="Time by which collectives could begin sooner if the rank came with the last but one, divided by the time of"
    " the trial's traced steps; the median over trials.",
)
RUN_STRAGGLER_RATIO = Metric(
    name="observatory_run_straggler_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("rank", "cause"),
    help="Share of the traced time for which the one rank that stands out holds all others up, and what it does"
    " meanwhile: compute, copy, data loading, an earlier collective or host; the median over trials. Absent where none"
    " stands out.",
)
RUN_CLOCK_RESIDUAL_SECONDS = Metric(
    name="observatory_run_clock_residual_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    help="Time from the first to the last clock's end of one collective on the ranks' common clock, in the median of a"
    " trial's worst process group: how far times of different hosts may be off; absent where all ranks are on"
    " one host, which has one clock.",
)

METRICS = (
    RUN_WAITING_RATIO,
    RUN_COLLECTIVE_WAIT_SECONDS,
    RUN_COLLECTIVE_TRANSFER_SECONDS,
    RUN_TRACED_BUS_BANDWIDTH,
    RUN_LAST_RATIO,
    RUN_HELD_UP_RATIO,
    RUN_STRAGGLER_RATIO,
    RUN_CLOCK_RESIDUAL_SECONDS,
)
