"""Metrics of a node's host, as its Linux kernel counts them; polled by the agent."""

from __future__ import annotations

from collectors.metrics.metric import NODE, metrics_in

NODE_INFO = NODE.info(
    "observatory_node_info{host, os, kernel, driver, version, python}",
    "The node: its host name, operating system (in a container, the container's) and kernel, the version of NVIDIA's"
    " driver, empty where none is loaded, and the versions of this program and of Python; the value is always 1.",
)
HOST_CPU_SECONDS = NODE.counter(
    "observatory_host_cpu_seconds_total{mode}",
    "Time that the node's CPUs together have spent in a mode since its start; no time is in two modes, so that the"
    " rates of all modes add up to the number of CPUs.",
)
HOST_LOAD = NODE.gauge(
    "observatory_host_load_tasks", "Tasks that ran or waited to run, averaged over the last minute by the kernel."
)
HOST_PRESSURE_SECONDS = NODE.counter(
    "observatory_host_pressure_seconds_total{resource, stalled=some|full}",
    "Time in which tasks waited for a resource (cpu, memory, io or irq): some of those that had work to do, or all of"
    " them at once (full), which the kernel does not define for the CPU.",
)
HOST_MEMORY_BYTES = NODE.gauge(
    "observatory_host_memory_bytes{kind=total|available|used|free|cached|shared|buffers|dirty}",
    "Memory of the node: total; available to a new process without swapping; used, the rest of total; free, in no use"
    " at all; cached, pages of files and of shared memory; shared alone; buffers of block devices; dirty, not yet"
    " written to disk.",
)
HOST_SWAP_BYTES = NODE.gauge(
    "observatory_host_swap_bytes{kind=total|used}",
    "Swap space of the node: total and used; a total of zero is a node without swap.",
)
HOST_SWAPPED_BYTES = NODE.counter(
    "observatory_host_swapped_bytes_total{direction}",
    "Memory that was moved in from swap space or out to it since the node's start.",
)
HOST_PAGE_FAULTS = NODE.counter(
    "observatory_host_page_faults_total",
    "Page faults of all processes that were dealt with, minor and major alike; the minor ones are the difference of"
    " the rates.",
)
HOST_MAJOR_PAGE_FAULTS = NODE.counter(
    "observatory_host_major_page_faults_total",
    "Page faults of all processes that had to wait for a disk or a file server; counted when the waiting begins.",
)
HOST_DISK_BYTES = NODE.counter(
    "observatory_host_disk_bytes_total{device, direction}",
    "Bytes that were read from or written to a disk that is a device of its own, and no partition, loop or RAID.",
)
HOST_DISK_REQUESTS = NODE.counter(
    "observatory_host_disk_requests_total{device, direction}",
    "Requests to read from or write to a disk that it has completed.",
)
HOST_DISK_REQUEST_SECONDS = NODE.counter(
    "observatory_host_disk_request_seconds_total{device, direction}",
    "Time from issue to completion, summed over a disk's requests; those that overlap count each for itself.",
)
HOST_DISK_BUSY_SECONDS = NODE.counter(
    "observatory_host_disk_busy_seconds_total{device}",
    "Time in which a disk had at least one request at work; one that serves many at once can do more even when it is"
    " always busy.",
)
HOST_NETWORK_BYTES = NODE.counter(
    "observatory_host_network_bytes_total{interface, direction}",
    "Bytes that a network interface has received or sent since its start; RDMA passes it by uncounted.",
)
HOST_NETWORK_DROPPED = NODE.counter(
    "observatory_host_network_dropped_packets_total{interface, direction}",
    "Packets that a network interface received or was to send, and dropped, most often for want of room.",
)
HOST_NETWORK_ERRORS = NODE.counter(
    "observatory_host_network_errors_total{interface, direction}",
    "Packets that reached a network interface damaged, or that it could not send.",
)
HOST_NUMA_MEMORY_BYTES = NODE.gauge(
    "observatory_host_numa_memory_bytes{numa, kind=total|free|cached}",
    "Memory of one of the node's NUMA nodes: total, free, or cached, which are pages of files.",
)
HOST_NUMA_ALLOCATIONS = NODE.counter(
    "observatory_host_numa_allocations_total{numa, outcome}",
    "Allocations of memory that a NUMA node served: to those that wanted this one (hit), or another that had none"
    " left (miss). One allocation may be of several pages; those of hugetlbfs are not counted.",
)
HOST_NUMA_ALLOCATORS = NODE.counter(
    "observatory_host_numa_cpu_allocations_total{numa, cpu}",
    "The same allocations by where the process ran that asked: on a CPU of this NUMA node (local), or of another"
    " (remote).",
)
HOST_INFINIBAND_INFO = NODE.info(
    "observatory_host_infiniband_info{device, port, layer, state, physical_state}",
    "A port for RDMA: its link layer (InfiniBand, or Ethernet for RoCE) and states in the kernel's words, of which"
    " ACTIVE and LinkUp are the good ones; the value is always 1.",
)
HOST_INFINIBAND_LINK = NODE.gauge(
    "observatory_host_infiniband_link_bytes_per_second{device, port}",
    "What an active InfiniBand or RoCE port's link carries in one direction by its present lanes and speed.",
)
HOST_INFINIBAND_BYTES = NODE.counter(
    "observatory_host_infiniband_bytes_total{device, port, direction}",
    "Bytes that an InfiniBand or RoCE port has received or sent, RDMA among them, by the port's own counters.",
)
HOST_INFINIBAND_WAIT = NODE.counter(
    "observatory_host_infiniband_wait_ticks_total{device, port}",
    "Ticks of an InfiniBand port's own clock, of a length it does not tell, in which it had data to send and was not"
    " let: a growing count is congestion ahead of it.",
)
HOST_INFINIBAND_ERRORS = NODE.counter(
    "observatory_host_infiniband_errors_total{device, port, kind}",
    "What went wrong on an InfiniBand or RoCE port, by the kernel's name of the counter; some ports count no further"
    " than 255 or 65535 of a kind until they are cleared.",
)
HOST_FILESYSTEM_BYTES = NODE.gauge(
    "observatory_host_filesystem_bytes{folder, kind=total|available}",
    "The file system that a folder is on: total, and available to those who are not root; of the root folder and of"
    " that of the runs, and once where both are on one.",
)
HOST_CLOCK_OFFSET_SECONDS = NODE.gauge(
    "observatory_host_clock_offset_seconds",
    "What the kernel has still to correct of the node's clock; absent where it does not tell, as in some containers.",
)
HOST_CLOCK_ERROR_SECONDS = NODE.gauge(
    "observatory_host_clock_error_seconds",
    "How far the node's clock may be off at most, by the kernel's account; it grows while nothing corrects the clock,"
    " and ends at 16 s.",
)
HOST_CLOCK_KEPT = NODE.gauge(
    "observatory_host_clock_kept_ratio",
    "1 where something (NTP, PTP) keeps the node's clock, 0 where nothing does or it has lost its source.",
)

METRICS = metrics_in(globals())
