"""Metrics of probes: times and traffic of single calls on a rank, and a run's bandwidths, latencies and rates."""

from __future__ import annotations

from collectors.metrics.metric import RANK, RUN, metrics_in

# Times and traffic of single calls on a rank.

COLLECTIVE_SECONDS = RANK.gauge(
    "observatory_collective_seconds{collective, algorithm, size}",
    "Time of one call of a collective on a rank: that of all measured calls, each queued behind the previous"
    " one, divided by their number; size is in bytes as nccl-tests counts them. On a GPU, it is the time of the"
    " device alone, which does not wait for the host.",
)
COLLECTIVE_WITH_HOST_SECONDS = RANK.gauge(
    "observatory_collective_with_host_seconds{collective, algorithm, size}",
    "Time of one call of a collective on a rank's GPU as a loop in Python sees it, which small calls wait for;"
    " absent on a CPU, where it is the time of the call.",
)
COLLECTIVE_CHOICE = RANK.gauge(
    "observatory_collective_choice_info{collective, size, chosen, protocol}",
    "1 for the algorithm and protocol that NCCL reports as chosen for a collective of this size in bytes.",
)
COLLECTIVE_ROUNDS = RANK.gauge(
    "observatory_collective_rounds{collective, algorithm, size}",
    "Rounds of messages of one call, counted on a rank, including rounds in which it only waits.",
)
COLLECTIVE_SENT_BYTES = RANK.gauge(
    "observatory_collective_sent_bytes{collective, algorithm, size}",
    "Bytes of messages that a rank sent in one call, counted in the call and without headers.",
)
COLLECTIVE_PEAK_BYTES = RANK.gauge(
    "observatory_collective_peak_bytes{collective, algorithm, size}",
    "The most bytes that a rank sent, or received, in one round of a call.",
)
MATMUL_SECONDS = RANK.gauge(
    "observatory_matmul_seconds{m, n, k}",
    "Time of one product of an m by k and a k by n matrix on a rank: the median of the measured calls. On a"
    " GPU, it is the time of the device alone, which does not wait for the host.",
)
MATMUL_WITH_HOST_SECONDS = RANK.gauge(
    "observatory_matmul_with_host_seconds{m, n, k}",
    "Time of one product on a rank's GPU that is idle when the host begins to launch it; absent on a CPU, where it is"
    " the time of the product.",
)
COPY_SECONDS = RANK.gauge(
    "observatory_copy_seconds{kind, size}",
    "Time of one copy of a kind on a rank: the median of the measured calls; size is in bytes of one buffer. On"
    " a GPU, it is the time of the device alone, which does not wait for the host.",
)
COPY_WITH_HOST_SECONDS = RANK.gauge(
    "observatory_copy_with_host_seconds{kind, size}",
    "Time of one copy on a rank's GPU that is idle when the host begins to launch it; absent on a CPU, where it is"
    " the time of the copy.",
)
PAIR_SECONDS = RANK.gauge(
    "observatory_pair_seconds{pair, size}",
    "Time of one exchange between two ranks, each of which sends size bytes to the other: that of all measured"
    " calls, divided by their number. pair is the numbers of the two ranks, for example 0-1. On a GPU, it is"
    " the time of the device alone, which does not wait for the host.",
)
PAIR_WITH_HOST_SECONDS = RANK.gauge(
    "observatory_pair_with_host_seconds{pair, size}",
    "Time of one exchange between two ranks with GPUs as a loop in Python sees it; absent on a CPU, where it is"
    " the time of the exchange.",
)


# The machine's ceilings as a run measured them, and the cost models' predictions from them.

RUN_COLLECTIVE_SECONDS = RUN.gauge(
    "observatory_run_collective_seconds{collective, algorithm, size}",
    "Time of one call of a collective: the mean over ranks, as nccl-tests has it, and the median over trials; size is"
    " in bytes as nccl-tests counts them.",
    better="lower",
)
RUN_COLLECTIVE_WITH_HOST_SECONDS = RUN.gauge(
    "observatory_run_collective_with_host_seconds{collective, algorithm, size}",
    "Time of one call of a collective on GPUs as a loop in Python sees it, aggregated like the time of the"
    " device alone; absent on a CPU, where the two are equal.",
    better="lower",
)
RUN_COLLECTIVE_ALGORITHM_BANDWIDTH = RUN.gauge(
    "observatory_run_collective_algorithm_bytes_per_second{collective, algorithm, size}",
    "Algorithm bandwidth (algbw of nccl-tests): size of a collective, divided by the time of one call.",
    better="higher",
)
RUN_COLLECTIVE_BUS_BANDWIDTH = RUN.gauge(
    "observatory_run_collective_bus_bytes_per_second{collective, algorithm, size}",
    "Bus bandwidth (busbw of nccl-tests): algorithm bandwidth times the collective's factor, for example 2 (n -"
    " 1) / n for all_reduce on n ranks. It compares with the speed of a link.",
    better="higher",
)
RUN_COLLECTIVE_EXPECTED_SECONDS = RUN.gauge(
    "observatory_run_collective_expected_seconds{collective, algorithm, size}",
    "Time of one call as its cost model predicts it: latency times rounds plus the busiest node's bytes over"
    " the bandwidth, both fitted from the library's own all_reduce of the same run.",
)
RUN_COLLECTIVE_CHOICE = RUN.gauge(
    "observatory_run_collective_choice_info{collective, size, chosen, protocol}",
    "1 for each algorithm and protocol that NCCL reports as chosen for a collective of this size in bytes.",
)
RUN_COLLECTIVE_ROUNDS = RUN.gauge(
    "observatory_run_collective_rounds{collective, algorithm, size, account=counted|expected}",
    "Rounds of messages in one call of an algorithm: expected (predicted by its cost model) or counted (the"
    " most of any rank).",
)
RUN_COLLECTIVE_TOTAL_BYTES = RUN.gauge(
    "observatory_run_collective_total_bytes{collective, algorithm, size, account=counted|expected}",
    "Bytes that all ranks together send in one call of an algorithm, without headers: expected or counted.",
)
RUN_COLLECTIVE_PEAK_BYTES = RUN.gauge(
    "observatory_run_collective_peak_bytes{collective, algorithm, size, account=counted|expected}",
    "The most bytes that any rank sends, or receives, in one round of an algorithm: expected or counted.",
)
RUN_LINK_LATENCY_SECONDS = RUN.gauge(
    "observatory_run_link_latency_seconds{collective}",
    "Latency of a message, without the time of its bytes (alpha), fitted from the run's sweep of a collective.",
    better="lower",
)
RUN_LINK_WITH_HOST_LATENCY_SECONDS = RUN.gauge(
    "observatory_run_link_with_host_latency_seconds{collective}",
    "Latency of a message, without the time of its bytes, fitted from the run's sweep of a collective as a loop"
    " in Python sees it, so it includes launching by the host; absent on a CPU, where the two are equal.",
    better="lower",
)
RUN_LINK_BANDWIDTH = RUN.gauge(
    "observatory_run_link_bytes_per_second{collective}",
    "Bytes that a rank sends in a second (beta), fitted from the run's sweep of a collective.",
    better="higher",
)
RUN_MATMUL_FLOPS = RUN.gauge(
    "observatory_run_matmul_flops_per_second{m, n, k}",
    "Floating-point operations of a product of an m by k and a k by n matrix (2 m n k), divided by its time on the"
    " slowest rank.",
    better="higher",
)
RUN_MATMUL_WITH_HOST_FLOPS = RUN.gauge(
    "observatory_run_matmul_with_host_flops_per_second{m, n, k}",
    "Floating-point operations of a product, divided by its time on the slowest rank's GPU including its launch"
    " by the host; absent on a CPU, where the two are equal.",
    better="higher",
)
RUN_MATMUL_CLOCK_HERTZ = RUN.gauge(
    "observatory_run_matmul_clock_hertz{m, n, k}",
    "SM clock of the slowest rank's GPU at the last beat of its node while products of a shape were computed;"
    " absent on a CPU, and if no beat fell into these products.",
)
RUN_MATMUL_POWER_WATTS = RUN.gauge(
    "observatory_run_matmul_power_watts{m, n, k}",
    "Power of the slowest rank's GPU, over a second where NVML averages, at the last beat of its node while"
    " products of a shape were computed; absent on a CPU, and if no beat fell into these products.",
)
RUN_COPY_BANDWIDTH = RUN.gauge(
    "observatory_run_copy_bytes_per_second{kind, size}",
    "Bytes that a copy reads and writes in the memory that it is named after, divided by its time on the slowest"
    " rank; size is in bytes of one buffer.",
    better="higher",
)
RUN_COPY_WITH_HOST_BANDWIDTH = RUN.gauge(
    "observatory_run_copy_with_host_bytes_per_second{kind, size}",
    "Bytes that a copy reads and writes, divided by its time on the slowest rank's GPU including its launch by"
    " the host; absent on a CPU, where the two are equal.",
    better="higher",
)
RUN_PAIR_BANDWIDTH = RUN.gauge(
    "observatory_run_pair_bytes_per_second{pair, size}",
    "Bytes that each rank of a pair sends to the other in an exchange both ways, divided by its time on the slower of"
    " the two.",
    better="higher",
    of_each="pair",
)
RUN_PAIR_WITH_HOST_BANDWIDTH = RUN.gauge(
    "observatory_run_pair_with_host_bytes_per_second{pair, size}",
    "Bytes that each rank of a pair sends to the other, divided by the time of an exchange as a loop in Python"
    " sees it; absent on a CPU, where the two are equal.",
    better="higher",
    of_each="pair",
)

METRICS = metrics_in(globals())
