"""The events of all chunks as one, with each text kept once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors.traces.allocations import NO_ALLOCATIONS, Allocations
from collectors.traces.reading.raw_events import RawEvents, Said
from collectors.traces.spans import ABSENT

PLAIN_COLUMNS = ("category", "start_ns", "duration_ns", "process", "thread", "correlation")
ALLOCATION_COLUMNS = ("time_ns", "address", "change_bytes", "allocated_bytes", "device", "thread")


class Rows:
    """Chunks as they come; `whole` is all of them. count: of events that are kept, changes of memory among them."""

    def __init__(self) -> None:
        self.count = 0
        self._rows = 0
        self._names: dict[str, int] = {}
        self._shapes: dict[str, int] = {}
        # One growing buffer a column: chunks that are kept until they are joined would be there twice.
        self._columns = {name: bytearray() for name in (*PLAIN_COLUMNS, "name", "shape")}
        self._allocations: list[Allocations] = []
        self._said: list[tuple[int, Said]] = []
        self._without_address = 0
        self._unknown: set[str] = set()
        self._unread_phases: set[str] = set()

    def add(self, raw: RawEvents) -> None:
        """Put the events of a chunk behind those of earlier ones."""
        for name in PLAIN_COLUMNS:
            self._put(name, getattr(raw, name))
        self._put("name", _renumbered(raw.name, raw.names, self._names))
        self._put("shape", _renumbered(raw.shape, raw.shapes, self._shapes))
        self._allocations.append(raw.allocations)
        self._said.extend((self._rows + row, said) for row, said in raw.said)
        self._without_address += raw.without_address
        self._unknown |= raw.unknown
        self._unread_phases |= raw.unread_phases
        self._rows += raw.name.size
        self.count += raw.name.size + raw.allocations.time_ns.size

    def whole(self) -> RawEvents:
        """All events as one, in columns that may be written to; nothing can be added any more."""
        columns: dict[str, Any] = {
            name: np.frombuffer(buffer, dtype=_dtype(name)) for name, buffer in self._columns.items()
        }
        return RawEvents(
            names=tuple(self._names),
            shapes=tuple(self._shapes),
            said=tuple(self._said),
            allocations=_joined([part for part in self._allocations if part.time_ns.size]),
            without_address=self._without_address,
            unknown=frozenset(self._unknown),
            unread_phases=frozenset(self._unread_phases),
            **columns,
        )

    def _put(self, name: str, column: NDArray[Any]) -> None:
        self._columns[name] += np.ascontiguousarray(column, dtype=_dtype(name)).data


_DTYPES: dict[str, type] = {"category": np.int8, "name": np.int32, "shape": np.int32}


def _dtype(name: str) -> type:
    return _DTYPES.get(name, np.int64)


def _renumbered(number: NDArray[np.int32], texts: Sequence[str], all_texts: dict[str, int]) -> NDArray[np.int32]:
    """The numbers of a chunk's texts as those of all; what has none keeps having none."""
    moved = np.array([*(all_texts.setdefault(text, len(all_texts)) for text in texts), ABSENT], dtype=np.int32)
    renumbered: NDArray[np.int32] = moved[number]
    return renumbered


def _joined(parts: Sequence[Allocations]) -> Allocations:
    if not parts:
        return NO_ALLOCATIONS
    return Allocations(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in ALLOCATION_COLUMNS})
