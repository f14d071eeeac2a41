"""Metrics of a node's host, polled by the agent."""

from __future__ import annotations

from collectors.metric import Metric

HOST_CPU_SECONDS = Metric(
    name="observatory_host_cpu_seconds_total",
    kind="counter",
    unit="seconds",
    scope="node",
    labels=("mode",),
    help="Time that the node's CPUs together have spent in a mode since its start; no time is in two modes.",
)
HOST_MEMORY_BYTES = Metric(
    name="observatory_host_memory_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("kind",),
    help="Memory of the node: total, or available to a new process without swapping.",
)
HOST_LOAD = Metric(
    name="observatory_host_load_tasks",
    kind="gauge",
    unit="tasks",
    scope="node",
    help="Tasks that ran or waited to run, averaged over the last minute by the kernel.",
)
HOST_NETWORK_BYTES = Metric(
    name="observatory_host_network_bytes_total",
    kind="counter",
    unit="bytes",
    scope="node",
    labels=("interface", "direction"),
    help="Bytes that a network interface has received or sent since its start; RDMA passes it by uncounted.",
)

METRICS = (HOST_CPU_SECONDS, HOST_MEMORY_BYTES, HOST_LOAD, HOST_NETWORK_BYTES)
