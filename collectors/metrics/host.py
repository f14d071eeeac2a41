"""Metrics of a node's host, which the agent reads from the Linux kernel."""

from __future__ import annotations

from collectors.metrics.metric import NODE, metrics_in

NODE_INFO = NODE.info(
    "observatory_node_info{host, os, kernel, driver, version, python}",
    "The node: its host name, operating system (in a container, the container's) and kernel, the version of"
    " NVIDIA's driver (empty if none is loaded), and the versions of this program and of Python; the value is"
    " always 1.",
)
HOST_CPU_SECONDS = NODE.counter(
    "observatory_host_cpu_seconds_total{mode}",
    "Time that the node's CPUs together have spent in a mode since its start; modes do not overlap, so the"
    " rates of all modes add up to the number of CPUs.",
)
HOST_LOAD = NODE.gauge(
    "observatory_host_load_tasks", "Tasks that ran or waited to run, averaged over the last minute by the kernel."
)
HOST_PRESSURE_SECONDS = NODE.counter(
    "observatory_host_pressure_seconds_total{resource, stalled=some|full}",
    "Time in which tasks waited for a resource (cpu, memory, io or irq): some of the tasks that had work to do,"
    " or all of them at once (full), which the kernel does not define for the CPU.",
)
HOST_MEMORY_BYTES = NODE.gauge(
    "observatory_host_memory_bytes{kind=total|available|used|free|cached|shared|buffers|dirty}",
    "Memory of the node: total; available to a new process without swapping; used, the rest of total; free,"
    " completely unused; cached, pages of files and of shared memory; shared, shared memory alone; buffers of"
    " block devices; dirty, not yet written to disk.",
)
HOST_SWAP_BYTES = NODE.gauge(
    "observatory_host_swap_bytes{kind=total|used}",
    "Swap space of the node: total and used; a total of zero means a node without swap.",
)
HOST_SWAPPED_BYTES = NODE.counter(
    "observatory_host_swapped_bytes_total{direction}",
    "Memory that was moved in from swap space or out to it since the node's start.",
)
HOST_PAGE_FAULTS = NODE.counter(
    "observatory_host_page_faults_total",
    "Handled page faults of all processes, minor and major; subtract the major ones for the minor ones.",
)
HOST_MAJOR_PAGE_FAULTS = NODE.counter(
    "observatory_host_major_page_faults_total",
    "Page faults of all processes that had to wait for a disk or a file server; counted when the waiting begins.",
)
HOST_DISK_BYTES = NODE.counter(
    "observatory_host_disk_bytes_total{device, direction}",
    "Bytes read from or written to a disk device; partitions, loop devices and RAIDs are excluded.",
)
HOST_DISK_REQUESTS = NODE.counter(
    "observatory_host_disk_requests_total{device, direction}",
    "Read and write requests that a disk has completed.",
)
HOST_DISK_REQUEST_SECONDS = NODE.counter(
    "observatory_host_disk_request_seconds_total{device, direction}",
    "Time from issue to completion, summed over a disk's requests; overlapping requests each count in full.",
)
HOST_DISK_BUSY_SECONDS = NODE.counter(
    "observatory_host_disk_busy_seconds_total{device}",
    "Time in which a disk served at least one request. A disk that serves many at once may have capacity left"
    " even when it is always busy.",
)
HOST_NETWORK_BYTES = NODE.counter(
    "observatory_host_network_bytes_total{interface, direction}",
    "Bytes that a network interface has received or sent since its start; RDMA traffic is not counted.",
)
HOST_NETWORK_DROPPED = NODE.counter(
    "observatory_host_network_dropped_packets_total{interface, direction}",
    "Received or outgoing packets that a network interface dropped, most often because a buffer was full.",
)
HOST_NETWORK_ERRORS = NODE.counter(
    "observatory_host_network_errors_total{interface, direction}",
    "Packets that a network interface received damaged or could not send.",
)
HOST_NUMA_MEMORY_BYTES = NODE.gauge(
    "observatory_host_numa_memory_bytes{numa, kind=total|free|cached}",
    "Memory of one of the node's NUMA nodes: total, free, or cached, which are pages of files.",
)
HOST_NUMA_ALLOCATIONS = NODE.counter(
    "observatory_host_numa_allocations_total{numa, outcome}",
    "Allocations of memory that a NUMA node served: hit, requested from this NUMA node; miss, requested from"
    " another that had no memory left. One allocation may cover several pages; hugetlbfs is not counted.",
)
HOST_NUMA_ALLOCATORS = NODE.counter(
    "observatory_host_numa_cpu_allocations_total{numa, cpu}",
    "The same allocations by the CPU of the requesting process: of this NUMA node (local) or of another (remote).",
)
HOST_INFINIBAND_INFO = NODE.info(
    "observatory_host_infiniband_info{device, port, layer, state, physical_state}",
    "A port for RDMA: its link layer (InfiniBand, or Ethernet for RoCE) and states in the kernel's words;"
    " ACTIVE and LinkUp are the healthy states; the value is always 1.",
)
HOST_INFINIBAND_LINK = NODE.gauge(
    "observatory_host_infiniband_link_bytes_per_second{device, port}",
    "Bandwidth of an active InfiniBand or RoCE port's link in one direction, from its present lanes and speed.",
)
HOST_INFINIBAND_BYTES = NODE.counter(
    "observatory_host_infiniband_bytes_total{device, port, direction}",
    "Bytes that an InfiniBand or RoCE port has received or sent, RDMA among them, by the port's own counters.",
)
HOST_INFINIBAND_WAIT = NODE.counter(
    "observatory_host_infiniband_wait_ticks_total{device, port}",
    "Ticks of an InfiniBand port's own clock, whose period the port does not report, in which the port had data"
    " to send and had to wait. A growing count means congestion ahead of the port.",
)
HOST_INFINIBAND_ERRORS = NODE.counter(
    "observatory_host_infiniband_errors_total{device, port, kind}",
    "Errors of an InfiniBand or RoCE port, by the kernel's name of the counter; some ports stop counting a kind"
    " at 255 or 65535 until their counters are cleared.",
)
HOST_FILESYSTEM_BYTES = NODE.gauge(
    "observatory_host_filesystem_bytes{folder, kind=total|available}",
    "Size of the file system of a folder: total, and available to users other than root; for the root folder"
    " and the folder of the runs, and only once if both are on one file system.",
)
HOST_CLOCK_OFFSET_SECONDS = NODE.gauge(
    "observatory_host_clock_offset_seconds",
    "Offset of the node's clock that the kernel still has to correct; absent if the kernel does not report it,"
    " as in some containers.",
)
HOST_CLOCK_ERROR_SECONDS = NODE.gauge(
    "observatory_host_clock_error_seconds",
    "Maximum error of the node's clock, as the kernel estimates it; it grows up to 16 s while nothing corrects"
    " the clock.",
)
HOST_CLOCK_KEPT = NODE.gauge(
    "observatory_host_clock_kept_ratio",
    "1 if the node's clock is synchronized (by NTP or PTP), 0 if not or if the source is lost.",
)

METRICS = metrics_in(globals())
