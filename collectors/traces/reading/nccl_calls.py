"""Adds information on NCCL's kernels that a trace lacks, from the rank's own record (the Flight Recorder).

torch 2.11 writes no sequence numbers of collectives into a trace, and no version describes messages that are issued
together, since no operator of torch surrounds their launch. A stream runs its kernels in the order of launch, and the
host launches in the order of the record. So the kernels of a kind, sorted by launch, match the record in order, if the
numbers are equal and none was launched before its record or after the next one.
Source: ProcessGroupNCCL.cpp, endCoalescing, which has no RECORD_PARAM_COMMS; ParamCommsUtils.hpp, kSeqNum (since 2.12).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectors.traces.event_names import GRAPH_LAUNCH, collective_of
from collectors.traces.reading.collective_args import CLOCKS_APART_NS, Issued, replace_calls
from collectors.traces.steps import launch_of
from collectors.traces.timeline import ABSENT, Call, Timeline

_OF_NCCL = re.compile(r"^(?:nccl|rccl)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """A kernel of NCCL.

    launch_ns: None if the trace lacks its launch. is_replayed: a CUDA graph launched it.
    call: None if the trace does not describe it. collective: from the call, else from the kernel's name.
    """

    row: int
    start_ns: int
    launch_ns: int | None
    is_replayed: bool
    stream: int
    call: Call | None
    is_numbered: bool
    collective: str

    @property
    def group(self) -> str | None:
        """The process group, if the trace records it."""
        return None if self.call is None else self.call.group


def with_calls(timeline: Timeline, issued: Sequence[Issued]) -> tuple[Timeline, tuple[str, ...]]:
    """Return the Timeline with the calls of messages and the numbers of collectives; and why some are absent.

    issued: everything that the rank issued during the trace, in order; a batch of messages is one entry. Kernels that a
    CUDA graph launched are in no record and stay unchanged; so does a window without events of the device.
    """
    if not timeline.is_device:
        return timeline, ()
    kernels = [kernel for kernel in _kernels(timeline) if not kernel.is_replayed]
    records: dict[int, Issued] = {}
    notes = []
    for pairs, note in (_messages(kernels, issued), *_numbers(kernels, issued)):
        records |= pairs
        notes += [note] if note is not None else []
    return (replace_calls(timeline, records) if records else timeline), tuple(notes)


def replayed(timeline: Timeline) -> int:
    """Count the collectives that a CUDA graph launched, none of which torch issued."""
    return sum(kernel.is_replayed for kernel in _kernels(timeline))


def why_uncounted(timeline: Timeline, issued: Sequence[Issued], *, has_graphs: bool) -> str | None:
    """Return why the Flight Recorder lacks some of the window's communication; None if it has all.

    has_graphs: whether the case uses CUDA graphs. torch records nothing while it captures or replays a graph. A trace
    shows which launches are a graph's; if it has lost them, it has more kernels than were recorded.
    Source: ProcessGroupNCCL.cpp, collective: initWork(record=enqueue), and enqueue is false during capture.
    """
    if count := replayed(timeline):
        return f"{count} collectives were replayed from CUDA graphs, which the Flight Recorder does not see"
    if not has_graphs:
        return None
    if not timeline.is_device:
        return "CUDA graphs may have replayed collectives, and the window has no events of the device that would tell"
    kernels = len(_kernels(timeline))
    if kernels > len(issued):
        return (
            f"{kernels} kernels of NCCL ran, and the Flight Recorder has {len(issued)} collectives: CUDA graphs have"
            " replayed the others, or they took several kernels each"
        )
    return None


def _kernels(timeline: Timeline) -> list[_Kernel]:
    """Return NCCL's kernels by start: those with NCCL's names, and any whose process group is recorded."""
    if not timeline.is_device:
        return []  # Without a device, only gloo communicates.
    launches = launch_of(timeline)
    kernels = []
    for row in np.flatnonzero(timeline.of_kind("communication")).tolist():
        name = timeline.names[timeline.name[row]]
        call = None if timeline.call[row] == ABSENT else timeline.calls[timeline.call[row]]
        if _OF_NCCL.match(name) is None and (call is None or call.group is None):
            continue
        launch = int(launches[row])
        kernels.append(
            _Kernel(
                row=row,
                start_ns=int(timeline.start_ns[row]),
                launch_ns=None if launch == ABSENT else int(timeline.start_ns[launch]),
                is_replayed=launch != ABSENT and GRAPH_LAUNCH in timeline.names[timeline.name[launch]],
                stream=int(timeline.stream[row]),
                call=call,
                is_numbered=bool(timeline.sequence[row] != ABSENT),
                collective=collective_of(name) if call is None else call.collective,
            )
        )
    return kernels


def _messages(kernels: Sequence[_Kernel], issued: Sequence[Issued]) -> tuple[dict[int, Issued], str | None]:
    """Return the records of message batches by kernel row; or why they are absent."""
    undescribed = [kernel for kernel in kernels if kernel.collective == "send" and kernel.group is None]
    # Messages that were issued together; the trace describes a message that was issued alone.
    batches = [record for record in issued if record.call.collective == "send" and record.event.endswith("coalesced")]
    if not undescribed and not batches:
        return {}, None
    absent = f"process groups, peers and bytes of {len(undescribed)} kernels of messages are absent: "
    if len(undescribed) != len(batches):
        return {}, f"{absent}the Flight Recorder has {len(batches)} batches of messages"
    in_order = _in_order(undescribed)
    if in_order is None:
        return {}, f"{absent}their launches are not in the trace"
    if not _fits(in_order, batches):
        return {}, f"{absent}they were not launched when the Flight Recorder has them issued"
    streams: dict[str | None, set[int]] = defaultdict(set)
    for kernel, record in zip(in_order, batches, strict=True):
        streams[record.call.group].add(kernel.stream)
    if any(len(of_group) > 1 for of_group in streams.values()):
        return {}, f"{absent}in the order of the Flight Recorder a process group would have several streams"
    return {kernel.row: record for kernel, record in zip(in_order, batches, strict=True)}, None


def _numbers(kernels: Sequence[_Kernel], issued: Sequence[Issued]) -> list[tuple[dict[int, Issued], str | None]]:
    """Return for each process group and collective the records of unnumbered kernels by row, or why they are absent."""
    ran: dict[tuple[str, str], list[_Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.group is not None and kernel.collective != "send":
            ran[kernel.group, kernel.collective].append(kernel)
    recorded: dict[tuple[str | None, str], list[Issued]] = defaultdict(list)
    for record in issued:
        recorded[record.call.group, record.call.collective].append(record)
    numbered: list[tuple[dict[int, Issued], str | None]] = []
    for (group, collective), traced in sorted(ran.items()):
        if all(kernel.is_numbered for kernel in traced):
            continue
        records, in_order = recorded[group, collective], _in_order(traced)
        absent = f"numbers of {collective} in process group {group} are absent: "
        if len(traced) != len(records):
            note = f"{absent}{len(traced)} of its kernels were traced, and the Flight Recorder has {len(records)}"
            numbered.append(({}, note))
        elif in_order is None or not _fits(in_order, records):
            numbered.append(({}, f"{absent}its kernels were not launched when the Flight Recorder has them issued"))
        else:
            pairs = {
                kernel.row: replace(record, call=kernel.call or record.call)
                for kernel, record in zip(in_order, records, strict=True)
            }
            numbered.append((pairs, None))
    return numbered


def _in_order(kernels: Sequence[_Kernel]) -> list[_Kernel] | None:
    """Sort by launch; by start if a launch is missing but all are on one stream; else None."""
    if all(kernel.launch_ns is not None for kernel in kernels):
        return sorted(kernels, key=lambda kernel: (kernel.launch_ns, kernel.start_ns))
    if len({kernel.stream for kernel in kernels}) == 1:
        return sorted(kernels, key=lambda kernel: kernel.start_ns)
    return None


def _fits(kernels: Sequence[_Kernel], records: Sequence[Issued]) -> bool:
    """Return whether each kernel was launched after its record, and before the next record."""
    following = [*(record.created_ns for record in records[1:]), None]
    for kernel, record, next_ns in zip(kernels, records, following, strict=True):
        launch_ns = kernel.launch_ns
        if (kernel.start_ns if launch_ns is None else launch_ns) + CLOCKS_APART_NS < record.created_ns:
            return False
        if launch_ns is not None and next_ns is not None and launch_ns > next_ns + CLOCKS_APART_NS:
            return False
    return True
