"""Clock and power of a rank's GPU while the rank measured: the rank's log joined with its node's log, by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collectors.metrics.gpu import GPU_CLOCK_HERTZ, GPU_INFO, GPU_INSTANCE, GPU_POWER_WATTS
from collectors.metrics.metric import Sample
from collectors.node.node_log import NodeState
from collectors.sample_log import read

CLOCK = "sm"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """A GPU's clock and power as its node read them at one beat; None where the driver does not report one.

    time_ns: Unix time of the beat.
    """

    time_ns: int
    clock_hertz: float | None
    power_watts: float | None


def clock_and_power(clock_hertz: float | None, power_watts: float | None) -> str:
    """Format what is known of both for people: "1,755 MHz, 690 W"; "" where neither is known."""
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
        for path in sorted(folder.glob("node*.jsonl")):
            node = NodeState()
            for record in read(path).records:
                if node.take(record) and node.time_ns is not None:
                    self._take(node.time_ns, node.samples)

    def last(self, gpu_uuid: str, begun_ns: int, ended_ns: int) -> GpuReading | None:
        """Return the last reading between two Unix times; None where there is none.

        gpu_uuid: of the GPU, or of its MIG instance, as CUDA gives it.
        """
        within = [beat for beat in self._by_uuid.get(gpu_uuid, ()) if begun_ns <= beat.time_ns <= ended_ns]
        return within[-1] if within else None

    def _take(self, time_ns: int, samples: Sequence[Sample]) -> None:
        uuids: dict[str, list[str]] = {}  # By GPU index: the GPU's UUID, and those of its MIG instances.
        clocks: dict[str, float] = {}
        powers: dict[str, float] = {}
        for sample in samples:
            if sample.metric in (GPU_INFO.name, GPU_INSTANCE.name):
                # NVML puts "GPU-" or "MIG-" before the UUID that CUDA gives.
                uuids.setdefault(sample.labels["gpu"], []).append(sample.labels["uuid"].partition("-")[2])
            elif sample.metric == GPU_CLOCK_HERTZ.name and sample.labels["clock"] == CLOCK:
                clocks[sample.labels["gpu"]] = sample.value
            elif sample.metric == GPU_POWER_WATTS.name:
                powers[sample.labels["gpu"]] = sample.value
        for gpu in clocks.keys() | powers.keys():
            beat = GpuReading(time_ns=time_ns, clock_hertz=clocks.get(gpu), power_watts=powers.get(gpu))
            for uuid in uuids.get(gpu, ()):
                self._by_uuid.setdefault(uuid, []).append(beat)
