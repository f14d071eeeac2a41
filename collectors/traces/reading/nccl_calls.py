"""What NCCL's kernels are where their trace does not say it, by the order in which the rank's own record has them.

torch 2.11 writes no number of a collective into a trace, and none writes of messages that are issued together, for they
are launched where no operator of torch's stands around them. A stream runs its kernels in the order of their launch,
and the host launches in the order of the record; so the kernels of one kind, by launch, are the record's, in order,
where they are as many, and none is launched before it was recorded or after the next was.
Source: ProcessGroupNCCL.cpp, endCoalescing, which has no RECORD_PARAM_COMMS; ParamCommsUtils.hpp, kSeqNum (since 2.12).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectors.traces.analyzers.kernels import GRAPH_LAUNCH
from collectors.traces.event_names import collective_of
from collectors.traces.reading.collective_args import CLOCKS_APART_NS, Issued, spoken
from collectors.traces.steps import launch_of
from collectors.traces.timeline import ABSENT, Call, Timeline

_OF_NCCL = re.compile(r"^(?:nccl|rccl)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """One of NCCL's.

    launch_ns: None where the trace does not have its launch. is_replayed: a CUDA graph launched it.
    call: None where it says nothing of itself. collective: by its name, where it says nothing.
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
        """The process group, where it says so."""
        return None if self.call is None else self.call.group


def with_calls(timeline: Timeline, issued: Sequence[Issued]) -> tuple[Timeline, tuple[str, ...]]:
    """The Timeline whose messages say whose they are, and whose collectives have numbers; and why others do not.

    issued: all that the rank issued during the trace, in order, a batch of messages as one. Kernels that a CUDA graph
    launched are in no record, and are left as they are; so is a window without events of the device.
    """
    if not timeline.is_device:
        return timeline, ()
    kernels = [kernel for kernel in _kernels(timeline) if not kernel.is_replayed]
    found: dict[int, Issued] = {}
    notes = []
    for pairs, note in (_messages(kernels, issued), *_numbers(kernels, issued)):
        found |= pairs
        notes += [note] if note is not None else []
    return (spoken(timeline, found) if found else timeline), tuple(notes)


def replayed(timeline: Timeline) -> int:
    """How many of its collectives a CUDA graph launched, so that torch issued none of them."""
    return sum(kernel.is_replayed for kernel in _kernels(timeline))


def why_uncounted(timeline: Timeline, issued: Sequence[Issued], *, has_graphs: bool) -> str | None:
    """Why the Flight Recorder does not have all that the window communicated; None where it does.

    has_graphs: whether the case asks for CUDA graphs. torch records nothing while it captures one, nor when it is
    replayed. A trace says which launches are a graph's; where it has lost them, more kernels than works tell it.
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
    """NCCL's, by start: those of its names, and those that say their process group, whatever they are called."""
    if not timeline.is_device:
        return []  # What communicates are gloo's events.
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
    """The kernels of batches of messages, by row; and why there are none where there should be."""
    silent = [kernel for kernel in kernels if kernel.collective == "send" and kernel.group is None]
    batches = [one for one in issued if one.call.collective == "send" and _is_batch(one)]
    if not silent and not batches:
        return {}, None
    absent = f"process groups, peers and bytes of {len(silent)} kernels of messages are absent: "
    if len(silent) != len(batches):
        return {}, f"{absent}the Flight Recorder has {len(batches)} batches of messages"
    in_order = _in_order(silent)
    if in_order is None:
        return {}, f"{absent}their launches are not in the trace"
    if not _fits(in_order, batches):
        return {}, f"{absent}they were not launched when the Flight Recorder has them issued"
    streams: dict[str | None, set[int]] = defaultdict(set)
    for kernel, one in zip(in_order, batches, strict=True):
        streams[one.call.group].add(kernel.stream)
    if any(len(of_group) > 1 for of_group in streams.values()):
        return {}, f"{absent}in the order of the Flight Recorder a process group would have several streams"
    return {kernel.row: one for kernel, one in zip(in_order, batches, strict=True)}, None


def _numbers(kernels: Sequence[_Kernel], issued: Sequence[Issued]) -> list[tuple[dict[int, Issued], str | None]]:
    """Of each process group and collective the kernels without a number, by row, with what they are."""
    ran: dict[tuple[str, str], list[_Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.group is not None and kernel.collective != "send":
            ran[kernel.group, kernel.collective].append(kernel)
    recorded: dict[tuple[str | None, str], list[Issued]] = defaultdict(list)
    for one in issued:
        recorded[one.call.group, one.call.collective].append(one)
    numbered: list[tuple[dict[int, Issued], str | None]] = []
    for (group, collective), its in sorted(ran.items()):
        if all(kernel.is_numbered for kernel in its):
            continue
        ones, in_order = recorded[group, collective], _in_order(its)
        absent = f"numbers of {collective} in process group {group} are absent: "
        if len(its) != len(ones):
            note = f"{absent}{len(its)} of its kernels were traced, and the Flight Recorder has {len(ones)}"
            numbered.append(({}, note))
        elif in_order is None or not _fits(in_order, ones):
            numbered.append(({}, f"{absent}its kernels were not launched when the Flight Recorder has them issued"))
        else:
            pairs = {
                kernel.row: replace(one, call=kernel.call or one.call)
                for kernel, one in zip(in_order, ones, strict=True)
            }
            numbered.append((pairs, None))
    return numbered


def _is_batch(one: Issued) -> bool:
    """Whether these are messages that were issued together; one that was issued alone says itself what it is."""
    return one.event.endswith("coalesced")


def _in_order(kernels: Sequence[_Kernel]) -> list[_Kernel] | None:
    """By launch; by start where a launch is missing and they are of one stream; None where neither tells."""
    if all(kernel.launch_ns is not None for kernel in kernels):
        return sorted(kernels, key=lambda kernel: (kernel.launch_ns, kernel.start_ns))
    if len({kernel.stream for kernel in kernels}) == 1:
        return sorted(kernels, key=lambda kernel: kernel.start_ns)
    return None


def _fits(kernels: Sequence[_Kernel], ones: Sequence[Issued]) -> bool:
    """Whether each was launched after it was recorded, and before the next was."""
    following = [*(one.created_ns for one in ones[1:]), None]
    for kernel, one, next_ns in zip(kernels, ones, following, strict=True):
        launch_ns = kernel.launch_ns
        if (kernel.start_ns if launch_ns is None else launch_ns) + CLOCKS_APART_NS < one.created_ns:
            return False
        if launch_ns is not None and next_ns is not None and launch_ns > next_ns + CLOCKS_APART_NS:
            return False
    return True
