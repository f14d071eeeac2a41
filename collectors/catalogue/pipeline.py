"""Metrics of a run whose model is cut into pipeline stages: where it waits, what its stages take and hold."""

from __future__ import annotations

from collectors.metric import Metric

RUN_BUBBLE_RATIO = Metric(
    name="observatory_run_bubble_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("account",),
    help="Share of their time that the ranks of a pipeline compute for no stage, from the first action's start to the"
    " last one's end: measured (the median over a trial's pipelines and timed steps, then over trials), or expected"
    " (the schedule simulated with the measured times of its stages).",
)
RUN_BUBBLE_PART_RATIO = Metric(
    name="observatory_run_bubble_part_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("part",),
    help="Part of the measured bubble: schedule (with equal stages and an ideal wire), imbalance (what the stages' own"
    " times add), transfer (what the time on the link adds), uneven (what actions that take longer than their stage's"
    " median add), message (what messages take beyond the transfer), waiting_for_a_core (between actions, with a rank"
    " that could run and is not scheduled), unexplained (the rest: what hosts do between actions). They add up to the"
    " bubble, and one may be below 0; what is not known is in unexplained.",
)
RUN_STAGE_SECONDS = Metric(
    name="observatory_run_stage_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    labels=("stage", "action"),
    help="Time that a pipeline stage computes for one microbatch: forward, backward, or backward's halves"
    " input_backward and weight_backward; the median over microbatches, pipelines and timed steps, then over trials.",
)
RUN_LIVE_MICROBATCHES = Metric(
    name="observatory_run_live_microbatches",
    kind="gauge",
    unit="microbatches",
    scope="run",
    labels=("stage", "account"),
    help="Most microbatches that a pipeline stage holds at once, forward begun and backward not ended: measured (the"
    " most of any pipeline and timed step), or expected by the schedule.",
)
RUN_STAGE_ACTIVATION_BYTES = Metric(
    name="observatory_run_stage_activation_bytes",
    kind="gauge",
    unit="bytes",
    scope="run",
    labels=("stage", "account"),
    help="Most bytes that forwards of a pipeline stage's live microbatches have left for backward: measured (the most"
    " of any pipeline, in one unmeasured step), or expected by the schedule and the law of activations.",
)

METRICS = (
    RUN_BUBBLE_RATIO,
    RUN_BUBBLE_PART_RATIO,
    RUN_STAGE_SECONDS,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
)
