"""Reads allocations from the event tree of a profiler in this process, the only place that holds their addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from collectors.traces.reading.decoders import MEMORY
from collectors.traces.timeline import ABSENT, NO_ALLOCATIONS, Allocations

ALLOCATION = "Allocation"


class Node(Protocol):
    """The fields that are read of an event of `kineto_results.experimental_event_tree()`."""

    @property
    def tag(self) -> Any: ...
    @property
    def start_time_ns(self) -> int: ...
    @property
    def extra_fields(self) -> Any: ...
    @property
    def children(self) -> Sequence[Node]: ...


class Change(Protocol):
    """The methods that are called on a kineto event of a memory change; only it tells the thread."""

    def name(self) -> str: ...
    def start_ns(self) -> int: ...
    def nbytes(self) -> int: ...
    def device_resource_id(self) -> int: ...


def allocations_of(roots: Iterable[Node], events: Iterable[Change] = ()) -> Allocations:
    """Return all changes of memory in the tree, by time. events: of the same profile, for the threads."""
    changes = sorted(_changes(roots), key=lambda node: node.start_time_ns)
    if not changes:
        return NO_ALLOCATIONS
    fields = [node.extra_fields for node in changes]
    threads: dict[tuple[int, int], int] = {
        (event.start_ns(), event.nbytes()): event.device_resource_id() for event in events if event.name() == MEMORY
    }
    return Allocations(
        time_ns=np.array([node.start_time_ns for node in changes], dtype=np.int64),
        address=np.array([each.ptr % 2**64 for each in fields], dtype=np.uint64),
        change_bytes=np.array([each.alloc_size for each in fields], dtype=np.int64),
        allocated_bytes=np.array([each.total_allocated for each in fields], dtype=np.int64),
        device=np.array(
            [ABSENT if each.device.type == "cpu" else each.device.index for each in fields], dtype=np.int16
        ),
        thread=np.array(
            [threads.get((node.start_time_ns, node.extra_fields.alloc_size), ABSENT) for node in changes],
            dtype=np.int64,
        ),
    )


def _changes(roots: Iterable[Node]) -> Iterator[Node]:
    waiting = list(roots)[::-1]
    while waiting:
        node = waiting.pop()
        if node.tag.name == ALLOCATION:
            yield node
        waiting.extend(reversed(node.children))
