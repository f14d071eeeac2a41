"""Clock, power and energy of a rank's GPU while the rank measured: its log joined with its node's by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from collectors.metrics.gpu import GPU_CLOCK_HERTZ, GPU_ENERGY_JOULES, GPU_INFO, GPU_INSTANCE, GPU_POWER_WATTS
from collectors.metrics.metric import Sample
from collectors.sample_log import NodeState, read
from workloads.cost_models.absent import Absent

CLOCK = "sm"
LEAST_ENERGY_S = 2.0
"""Shortest time over which energy is counted. Drivers update the counter every 20 to 100 ms, so that over this time it
is off by at most 5 % (Yang et al. 2023, Part-time Power Measurements).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A GPU's clock, power and energy as its node read them at one beat; None for what the driver does not report.

    time_ns: Unix time of the beat. energy_joules: the counter since the driver was loaded; None for a MIG instance,
    which has no counter of its own.
    """

    time_ns: int
    clock_hertz: float | None
    power_watts: float | None
    energy_joules: float | None = None


def clock_and_power(clock_hertz: float | None, power_watts: float | None) -> str:
    """Return clock and power as text: "1,755 MHz, 690 W"; "" if neither is known."""
    parts = []
    if clock_hertz is not None:
        parts.append(f"{clock_hertz / 1e6:,.0f} MHz")
    if power_watts is not None:
        parts.append(f"{power_watts:,.0f} W")
    return ", ".join(parts)


class GpuBeats:
    """All readings that a run's nodes took of their GPUs, by the GPU's UUID.

    Raises:
        NewerSchema: a newer version wrote a log.
    """

    def __init__(self, folder: Path) -> None:
        self._by_uuid: dict[str, list[GpuReading]] = {}
        self._instances: set[str] = set()  # UUIDs of MIG instances.
        for path in sorted(folder.glob("node*.jsonl")):
            node = NodeState()
            for record in read(path).records:
                if node.take(record) and node.time_ns is not None:
                    self._take(node.time_ns, node.samples)

    def last(self, gpu_uuid: str, begun_ns: int, ended_ns: int) -> GpuReading | None:
        """Return the last reading between two Unix times; None if there is none.

        gpu_uuid: of the GPU, or of its MIG instance, in CUDA's form.
        """
        within = self._within(gpu_uuid, begun_ns, ended_ns)
        return within[-1] if within else None

    def mean_power_w(self, gpu_uuid: str, begun_ns: int, ended_ns: int) -> float | Absent:
        """Return the power of a GPU between two Unix times, by its energy counter; absent for a MIG instance."""
        if gpu_uuid in self._instances:
            return Absent(reason="NVML counts the energy of a whole GPU, and the rank computes on a MIG instance of it")
        readings: list[tuple[int, float]] = []
        for beat in self._within(gpu_uuid, begun_ns, ended_ns):
            # A beat with the same counter as the beat before did not read it again.
            if beat.energy_joules is not None and (not readings or beat.energy_joules != readings[-1][1]):
                readings.append((beat.time_ns, beat.energy_joules))
        if not readings:
            return Absent(reason="its node's log has no reading of its GPU's energy counter")
        (first_ns, first_joules), (last_ns, last_joules) = readings[0], readings[-1]
        elapsed_s = (last_ns - first_ns) / 1e9
        if elapsed_s < LEAST_ENERGY_S:
            return Absent(
                reason=f"its node read the energy counter of its GPU over only {elapsed_s:.1f} s; at least"
                f" {LEAST_ENERGY_S:g} s are needed, so use more --steps"
            )
        if any(now < before for (_, before), (_, now) in pairwise(readings)):
            return Absent(reason="the energy counter of its GPU was reset meanwhile")
        return (last_joules - first_joules) / elapsed_s

    def _within(self, gpu_uuid: str, begun_ns: int, ended_ns: int) -> list[GpuReading]:
        return [beat for beat in self._by_uuid.get(gpu_uuid, ()) if begun_ns <= beat.time_ns <= ended_ns]

    def _take(self, time_ns: int, samples: Sequence[Sample]) -> None:
        uuids: dict[str, list[str]] = {}  # By GPU index: the GPU's UUID, and those of its MIG instances.
        clocks: dict[str, float] = {}
        powers: dict[str, float] = {}
        energies: dict[str, float] = {}
        for sample in samples:
            if sample.metric in (GPU_INFO.name, GPU_INSTANCE.name):
                # NVML puts "GPU-" or "MIG-" before CUDA's form of the UUID.
                uuid = sample.labels["uuid"].partition("-")[2]
                uuids.setdefault(sample.labels["gpu"], []).append(uuid)
                if sample.metric == GPU_INSTANCE.name:
                    self._instances.add(uuid)
            elif sample.metric == GPU_CLOCK_HERTZ.name and sample.labels["clock"] == CLOCK:
                clocks[sample.labels["gpu"]] = sample.value
            elif sample.metric == GPU_POWER_WATTS.name:
                powers[sample.labels["gpu"]] = sample.value
            elif sample.metric == GPU_ENERGY_JOULES.name:
                energies[sample.labels["gpu"]] = sample.value
        for gpu in clocks.keys() | powers.keys() | energies.keys():
            for uuid in uuids.get(gpu, ()):
                beat = GpuReading(
                    time_ns=time_ns,
                    clock_hertz=clocks.get(gpu),
                    power_watts=None if uuid in self._instances else powers.get(gpu),
                    energy_joules=energies.get(gpu),
                )
                self._by_uuid.setdefault(uuid, []).append(beat)
