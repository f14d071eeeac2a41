"""Metrics of a rank's traced steps: how its time divides into computation, communication and neither."""

from __future__ import annotations

from collectors.metric import Metric

COMPUTE_SECONDS = Metric(
    name="observatory_traced_compute_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one traced step in which computation ran; overlapping spans count once.",
)
COMMUNICATION_SECONDS = Metric(
    name="observatory_traced_communication_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one traced step in which communication ran, waits for peers included; overlapping spans count once.",
)
OVERLAP_SECONDS = Metric(
    name="observatory_traced_overlap_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one traced step in which communication and computation both ran.",
)
EXPOSED_COMMUNICATION_SECONDS = Metric(
    name="observatory_traced_exposed_communication_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one traced step in which communication ran and computation did not.",
)
EXPOSED_COPY_SECONDS = Metric(
    name="observatory_traced_exposed_copy_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one traced step in which copies ran and neither computation nor communication did.",
)
IDLE_SECONDS = Metric(
    name="observatory_traced_idle_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one traced step in which nothing that is traced ran.",
)
TRACED_STEP_SECONDS = Metric(
    name="observatory_traced_step_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    help="Time of one step under the profiler; slower than others, and never part of speed.",
)
OVERLAP_RATIO = Metric(
    name="observatory_traced_overlap_ratio",
    kind="gauge",
    unit="ratio",
    scope="rank",
    help="Overlap of one traced step, divided by its communication time.",
)
EXPOSED_COMMUNICATION_RATIO = Metric(
    name="observatory_traced_exposed_communication_ratio",
    kind="gauge",
    unit="ratio",
    scope="rank",
    help="Exposed communication of one traced step, divided by the traced step's time.",
)
COLLECTIVE_SECONDS = Metric(
    name="observatory_traced_collective_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    labels=("collective",),
    help="Time of one traced step in which a collective ran, by its events' name; NCCL sends messages and runs"
    " all_to_all by one kernel, which is called send. Spans that overlap count once.",
)
COLLECTIVE_OVERLAP_RATIO = Metric(
    name="observatory_traced_collective_overlap_ratio",
    kind="gauge",
    unit="ratio",
    scope="rank",
    labels=("collective",),
    help="Time of one traced step in which a collective and computation both ran, divided by the collective's.",
)
ATTENTION_PAIRS = Metric(
    name="observatory_traced_attention_pairs",
    kind="gauge",
    unit="pairs",
    scope="rank",
    help="Pairs of query and key that the rank attended in the forward of a traced step, of all heads and layers.",
)
PAYLOAD_BYTES = Metric(
    name="observatory_traced_payload_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("collective", "axis"),
    help="Bytes of the tensors that a rank handed to a collective in a traced step, averaged over the traced window and"
    " before the collective's own factor; axis: that of the device mesh whose ranks took part, or other.",
)

METRICS = (
    TRACED_STEP_SECONDS,
    COMPUTE_SECONDS,
    COMMUNICATION_SECONDS,
    OVERLAP_SECONDS,
    EXPOSED_COMMUNICATION_SECONDS,
    EXPOSED_COPY_SECONDS,
    IDLE_SECONDS,
    OVERLAP_RATIO,
    EXPOSED_COMMUNICATION_RATIO,
    COLLECTIVE_SECONDS,
    COLLECTIVE_OVERLAP_RATIO,
    ATTENTION_PAIRS,
    PAYLOAD_BYTES,
)
