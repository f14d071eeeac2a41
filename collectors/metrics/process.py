"""Metrics of the process that serves /metrics, with the standard names of Prometheus's clients, and of its build."""

from __future__ import annotations

from collectors.metrics.metric import NODE, metrics_in

BUILD_INFO = NODE.info(
    "observatory_build_info{version, commit, python}",
    "The exporting program: its version, its commit if it runs from a source tree, and Python's version;"
    " unknown values are empty; the value is always 1.",
)

# prometheus_client's own collector reads these; Linux only.

PROCESS_CPU_SECONDS = NODE.counter(
    "process_cpu_seconds_total", "CPU time that the process has taken, user and system, including all its threads."
)
PROCESS_START_TIME = NODE.gauge("process_start_time_seconds", "Unix time at which the process was started.")
PROCESS_RESIDENT_BYTES = NODE.gauge(
    "process_resident_memory_bytes", "Resident memory of the process, libraries and shared pages included."
)
PROCESS_VIRTUAL_BYTES = NODE.gauge(
    "process_virtual_memory_bytes", "Address space that the process has mapped, with or without pages behind it."
)
PROCESS_OPEN_FDS = NODE.gauge("process_open_fds", "File descriptors that the process has open, its sockets included.")
PROCESS_MAX_FDS = NODE.gauge("process_max_fds", "File descriptors that the process may have open at once.")

METRICS = metrics_in(globals())
