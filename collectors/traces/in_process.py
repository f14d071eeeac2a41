"""From the events of a profiler in this process to a Timeline, without the detour over JSON.

`prof.events()` and `key_averages()` build a tree that takes twenty times as long; the raw events do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from collectors.traces.names import GLOO, HOST_COMPUTE, STEP, is_communication_kernel
from collectors.traces.spans import Kind, Span, Timeline, timeline_of

GPU_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
HOST_ACTIVITIES = frozenset({"cpu_op", "user_annotation"})


class Event(Protocol):
    """What is read of a kineto event; `torch.profiler` gives such."""

    def name(self) -> str: ...
    def activity_type(self) -> str: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def device_resource_id(self) -> int: ...
    def metadata_json(self) -> str: ...


def read_events(events: Iterable[Event], *, rank: int) -> Timeline:
    """The Timeline of these events.

    Where the device has events of its own, its kernels compute and communicate and the host's operators only issue
    them. Without a device, operators compute, except on gloo's own threads, where they serve communication. gloo's
    events communicate wherever no kernel does.
    """
    rows = list(events)
    kernels = [event for event in rows if event.activity_type() == "kernel"]
    is_device = bool(kernels)
    # Ranks that share a GPU meet over gloo: their kernels compute, and the host communicates.
    is_gloo = not any(is_communication_kernel(event.name(), event.metadata_json()) for event in kernels)
    gloo_threads = {
        event.device_resource_id()
        for event in rows
        if event.name().startswith(GLOO) and not _is_on_callers_thread(event.name())
    }
    spans = [
        Span(
            name=event.name(),
            kind=kind,
            start_ns=event.start_ns(),
            end_ns=event.end_ns(),
            stream=event.device_resource_id(),
        )
        for event in rows
        if (kind := _kind(event, is_device, is_gloo, gloo_threads)) is not None
    ]
    return timeline_of(spans, rank=rank, is_device=is_device)


def _is_on_callers_thread(name: str) -> bool:
    return name.startswith((f"{GLOO}send", f"{GLOO}recv"))


def _kind(event: Event, is_device: bool, is_gloo: bool, gloo_threads: set[int]) -> Kind | None:
    """The event's kind; None for what is not kept: calls of the driver, Python frames, marks of the device."""
    activity, name = event.activity_type(), event.name()
    if activity == "kernel":
        return "communication" if is_communication_kernel(name, event.metadata_json()) else "compute"
    if activity in GPU_COPIES:
        return "copy"
    if activity not in HOST_ACTIVITIES:
        return None
    if name == STEP:
        return "step"
    if is_gloo and name.startswith(GLOO):
        return "communication"
    if is_device:
        return "host"
    if event.device_resource_id() not in gloo_threads and HOST_COMPUTE.match(name):
        return "compute"
    return "host"
