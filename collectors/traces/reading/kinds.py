"""What kind each event is of, by its category, its name and its place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from collectors.traces.names import GLOO, HOST_COMPUTE, STEPS, is_communication
from collectors.traces.reading.raw_events import CATEGORIES, RawEvents
from collectors.traces.spans import KINDS, Kind

Chosen = NDArray[np.bool_]

_KIND_OF_CATEGORY: dict[str, Kind] = {
    "cpu_op": "host",
    "user_annotation": "host",
    "kernel": "compute",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cuda_sync": "wait",
}
"""The others are calls of a runtime or a driver."""

_OF_A_DEVICE = tuple(CATEGORIES.index(name) for name in ("kernel", "gpu_memcpy", "gpu_memset"))


def devices(raw: RawEvents) -> NDArray[np.int64]:
    """The numbers of the devices that do work in the trace.

    A wait tells of none: kineto gives it device 0 where it has seen no kernel of the wait's context yet.
    """
    return np.unique(raw.process[np.isin(raw.category, _OF_A_DEVICE)])


def kinds(raw: RawEvents) -> tuple[NDArray[np.int8], bool]:
    """The kind of each event, as its index in `KINDS`; and whether the device has events of its own.

    Where it has, be they copies alone, its kernels compute and communicate and the host's operators only issue them.
    Without it, operators compute, except on gloo's own threads, where they serve communication. gloo's events
    communicate wherever no kernel does: ranks that share a GPU meet over gloo.
    """
    is_device = bool(devices(raw).size)
    kind = np.array([_number(_KIND_OF_CATEGORY.get(name, "launch")) for name in CATEGORIES], dtype=np.int8)[
        raw.category
    ]
    is_host, is_kernel = kind == _number("host"), _is_of(raw, "kernel")
    communicates = _named(raw, is_communication) & (is_kernel | _is_of(raw, "gpu_memcpy"))
    communicates[[row for row, said in raw.said if is_kernel[row]]] = True
    kind[communicates] = _number("communication")

    is_gloo = is_host & _named(raw, lambda name: name.startswith(GLOO))
    if not is_device:
        # send and receive run on the caller's thread, which computes too.
        is_apart = is_gloo & ~_named(raw, lambda name: name.startswith((f"{GLOO}send", f"{GLOO}recv")))
        of_gloo = np.isin(raw.thread, np.unique(raw.thread[is_apart]))
        kind[is_host & ~of_gloo & _named(raw, lambda name: HOST_COMPUTE.match(name) is not None)] = _number("compute")
    if not (communicates & is_kernel).any():
        kind[is_gloo] = _number("communication")
    kind[is_host & _named(raw, lambda name: STEPS.match(name) is not None)] = _number("step")
    return kind, is_device


def _number(kind: Kind) -> int:
    return KINDS.index(kind)


def _is_of(raw: RawEvents, category: str) -> Chosen:
    chosen: Chosen = raw.category == CATEGORIES.index(category)
    return chosen


def _named(raw: RawEvents, rule: Callable[[str], bool]) -> Chosen:
    """Per event whether the rule holds of its name; each name is asked once."""
    chosen: Chosen = np.array([*map(rule, raw.names), False], dtype=np.bool_)[raw.name]
    return chosen
