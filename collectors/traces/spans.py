"""What ran when on one rank, as columns: a Timeline, which is kept and read without its trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times, intersection, length_ns, union

SCHEMA_VERSION = 1
Kind = Literal["compute", "communication", "copy", "host", "step"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One event. stream: a stream of the device, or a thread of the host."""

    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All spans of one rank, by start.

    names: each name once. name, kind: per span its index in `names` and in `KINDS`; start_ns, end_ns: Unix time.
    is_device: the spans of computation, communication and copies are a device's, not the host's.
    """

    rank: int
    is_device: bool
    names: tuple[str, ...]
    name: NDArray[np.int32]
    kind: NDArray[np.int8]
    start_ns: Times
    end_ns: Times
    stream: NDArray[np.int64]

    def intervals(self, kind: Kind) -> Times:
        """When at least one span of the kind ran."""
        chosen = self.kind == KINDS.index(kind)
        return union(self.start_ns[chosen], self.end_ns[chosen])

    def busy_ns(self, kind: Kind) -> int:
        """How long at least one span of the kind ran; overlapping spans count once."""
        return length_ns(self.intervals(kind))

    def overlap_ns(self, one: Kind, other: Kind) -> int:
        """How long spans of both kinds ran."""
        return length_ns(intersection(self.intervals(one), self.intervals(other)))

    def steps(self) -> list[tuple[int, int]]:
        """Start and end of each whole step, in order."""
        chosen = self.kind == KINDS.index("step")
        return [(int(start), int(end)) for start, end in zip(self.start_ns[chosen], self.end_ns[chosen], strict=True)]

    def save(self, path: Path) -> None:
        """Write the columns into one compressed file."""
        with path.open("wb") as file:
            np.savez_compressed(
                file,
                schema_version=np.int64(SCHEMA_VERSION),
                rank=np.int64(self.rank),
                is_device=np.bool_(self.is_device),
                names=np.array(self.names, dtype=np.str_),
                name=self.name,
                kind=self.kind,
                start_ns=self.start_ns,
                end_ns=self.end_ns,
                stream=self.stream,
            )


def timeline_of(spans: Iterable[Span], *, rank: int, is_device: bool) -> Timeline:
    """The spans as columns."""
    rows = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(span.name for span in rows))}
    kinds = {kind: number for number, kind in enumerate(KINDS)}
    return Timeline(
        rank=rank,
        is_device=is_device,
        names=tuple(numbers),
        name=np.array([numbers[span.name] for span in rows], dtype=np.int32),
        kind=np.array([kinds[span.kind] for span in rows], dtype=np.int8),
        start_ns=np.array([span.start_ns for span in rows], dtype=np.int64),
        end_ns=np.array([span.end_ns for span in rows], dtype=np.int64),
        stream=np.array([span.stream for span in rows], dtype=np.int64),
    )


def load(path: Path) -> Timeline:
    """The Timeline of a file that `Timeline.save` wrote.

    Raises:
        ValueError: a newer version wrote it.
    """
    with np.load(path, allow_pickle=False) as file:
        version = int(file["schema_version"])
        if version > SCHEMA_VERSION:
            raise ValueError(
                f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, which this program reads"
            )
        return Timeline(
            rank=int(file["rank"]),
            is_device=bool(file["is_device"]),
            names=tuple(str(name) for name in file["names"]),
            name=file["name"],
            kind=file["kind"],
            start_ns=file["start_ns"],
            end_ns=file["end_ns"],
            stream=file["stream"],
        )
