"""What a rank's memory held from moment to moment of a step, by category."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.catalogue.memory import TIMELINE_PEAK_BYTES
from collectors.metric import Sample

CATEGORIES = ("parameters", "optimizer", "gradients", "activations", "temporary", "other")


class CannotSave(RuntimeError):
    """The file cannot be written; the message says where, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Bytes by category.

    times_ns: (moments,) int64, ascending, Unix time.
    held_bytes: (moments, categories) int64, what is held from that moment to the next, in the order of `CATEGORIES`.
    """

    times_ns: NDArray[np.int64]
    held_bytes: NDArray[np.int64]

    def peak(self) -> dict[str, int]:
        """Those of the first moment when most was held, and their total; a category of none is left out."""
        if not self.times_ns.size:
            return {}
        most = self.held_bytes[int(np.argmax(self.held_bytes.sum(axis=1)))]
        held = {name: int(size) for name, size in zip(CATEGORIES, most, strict=True) if size}
        return {**held, "total": sum(held.values())}

    def samples(self) -> list[Sample]:
        """The peak."""
        return [TIMELINE_PEAK_BYTES.at(size_bytes, category=name) for name, size_bytes in self.peak().items()]

    def save(self, path: Path) -> None:
        """Write it as a compressed trace of counters, which Perfetto draws.

        Raises:
            CannotSave: the file cannot be written.
        Source: Trace Event Format, Google, counter events.
        """
        begins_ns = int(self.times_ns[0]) if self.times_ns.size else 0
        events = [
            {
                "ph": "C",
                "pid": 1,
                "name": "memory bytes",
                "ts": (time_ns - begins_ns) / 1e3,
                "args": dict(zip(CATEGORIES, held, strict=True)),
            }
            for time_ns, held in zip(self.times_ns.tolist(), self.held_bytes.tolist(), strict=True)
        ]
        trace = {"displayTimeUnit": "ns", "otherData": {"begins_ns": str(begins_ns)}, "traceEvents": events}
        try:
            path.write_bytes(gzip.compress(msgspec.json.encode(trace)))
        except OSError as error:
            raise CannotSave(f"{path} cannot be written: {error.strerror}") from error


def added_up(deltas: Iterable[tuple[int, str, int]]) -> MemoryCurve:
    """The curve of these changes, which are in order: when, of which category, by how many bytes."""
    rows = list(deltas)
    times_ns = np.array([time_ns for time_ns, _, _ in rows], np.int64)
    grown = np.zeros((len(rows), len(CATEGORIES)), np.int64)
    grown[np.arange(len(rows)), [CATEGORIES.index(category) for _, category, _ in rows]] = [size for *_, size in rows]
    is_last_of_moment = np.append(times_ns[1:] != times_ns[:-1], np.ones(min(1, len(rows)), bool))
    return MemoryCurve(times_ns=times_ns[is_last_of_moment], held_bytes=grown.cumsum(axis=0)[is_last_of_moment])
