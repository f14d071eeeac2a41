"""Metrics of a training step, measured in each rank."""

from __future__ import annotations

from collectors.metric import Metric

STEP_SECONDS = Metric(
    name="observatory_step_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one optimizer step of a rank, from the end of the step before to its own end, all waits included.",
)
PHASE_SECONDS = Metric(
    name="observatory_phase_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    labels=("phase",),
    help="Time of one step that a rank's device spent in a phase: data (waiting for its batch), forward, backward,"
    " optimizer. A GPU waits for a batch only when it has no work left; what the host waits is another metric.",
)
DATA_WAIT_SECONDS = Metric(
    name="observatory_data_wait_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one step in which the host of a rank waited for its batch while its GPU may have computed: no part of"
    " the step, and not to be added to phases; absent on a CPU, where it is the phase data.",
)
TOKENS = Metric(
    name="observatory_tokens_total",
    kind="counter",
    unit="tokens",
    scope="rank",
    help="Tokens that a rank has trained on in its warm-up and measured steps; traced steps are not counted. Ranks that"
    " take the same tokens through parts of a model count equal shares of them, so that ranks add up to the batch.",
)
TOKENS_PER_SECOND = Metric(
    name="observatory_tokens_per_second",
    kind="gauge",
    unit="per_second",
    scope="rank",
    help="Tokens that a rank counts in one measured step, divided by the step's time.",
)
MFU = Metric(
    name="observatory_mfu_ratio",
    kind="gauge",
    unit="ratio",
    scope="rank",
    help="Model FLOPs per second and device in one measured step of a rank (PaLM's formula), divided by the device's"
    " dense peak at the run's precision; absent where no data sheet names one.",
)
MEASURED_MFU = Metric(
    name="observatory_measured_mfu_ratio",
    kind="gauge",
    unit="ratio",
    scope="rank",
    help="Model FLOPs per second and device in one measured step of a rank (PaLM's formula), divided by the fastest"
    " matrix product that a matmul run had measured on the same hardware at the same precision before the run.",
)
LOSS = Metric(
    name="observatory_loss_nats",
    kind="gauge",
    unit="nats",
    scope="rank",
    help="Mean cross-entropy of a rank's own tokens in one step.",
)
LEARNING_RATE = Metric(
    name="observatory_learning_rate_ratio",
    kind="gauge",
    unit="ratio",
    scope="rank",
    help="Learning rate that a rank's optimizer used in one step, after its rule and warm-up: what AdamW multiplies its"
    " update by, which has no unit.",
)
OBSERVER_SECONDS = Metric(
    name="observatory_observer_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Host time of one step that a rank's own collectors and log took: reading the clock's events and memory, at"
    " the end of each phase too, and writing the line of the step before.",
)

PHASES = ("data", "forward", "backward", "optimizer")
"""The phases of every training step, in its order; a strategy may mark others beside them."""

METRICS = (
    STEP_SECONDS,
    PHASE_SECONDS,
    DATA_WAIT_SECONDS,
    TOKENS,
    TOKENS_PER_SECOND,
    MFU,
    MEASURED_MFU,
    LOSS,
    LEARNING_RATE,
    OBSERVER_SECONDS,
)
