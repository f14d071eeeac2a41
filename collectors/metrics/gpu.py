"""Metrics of a node's GPUs: identity, utilization, memory, processes, power, temperature, clocks, and ranks on them."""

from __future__ import annotations

from collectors.metrics.metric import NODE, RANK, metrics_in

# Identity, setup, limits and state of the node's GPUs.

GPU_INFO = NODE.info(
    "observatory_gpu_info{gpu, uuid, name, serial, pci_address, pcie, vbios, driver, cuda, persistence, mig,"
    " numa, nvlink}",
    "A GPU of the node: its index, identity and setting; pcie is the maximum generation and number of lanes,"
    " nvlink the version and the number of active links; what NVML does not report is unknown; the value is"
    " always 1.",
)
GPU_STATE = NODE.info(
    "observatory_gpu_state_info{gpu, state}",
    "State of the GPU: answering, late (no complete answer by the deadline; observatory_gpu_age_seconds is the"
    " age of its readings), lost (until it reappears after a reset or a restart of the driver), or failed (a"
    " bug of the agent, which its log names); the value is always 1.",
)
GPU_INSTANCE = NODE.info(
    "observatory_gpu_instance_info{gpu, slice, uuid, name}",
    "A MIG slice of a GPU, identified by GPU instance and compute instance; the value is always 1.",
)
GPU_FABRIC = NODE.info(
    "observatory_gpu_fabric_info{gpu, state, clique}",
    "Progress of the GPU in joining its NVLink fabric (not_started, in_progress or completed), and its clique;"
    " the value is always 1.",
)
GPU_POWER_LIMIT_WATTS = NODE.gauge(
    "observatory_gpu_power_limit_watts{gpu, limit=current|default|minimum|maximum}",
    "Power limits of the GPU: the one in force (current), the factory's (default), and the range that it may be"
    " set to (minimum, maximum).",
)
GPU_CLOCK_LIMIT_HERTZ = NODE.gauge(
    "observatory_gpu_clock_limit_hertz{gpu, clock=sm|memory|video}",
    "Maximum of a clock of the GPU: sm, memory or video.",
)
GPU_PCIE_GENERATION = NODE.gauge(
    "observatory_gpu_pcie_link_generation{gpu, link=now|maximum}",
    "Generation of the GPU's PCIe link: now (idle GPUs lower it) and the maximum that GPU and slot allow.",
)
GPU_PCIE_LANES = NODE.gauge(
    "observatory_gpu_pcie_link_lanes{gpu, link=now|maximum}",
    "Width of the GPU's PCIe link: now and the maximum that GPU and slot allow.",
)
GPU_PCIE_LINK = NODE.gauge(
    "observatory_gpu_pcie_link_bytes_per_second{gpu, link=now|maximum}",
    "Bandwidth of the GPU's PCIe link in one direction, from its generation and lanes: now (idle GPUs slow it"
    " down) and maximum.",
)


# Utilization, memory, and number of processes.

GPU_UTILIZATION = NODE.gauge(
    "observatory_gpu_utilization_ratio{gpu}",
    "Share of NVML's last sample period in which at least one kernel ran on the GPU.",
)
GPU_MEMORY_UTILIZATION = NODE.gauge(
    "observatory_gpu_memory_utilization_ratio{gpu}",
    "Share of NVML's last sample period in which device memory was read or written.",
)
GPU_ENCODER_UTILIZATION = NODE.gauge(
    "observatory_gpu_encoder_utilization_ratio{gpu}",
    "Share of NVML's last sample period in which the video encoder was busy.",
)
GPU_DECODER_UTILIZATION = NODE.gauge(
    "observatory_gpu_decoder_utilization_ratio{gpu}",
    "Share of NVML's last sample period in which the video decoder was busy.",
)
GPU_MEMORY_USED_BYTES = NODE.gauge(
    "observatory_gpu_memory_used_bytes{gpu}",
    "Device memory in use by all processes, without what the driver reserves for itself.",
)
GPU_MEMORY_RESERVED_BYTES = NODE.gauge(
    "observatory_gpu_memory_reserved_bytes{gpu}", "Device memory that driver and firmware keep for themselves."
)
GPU_MEMORY_FREE_BYTES = NODE.gauge(
    "observatory_gpu_memory_free_bytes{gpu}", "Device memory that a process can still allocate."
)
GPU_MEMORY_BYTES = NODE.gauge("observatory_gpu_memory_bytes{gpu}", "Device memory of the GPU, including the driver's.")
GPU_BAR1_USED_BYTES = NODE.gauge(
    "observatory_gpu_bar1_used_bytes{gpu}",
    "Addresses that are mapped now in the window through which the CPU and other devices reach the GPU's memory"
    " (BAR1).",
)
GPU_BAR1_BYTES = NODE.gauge(
    "observatory_gpu_bar1_bytes{gpu}",
    "Size of the window through which the CPU and other devices reach the GPU's memory (BAR1).",
)
GPU_TASKS = NODE.gauge(
    "observatory_gpu_compute_tasks{gpu}",
    "Processes that have a compute context on the GPU, including those in its MIG instances; absent in a"
    " container with its own PIDs, where the driver does not list all.",
)
GPU_INSTANCE_MEMORY_USED_BYTES = NODE.gauge(
    "observatory_gpu_instance_memory_used_bytes{gpu, slice}", "Device memory in use in a MIG instance."
)
GPU_INSTANCE_MEMORY_BYTES = NODE.gauge(
    "observatory_gpu_instance_memory_bytes{gpu, slice}", "Device memory that a MIG instance has to itself."
)
GPU_INSTANCE_TASKS = NODE.gauge(
    "observatory_gpu_instance_compute_tasks{gpu, slice}",
    "Processes that have a compute context in a MIG instance; absent in a container with its own PIDs.",
)


# Use of a GPU by each process, and the process's owner: a run's rank, or the container, pod or job of its cgroups.
# Prometheus adds labels `pod`, `container` and `job` for the exporter, so these labels have other names.

_OF_PROCESS = "{gpu, slice, pid, process, run, rank, container_id, pod_uid, slurm_job}"
GPU_PROCESS_MEMORY = NODE.gauge(
    f"observatory_gpu_process_memory_used_bytes{_OF_PROCESS}",
    "Device memory that the driver counts for a process on a GPU or a slice of it, its context included, for"
    " the 64 processes of a GPU with the most memory; absent if the driver does not report it, and in a"
    " container with its own PIDs.",
)
GPU_PROCESS_UTILIZATION = NODE.gauge(
    f"observatory_gpu_process_sm_utilization_ratio{_OF_PROCESS}",
    "Share of the GPU's multiprocessors that NVML counts for a process since the last reading, 0 for an idle"
    " process; absent under MIG, for which NVML does not count, and in a container with its own PIDs.",
)


# Power, temperature, clocks, and reasons for throttling.

GPU_POWER_WATTS = NODE.gauge(
    "observatory_gpu_power_watts{gpu}",
    "Power draw of the GPU as NVML reports it: the average of the last second, or the instantaneous power on"
    " A100 and before Ampere.",
)
GPU_POWER_INSTANT_WATTS = NODE.gauge("observatory_gpu_power_instant_watts{gpu}", "Instantaneous power draw of the GPU.")
GPU_ENERGY_JOULES = NODE.counter(
    "observatory_gpu_energy_joules_total{gpu}", "Energy that the GPU has used since its driver was loaded."
)
GPU_TEMPERATURE_CELSIUS = NODE.gauge(
    "observatory_gpu_temperature_celsius{gpu}", "Temperature of the GPU's die, as its sensor reports it."
)
GPU_MEMORY_TEMPERATURE_CELSIUS = NODE.gauge(
    "observatory_gpu_memory_temperature_celsius{gpu}", "Temperature of the hottest part of the GPU's memory."
)
GPU_TEMPERATURE_MARGIN_CELSIUS = NODE.gauge(
    "observatory_gpu_temperature_margin_celsius{gpu}",
    "Degrees between the GPU's temperature and the nearest temperature at which it throttles itself.",
)
GPU_CLOCK_HERTZ = NODE.gauge(
    "observatory_gpu_clock_hertz{gpu, clock=sm|memory|video}",
    "Present frequency of a clock of the GPU: sm, memory or video.",
)
GPU_CLOCK_HELD_SECONDS = NODE.counter(
    "observatory_gpu_clock_held_seconds_total{gpu, reason}",
    "Time since the driver was loaded in which a reason throttled the GPU's clocks; several reasons may apply at once.",
)
GPU_CLOCK_HELD_RATIO = NODE.gauge(
    "observatory_gpu_clock_held_ratio{gpu, reason}",
    "1 if a reason throttles the GPU's clocks at the moment of the reading, 0 if not; throttling between two"
    " readings shows only in observatory_gpu_clock_held_seconds_total.",
)


# The GPU of each rank.

RANK_GPU = RANK.info(
    "observatory_rank_gpu_info{run, gpu, slice}",
    "A rank of an active run, and the index of the GPU that it uses; slice is its MIG slice, empty for a whole"
    " GPU; the value is always 1.",
)
RANK_GPU_MEMORY = RANK.gauge(
    "observatory_rank_gpu_memory_used_bytes{gpu, slice}",
    "Device memory that the driver counts for a rank's process on a GPU or a slice of it, its CUDA context"
    " included; absent if the driver does not report it, and for ranks whose process has another PID on the"
    " node.",
)

METRICS = metrics_in(globals())
