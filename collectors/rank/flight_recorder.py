"""Which collectives a rank has entered, with how many bytes, and how far its device came, by torch's Flight Recorder.

It records when TORCH_FR_BUFFER_SIZE is set, on gloo and NCCL alike, and forgets the oldest when that many are full.
Messages from one rank to another are recorded on NCCL only (torch 2.13). Those of one batch are an entry each, without
a state of their own, and are followed by an entry that closes them, which has the state and no sizes. The agent
reads records too, and loads no torch for that.
Source: ProcessGroupNCCL.cpp, pointToPoint, collective, collectiveCoalesced, endCoalescing and initWork;
FlightRecorderDetail.hpp, dump_json (torch 2.11 and 2.13).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from collectors.traces.event_names import OTHER, collective_of
from collectors.traces.reading.collective_args import DTYPES, Issued
from collectors.traces.timeline import Call

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """One collective. number: counted from 0 since the rank's start.

    name: as the laws call it, whatever the backend and torch call its form.
    group: the name of the process group whose ranks took part.
    payload_bytes: of the tensors that it was handed, or that it filled if those are larger: what an all_gather gathers
    and what a reduce_scatter takes in. Of a barrier 0: the element that NCCL reduces for it is no payload.
    """

    number: int
    name: str
    group: str
    payload_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far one rank came in what the ranks of a process group do in the same order.

    Each is a number counted from the group's first. issued: by the host. started, completed: by the device.
    started: None where torch does not time collectives (TORCH_NCCL_ENABLE_TIMING).
    """

    issued: int
    started: int | None
    completed: int


class _Entry(msgspec.Struct):
    record_id: int
    profiling_name: str
    process_group: tuple[str, str]  # Its name, and what it is for.
    input_sizes: list[list[int]]
    input_dtypes: list[str]
    output_sizes: list[list[int]] = []
    output_dtypes: list[str] = []
    is_p2p: bool = False
    collective_seq_id: int | None = None
    p2p_seq_id: int | None = None
    time_created_ns: int = 0
    state: str = "scheduled"
    time_discovered_started_ns: int = 0


class _Record(msgspec.Struct):
    entries: list[_Entry] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the device is given at once: one entry, or those of a coalesced group.

    end: the entry that has the state: the one that closes the group, or the only one.
    """

    parts: tuple[_Entry, ...]
    end: _Entry

    @property
    def is_message(self) -> bool:
        """It is a message, or a batch of them."""
        return any(part.is_p2p for part in self.parts)

    @property
    def whole(self) -> str:
        """The collective that the group as a whole is; `OTHER` where it is no group, or does not say."""
        return OTHER if self.parts == (self.end,) else collective_of(self.end.profiling_name)


# By c10's names of scalar types.
_ELEMENT_BYTES = {
    "Float": 4,
    "Double": 8,
    "Half": 2,
    "BFloat16": 2,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
}

_NO_TENSOR = "Undefined"
"""The dtype of what ranks other than the root hand over or fill in NCCL's gather and scatter."""

_CLOSING = re.compile(r"(?:^|[:_])coalesced$")
"""nccl:coalesced, and since torch 2.11 nccl:ALLGATHER_coalesced where a gather is made of broadcasts."""

_MESSAGE = re.compile(r"(?:send (?P<from>\d+)->(?P<to>\d+)|recv (?P<by>\d+)<-(?P<of>\d+))$")
"""Ranks are counted within the process group."""


class Forgotten(RuntimeError):
    """The recorder's buffer no longer holds all that was asked for, or records nothing."""


def dump(backend: str) -> bytes:
    """All that the recorder of the backend holds, as torch's JSON. NCCL has a recorder of its own."""
    from torch._C import _distributed_c10d

    name = "_dump_nccl_trace_json" if backend == "nccl" else "_dump_fr_trace_json"
    record: bytes = getattr(_distributed_c10d, name)(includeCollectives=True, onlyActive=False)
    return record


def count(record: bytes) -> int:
    """How many entries the rank had made when the record was: on gloo the collectives that it had entered."""
    return max((entry.record_id + 1 for entry in _entries(record)), default=0)


def reached(record: bytes) -> dict[str, Reached]:
    """How far the rank came with the collectives of each process group, and with the messages of each direction in it.

    The keys are alike on all ranks, such as "3" and "3 0->1". Messages have no number that both ends share, and are
    counted; where the record has forgotten some they are left out. Of NCCL: gloo's record has no states.
    """
    entries = _entries(record)
    is_timed = any(entry.time_discovered_started_ns for entry in entries)
    collectives: dict[str, list[tuple[int, str]]] = defaultdict(list)
    messages: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for work in _works(entries):
        group = work.end.process_group[0]
        if not work.is_message:
            collectives[group].append((work.end.collective_seq_id or 0, work.end.state))
            continue
        for part in work.parts:
            if way := _way(part):
                numbered = messages[f"{group} {way[0]}->{way[1]}"]
                numbered.append((len(numbered) + 1, work.end.state))
    if entries and entries[0].record_id > 0:
        messages.clear()
    return {key: _reached(numbered, is_timed=is_timed) for key, numbered in (collectives | messages).items()}


def _reached(numbered: Sequence[tuple[int, str]], *, is_timed: bool) -> Reached:
    before = min(number for number, _ in numbered) - 1
    completed = max((number for number, state in numbered if state == "completed"), default=before)
    started = max((number for number, state in numbered if state != "scheduled"), default=before)
    return Reached(
        issued=max(number for number, _ in numbered), started=started if is_timed else None, completed=completed
    )


def entered_since(before: bytes, after: bytes) -> list[Entered]:
    """The collectives that were entered between two records.

    NCCL's record has messages too, which are left out, so that both backends are counted alike. Of a collective that
    torch makes of several, each is told by the name of the whole: a gather of unlike parts is broadcasts on NCCL.

    Raises:
        Forgotten: more of them than the buffer holds, or elements of a size that is not known.
    """
    groups = group_ranks()
    return [
        Entered(
            number=part.record_id,
            name=_name(part) if work.whole == OTHER else work.whole,
            group=part.process_group[0],
            payload_bytes=_payload_bytes(part, len(groups.get(part.process_group[0], (0,)))),
        )
        for work in _works(_entries_since(before, after))
        if not work.is_message
        for part in work.parts
    ]


def issued_since(before: bytes, after: bytes) -> list[Issued]:
    """The same collectives, as the events of a trace are told by.

    Raises:
        Forgotten: more of them than the buffer holds.
    """
    return [one for one in works_since(before, after) if one.call.collective != "send"]


def works_since(before: bytes, after: bytes) -> list[Issued]:
    """The same, and messages: whatever the device was given at once, so that a batch of messages is one.

    Raises:
        Forgotten: more of them than the buffer holds.
    """
    groups = group_ranks()
    works = _works(_entries_since(before, after))
    return [_issued(work, groups.get(work.end.process_group[0], ())) for work in works]


def group_ranks() -> dict[str, tuple[int, ...]]:
    """The ranks of each group that this rank is in now, by the group's name."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _world

    return {str(group.group_name): tuple(dist.get_process_group_ranks(group)) for group in _world.pg_map}


def _entries_since(before: bytes, after: bytes) -> list[_Entry]:
    first = count(before)
    entries = [entry for entry in _entries(after) if entry.record_id >= first]
    if len(entries) != count(after) - first:
        raise Forgotten(f"the Flight Recorder holds {len(entries)} of the last {count(after) - first} collectives")
    return entries


def _works(entries: Iterable[_Entry]) -> list[_Work]:
    """The entries as works, in the order in which these were given to the device.

    An example, all of one group: all_reduce (collective 4), send 0->1 and recv 0<-1 (message 7), coalesced (collective
    4, message 7), all_reduce (collective 5). The entry that closes tells both numbers and not which of them is its own,
    so that the last before it decides: it is a message, and so the group is all messages of that number.
    """
    waiting: dict[str, list[_Entry]] = defaultdict(list)
    works = []
    for entry in entries:
        before = waiting[entry.process_group[0]]
        if not _closes(entry):
            before.append(entry)
            continue
        first = len(before)
        while first and _belongs(before[first - 1], entry, is_message=before[-1].is_p2p):
            first -= 1
        if first < len(before):  # The record may have forgotten what it closes.
            works.append(_Work(parts=tuple(before[first:]), end=entry))
        del before[first:]
        works += _alone(before)
        before.clear()
    works += _alone(one for before in waiting.values() for one in before)
    return sorted(works, key=lambda work: work.end.record_id)


def _alone(entries: Iterable[_Entry]) -> Iterator[_Work]:
    return (_Work(parts=(entry,), end=entry) for entry in entries)


def _closes(entry: _Entry) -> bool:
    return not entry.input_sizes and not entry.output_sizes and _CLOSING.search(entry.profiling_name) is not None


def _belongs(entry: _Entry, end: _Entry, *, is_message: bool) -> bool:
    """Whether the entry is one of those that this one closes, which are all messages or all collectives."""
    if entry.is_p2p != is_message:
        return False
    return entry.p2p_seq_id == end.p2p_seq_id if is_message else entry.collective_seq_id == end.collective_seq_id


def _issued(work: _Work, ranks: tuple[int, ...]) -> Issued:
    parts = work.parts
    dtypes = {DTYPES.get(name, name.lower()) for part in parts for name in (*part.input_dtypes, *part.output_dtypes)}
    if work.is_message:
        return Issued(
            event=work.end.profiling_name,
            created_ns=work.end.time_created_ns,
            call=Call(
                collective="send",
                group=work.end.process_group[0],
                ranks=ranks,
                dtype=dtypes.pop() if len(dtypes) == 1 else None,
                given_elements=_elements([size for part in parts if _is_sent(part) for size in part.input_sizes]),
                filled_elements=_elements([size for part in parts if not _is_sent(part) for size in part.output_sizes]),
                peer=_only_peer(parts, ranks),
            ),
            sequence=None,  # Messages are counted apart from collectives, and on each rank by itself.
        )
    given = _elements([size for part in parts for size in part.input_sizes])
    filled = _elements([size for part in parts for size in part.output_sizes])
    if given is not None and filled is not None and collective_of(parts[0].profiling_name) == "all_gather":
        filled = max(filled, len(ranks) * given)  # See `_payload_bytes`.
    names = {collective_of(part.profiling_name) for part in parts}
    return Issued(
        event=work.end.profiling_name,
        created_ns=work.end.time_created_ns,
        call=Call(
            collective=(names.pop() if len(names) == 1 else OTHER) if work.whole == OTHER else work.whole,
            group=work.end.process_group[0],
            ranks=ranks,
            dtype=dtypes.pop() if len(dtypes) == 1 else None,
            given_elements=given,
            filled_elements=filled,
        ),
        sequence=work.end.collective_seq_id,
    )


def _way(entry: _Entry) -> tuple[int, int] | None:
    """From which rank of the group to which a message goes."""
    found = _MESSAGE.search(entry.profiling_name)
    if found is None:
        return None
    ends = (found["from"], found["to"]) if found["from"] is not None else (found["of"], found["by"])
    return int(ends[0]), int(ends[1])


def _is_sent(entry: _Entry) -> bool:
    found = _MESSAGE.search(entry.profiling_name)
    return found is not None and found["from"] is not None


def _only_peer(parts: Sequence[_Entry], ranks: tuple[int, ...]) -> int | None:
    """The rank at the other end of all of them; None where there are several."""
    peers = {way[1] if _is_sent(part) else way[0] for part in parts if (way := _way(part))}
    peer = peers.pop() if len(peers) == 1 else None
    return ranks[peer] if peer is not None and peer < len(ranks) else None


def _elements(sizes: list[list[int]]) -> int | None:
    """Those of all tensors together; None where there is no tensor."""
    return sum(math.prod(size) for size in sizes) if sizes else None


def _entries(record: bytes) -> list[_Entry]:
    return msgspec.json.decode(record, type=_Record).entries


def _name(entry: _Entry) -> str:
    """The collective, by the rules that name the events of a trace; torch's own word where they know none."""
    collective = collective_of(entry.profiling_name)
    return collective if collective != OTHER else entry.profiling_name.partition(":")[2] or entry.profiling_name


def _payload_bytes(entry: _Entry, ranks: int) -> int:
    given_bytes = _tensor_bytes(entry.input_sizes, entry.input_dtypes)
    filled_bytes = _tensor_bytes(entry.output_sizes, entry.output_dtypes)
    name = _name(entry)
    if name == "barrier":
        return 0
    if name == "all_gather":
        # Of DTensor's gathers on gloo the record has one rank's part for what is filled (torch 2.13).
        filled_bytes = max(filled_bytes, ranks * given_bytes)
    return max(given_bytes, filled_bytes)


def _tensor_bytes(sizes: list[list[int]], dtypes: list[str]) -> int:
    tensors = [(size, dtype) for size, dtype in zip(sizes, dtypes, strict=True) if dtype != _NO_TENSOR]
    unknown = {dtype for _, dtype in tensors} - set(_ELEMENT_BYTES)
    if unknown:
        raise Forgotten(f"the Flight Recorder names elements of unknown size: {', '.join(sorted(unknown))}")
    return sum(math.prod(size) * _ELEMENT_BYTES[dtype] for size, dtype in tensors)


# Which axis of the device mesh each process group belongs to, so that the traffic of an axis is counted apart.

OTHER_AXIS = "other"
"""In place of an axis, where ranks of several took part."""


def axes_of_groups(mesh: DeviceMesh) -> dict[str, str]:
    """The mesh axis of each group that this rank is in now, by the group's name; a group of several axes is left out.

    Beside the mesh's own groups there are those that libraries make for themselves: of all ranks of an axis, or of some
    of them, as where FSDP2 keeps weights divided among a few. Theirs is the axis that has all their ranks.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _world

    names = mesh.mesh_dim_names
    assert names is not None, "cards name their axes"
    own = {name: mesh.get_group(name) for name in names}
    members = {name: set(dist.get_process_group_ranks(group)) for name, group in own.items()}
    axes = {}
    for group in _world.pg_map:
        ranks = set(dist.get_process_group_ranks(group))
        for axis, axis_ranks in members.items():
            if ranks <= axis_ranks:
                axes[str(group.group_name)] = axis
                break
    # An axis of one rank is part of all others.
    return axes | {str(group.group_name): axis for axis, group in own.items()}
