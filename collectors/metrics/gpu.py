"""Metrics of a node's GPUs: identity, utilization, memory, processes, power, temperature, clocks, and ranks on them."""

from __future__ import annotations

from collectors.metrics.metric import NODE, RANK, metrics_in

# Identity, setup and limits of the node's GPUs, and which of them answer.

GPU_INFO = NODE.info(
    "observatory_gpu_info{gpu, uuid, name, serial, pci_address, pcie, vbios, driver, cuda, persistence, mig,"
    " numa, nvlink}",
    "A GPU of the node: its index, identity and setting; pcie is generation and lanes at most, nvlink version and"
    " links up; what NVML does not tell is unknown; the value is always 1.",
)
GPU_STATE = NODE.info(
    "observatory_gpu_state_info{gpu, state}",
    "Whether the GPU answers: answering, late (no whole answer by the deadline; what is shown has the age that is"
    " told beside it), lost until it is found again after a reset or a new start of the driver, or failed by a mistake"
    " of the agent's own, which its log names; the value is always 1.",
)
GPU_INSTANCE = NODE.info(
    "observatory_gpu_instance_info{gpu, slice, uuid, name}",
    "A slice of a GPU that MIG split, by GPU instance and compute instance; the value is always 1.",
)
GPU_FABRIC = NODE.info(
    "observatory_gpu_fabric_info{gpu, state, clique}",
    "How far the GPU has joined its NVLink fabric, and in which clique: not_started, in_progress or completed; the"
    " value is always 1.",
)
GPU_POWER_LIMIT_WATTS = NODE.gauge(
    "observatory_gpu_power_limit_watts{gpu, limit=current|default|minimum|maximum}",
    "Power limits of the GPU: the one in force (current), the factory's (default), and what it may be set to"
    " (minimum, maximum).",
)
GPU_CLOCK_LIMIT_HERTZ = NODE.gauge(
    "observatory_gpu_clock_limit_hertz{gpu, clock=sm|memory|video}",
    "How fast a clock of the GPU may run at most: sm, memory or video.",
)
GPU_PCIE_GENERATION = NODE.gauge(
    "observatory_gpu_pcie_link_generation{gpu, link=now|maximum}",
    "Generation of the GPU's PCIe link: now (idle GPUs lower it) and maximum, of what GPU and slot allow.",
)
GPU_PCIE_LANES = NODE.gauge(
    "observatory_gpu_pcie_link_lanes{gpu, link=now|maximum}",
    "Width of the GPU's PCIe link: now and maximum, of what GPU and slot allow.",
)
GPU_PCIE_LINK = NODE.gauge(
    "observatory_gpu_pcie_link_bytes_per_second{gpu, link=now|maximum}",
    "What the GPU's PCIe link carries in one direction by its generation and lanes: now (idle GPUs slow it down) and"
    " maximum.",
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
    "observatory_gpu_memory_free_bytes{gpu}", "Device memory that a process could still be given."
)
GPU_MEMORY_BYTES = NODE.gauge(
    "observatory_gpu_memory_bytes{gpu}", "Device memory of the GPU, that of the driver included."
)
GPU_BAR1_USED_BYTES = NODE.gauge(
    "observatory_gpu_bar1_used_bytes{gpu}",
    "Addresses of the window through which CPU and other devices reach the GPU's memory that are mapped now.",
)
GPU_BAR1_BYTES = NODE.gauge(
    "observatory_gpu_bar1_bytes{gpu}", "Size of the window through which CPU and other devices reach the GPU's memory."
)
GPU_TASKS = NODE.gauge(
    "observatory_gpu_compute_tasks{gpu}",
    "Processes that have a compute context on the GPU, those in its MIG instances included; absent in a container"
    " with PIDs of its own, where the driver does not name all.",
)
GPU_INSTANCE_MEMORY_USED_BYTES = NODE.gauge(
    "observatory_gpu_instance_memory_used_bytes{gpu, slice}", "Device memory in use in a MIG instance."
)
GPU_INSTANCE_MEMORY_BYTES = NODE.gauge(
    "observatory_gpu_instance_memory_bytes{gpu, slice}", "Device memory that a MIG instance has to itself."
)
GPU_INSTANCE_TASKS = NODE.gauge(
    "observatory_gpu_instance_compute_tasks{gpu, slice}",
    "Processes that have a compute context in a MIG instance; absent in a container with PIDs of its own.",
)


# What each process uses, and who it is: a run's rank, or what its cgroups name. Prometheus has labels `pod`,
# `container` and `job` of its own for the exporter, so these are called otherwise.

_OF_PROCESS = "{gpu, slice, pid, process, run, rank, container_id, pod_uid, slurm_job}"
GPU_PROCESS_MEMORY = NODE.gauge(
    f"observatory_gpu_process_memory_used_bytes{_OF_PROCESS}",
    "Device memory that the driver counts for a process on a GPU or a slice of it, its context included, of the 64"
    " processes of a GPU with the most; absent where the driver tells none, and in a container with PIDs of its own.",
)
GPU_PROCESS_UTILIZATION = NODE.gauge(
    f"observatory_gpu_process_sm_utilization_ratio{_OF_PROCESS}",
    "Share of the GPU's multiprocessors that NVML counts for a process since the last reading, 0 for one that was idle;"
    " absent under MIG, for which NVML counts none, and in a container with PIDs of its own.",
)


# Power, temperature, clocks, and what holds the clocks back.

GPU_POWER_WATTS = NODE.gauge(
    "observatory_gpu_power_watts{gpu}",
    "Power draw of the GPU as NVML gives it: over the last second, or at the moment on A100 and before Ampere.",
)
GPU_POWER_INSTANT_WATTS = NODE.gauge(
    "observatory_gpu_power_instant_watts{gpu}", "Power draw of the GPU at the moment of the reading."
)
GPU_ENERGY_JOULES = NODE.counter(
    "observatory_gpu_energy_joules_total{gpu}", "Energy that the GPU has used since its driver was loaded."
)
GPU_TEMPERATURE_CELSIUS = NODE.gauge(
    "observatory_gpu_temperature_celsius{gpu}", "Temperature of the GPU's die, as its sensor gives it."
)
GPU_MEMORY_TEMPERATURE_CELSIUS = NODE.gauge(
    "observatory_gpu_memory_temperature_celsius{gpu}", "Temperature of the hottest part of the GPU's memory."
)
GPU_TEMPERATURE_MARGIN_CELSIUS = NODE.gauge(
    "observatory_gpu_temperature_margin_celsius{gpu}",
    "How many degrees the GPU is below the nearest temperature at which it slows itself down.",
)
GPU_CLOCK_HERTZ = NODE.gauge(
    "observatory_gpu_clock_hertz{gpu, clock=sm|memory|video}", "A clock of the GPU as it runs now: sm, memory or video."
)
GPU_CLOCK_HELD_SECONDS = NODE.counter(
    "observatory_gpu_clock_held_seconds_total{gpu, reason}",
    "Time since its driver was loaded in which a reason held the GPU's clocks back; reasons may hold at once.",
)
GPU_CLOCK_HELD_RATIO = NODE.gauge(
    "observatory_gpu_clock_held_ratio{gpu, reason}",
    "1 where a reason sets the GPU's clocks at the moment of the reading, 0 where it does not; what is held between"
    " two readings shows in the seconds only.",
)


# Which rank computes on which GPU.

RANK_GPU = RANK.info(
    "observatory_rank_gpu_info{run, gpu, slice}",
    "A rank of a run that goes on now, and the index of a GPU of the node that it computes on; slice is the part of"
    " one that MIG split, empty for the whole; the value is always 1.",
)
RANK_GPU_MEMORY = RANK.gauge(
    "observatory_rank_gpu_memory_used_bytes{gpu, slice}",
    "Device memory that the driver counts for a rank's process on a GPU or a slice of it, its CUDA context included;"
    " absent where the driver does not tell, and of ranks whose process the node counts otherwise.",
)

METRICS = metrics_in(globals())
