"""Metrics of what a rank's probes measure: times of single calls, and what was sent in them."""

from __future__ import annotations

from collectors.metric import Metric

COLLECTIVE_SECONDS = Metric(
    name="observatory_collective_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    labels=("collective", "algorithm", "size"),
    help="Time of one call of a collective on a rank: that of all measured calls, each queued behind the one before,"
    " divided by their number; size is in bytes as nccl-tests counts them. On a GPU of the device alone, which does not"
    " wait for the host.",
)
COLLECTIVE_WITH_HOST_SECONDS = Metric(
    name="observatory_collective_with_host_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    labels=("collective", "algorithm", "size"),
    help="Time of one call of a collective on a rank's GPU as a loop in Python has it, which small calls wait for;"
    " absent on a CPU, where it is the time of the call.",
)
COLLECTIVE_CHOICE = Metric(
    name="observatory_collective_choice_info",
    kind="gauge",
    unit="info",
    scope="rank",
    labels=("collective", "size", "chosen", "protocol"),
    help="1 for the algorithm and protocol that NCCL said it had chosen for a collective of this size in bytes.",
)
COLLECTIVE_ROUNDS = Metric(
    name="observatory_collective_rounds",
    kind="gauge",
    unit="rounds",
    scope="rank",
    labels=("collective", "algorithm", "size"),
    help="Rounds of messages of one call, counted on a rank, those included in which it only waits.",
)
COLLECTIVE_SENT_BYTES = Metric(
    name="observatory_collective_sent_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("collective", "algorithm", "size"),
    help="Bytes of messages that a rank sent in one call, counted in the call and without headers.",
)
COLLECTIVE_PEAK_BYTES = Metric(
    name="observatory_collective_peak_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("collective", "algorithm", "size"),
    help="The most bytes that a rank sent, or received, in one round of a call.",
)
MATMUL_SECONDS = Metric(
    name="observatory_matmul_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    labels=("m", "n", "k"),
    help="Time of one product of an m by k and a k by n matrix on a rank: the median of the measured calls. On a GPU of"
    " the device alone, which does not wait for the host.",
)
MATMUL_WITH_HOST_SECONDS = Metric(
    name="observatory_matmul_with_host_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    labels=("m", "n", "k"),
    help="Time of one product on a rank's GPU that is idle when the host begins to launch it; absent on a CPU, where it"
    " is the time of the product.",
)
COPY_SECONDS = Metric(
    name="observatory_copy_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    labels=("kind", "size"),
    help="Time of one copy of a kind on a rank: the median of the measured calls; size is in bytes of one buffer. On a"
    " GPU of the device alone, which does not wait for the host.",
)
COPY_WITH_HOST_SECONDS = Metric(
    name="observatory_copy_with_host_seconds",
    kind="gauge",
    unit="seconds",
    scope="rank",
    labels=("kind", "size"),
    help="Time of one copy on a rank's GPU that is idle when the host begins to launch it; absent on a CPU, where it is"
    " the time of the copy.",
)

METRICS = (
    COLLECTIVE_SECONDS,
    COLLECTIVE_WITH_HOST_SECONDS,
    COLLECTIVE_CHOICE,
    COLLECTIVE_ROUNDS,
    COLLECTIVE_SENT_BYTES,
    COLLECTIVE_PEAK_BYTES,
    MATMUL_SECONDS,
    MATMUL_WITH_HOST_SECONDS,
    COPY_SECONDS,
    COPY_WITH_HOST_SECONDS,
)
