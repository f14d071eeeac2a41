"""The clock and the power that a rank's GPU had while it measured: the rank's log joined with its node's, by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collectors.metrics.gpu import GPU_CLOCK_HERTZ, GPU_INFO, GPU_INSTANCE, GPU_POWER_WATTS
from collectors.metrics.metric import Sample
from collectors.node_log import NodeState
from collectors.sample_log import read

CLOCK = "sm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a node read of a GPU at one beat; None is what its driver did not tell.

    time_ns: Unix time of the beat.
    """

    time_ns: int
    clock_hertz: float | None
    power_watts: float | None


def clock_and_power(clock_hertz: float | None, power_watts: float | None) -> str:
    """For people, what is known of both: "1,755 MHz, 690 W"; "" where neither is."""
    parts = []
    if clock_hertz is not None:
        parts.append(f"{clock_hertz / 1e6:,.0f} MHz")
    if power_watts is not None:
        parts.append(f"{power_watts:,.0f} W")
    return ", ".join(parts)


class GpuBeats:
    """The beats of a run's nodes, by GPU.

    Raises:
        NewerSchema: a newer version wrote a log.
    """

    def __init__(self, folder: Path) -> None:
        self._by_uuid: dict[str, list[Reached]] = {}
        for path in sorted(folder.glob("node*.jsonl")):
            node = NodeState()
            for record in read(path).records:
                if node.take(record) and node.time_ns is not None:
                    self._take(node.time_ns, node.samples)

    def last(self, gpu_uuid: str, begun_ns: int, ended_ns: int) -> Reached | None:
        """The last of a time; None where none fell into it.

        gpu_uuid: of the GPU, or part of one, as CUDA tells it.
        """
        within = [beat for beat in self._by_uuid.get(gpu_uuid, ()) if begun_ns <= beat.time_ns <= ended_ns]
        return within[-1] if within else None

    def _take(self, time_ns: int, samples: Sequence[Sample]) -> None:
        uuids: dict[str, list[str]] = {}  # By GPU: its own, and those of its parts.
        clocks: dict[str, float] = {}
        powers: dict[str, float] = {}
        for sample in samples:
            if sample.metric in (GPU_INFO.name, GPU_INSTANCE.name):
                # NVML's has a "GPU-" or "MIG-" before what CUDA tells.
                uuids.setdefault(sample.labels["gpu"], []).append(sample.labels["uuid"].partition("-")[2])
            elif sample.metric == GPU_CLOCK_HERTZ.name and sample.labels["clock"] == CLOCK:
                clocks[sample.labels["gpu"]] = sample.value
            elif sample.metric == GPU_POWER_WATTS.name:
                powers[sample.labels["gpu"]] = sample.value
        for gpu in clocks.keys() | powers.keys():
            beat = Reached(time_ns=time_ns, clock_hertz=clocks.get(gpu), power_watts=powers.get(gpu))
            for uuid in uuids.get(gpu, ()):
                self._by_uuid.setdefault(uuid, []).append(beat)
