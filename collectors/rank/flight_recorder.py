"""Reads torch's Flight Recorder: the collectives that a rank entered, their bytes, and its device's progress.

TORCH_FR_BUFFER_SIZE turns the recorder on, for both gloo and NCCL, and sets how many of the newest entries it keeps.
The agent also reads records, so this module loads torch only in the functions that need it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from collectors.rank.flight_entries import Entry, Record, Work, call_name, is_sent, message_ends, works_of
from collectors.rank.reached import Reached
from collectors.traces.event_names import OTHER, collective_of
from collectors.traces.reading.collective_args import DTYPES, Issued
from collectors.traces.timeline import Call

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """A collective that the rank entered.

    number: counted from 0 since the rank's start.
    name: as in the cost models, independent of the backend's and torch's names for its variants.
    group: the name of the process group whose ranks took part.
    payload_bytes: size of the input tensors or of the output tensors, whichever is larger: the output of an all_gather,
    the input of a reduce_scatter. 0 for a barrier: the element that NCCL reduces for it does not count.
    """

    number: int
    name: str
    group: str
    payload_bytes: int


# Keys are c10's names of scalar types.
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
"""Dtype of the missing input or output on ranks other than the root, in NCCL's gather and scatter."""


class Forgotten(RuntimeError):
    """The Flight Recorder no longer holds all requested collectives, or does not know their sizes."""


def dump(backend: str) -> bytes:
    """Return the content of the backend's recorder as torch's JSON. NCCL has a recorder of its own."""
    from torch._C import _distributed_c10d

    name = "_dump_nccl_trace_json" if backend == "nccl" else "_dump_fr_trace_json"
    record: bytes = getattr(_distributed_c10d, name)(includeCollectives=True, onlyActive=False)
    return record


def count(record: bytes) -> int:
    """Return how many entries the rank had made when the record was taken; on gloo, the collectives entered by then."""
    return max((entry.record_id + 1 for entry in _entries(record)), default=0)


def reached(record: bytes, *, has_states: bool) -> dict[str, Reached]:
    """Return the rank's progress in each group's collectives, and in each group's messages in each direction.

    has_states: NCCL's record has what the device began and completed; gloo's has neither states nor messages.
    Keys are the same on all ranks: "3" for the collectives of group 3, "3 0->1" for its messages from rank 0 to rank 1.
    Both ends of a message share no number, so messages are counted here; they are left out if the record has lost its
    oldest entries.
    """
    entries = _entries(record)
    is_timed = any(entry.time_discovered_started_ns for entry in entries)
    collectives: dict[str, list[tuple[int, str]]] = defaultdict(list)
    messages: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for work in works_of(entries):
        group = work.end.process_group[0]
        if not work.is_message:
            collectives[group].append((work.end.collective_seq_id or 0, work.end.state))
            continue
        for entry in work.entries:
            if endpoints := message_ends(entry):
                numbered = messages[f"{group} {endpoints[0]}->{endpoints[1]}"]
                numbered.append((len(numbered) + 1, work.end.state))
    if entries and entries[0].record_id > 0:
        messages.clear()
    return {
        key: _reached(numbered, is_timed=is_timed)
        if has_states
        else Reached(issued=max(number for number, _ in numbered), started=None, completed=None)
        for key, numbered in (collectives | messages).items()
    }


def _reached(numbered: Sequence[tuple[int, str]], *, is_timed: bool) -> Reached:
    before = min(number for number, _ in numbered) - 1
    completed = max((number for number, state in numbered if state == "completed"), default=before)
    started = max((number for number, state in numbered if state != "scheduled"), default=before)
    return Reached(
        issued=max(number for number, _ in numbered), started=started if is_timed else None, completed=completed
    )


def last_entries(record: bytes, most: int) -> list[str]:
    """Describe each of the newest entries in a line, oldest first, for a person who examines where a rank hangs."""
    return [
        f"{entry.record_id}: {entry.profiling_name} in group {' '.join(filter(None, entry.process_group))},"
        f" {_sizes(entry.input_sizes)} to {_sizes(entry.output_sizes)}, {entry.state}"
        for entry in _entries(record)[-most:]
    ]


def _sizes(sizes: list[list[int]]) -> str:
    return " ".join("x".join(map(str, size)) or "1" for size in sizes) or "nothing"


def entered_since(before: bytes, after: bytes) -> list[Entered]:
    """Return the collectives that were entered between two records.

    Messages in NCCL's record are left out, so that counts of both backends agree. If torch implements a collective by
    several, each part has the name of the whole: a gather of unequal parts consists of broadcasts on NCCL.

    Raises:
        Forgotten: the buffer was too small for them, or has elements of an unknown size.
    """
    groups = group_ranks()
    return [
        Entered(
            number=entry.record_id,
            name=call_name(entry) if work.coalesced == OTHER else work.coalesced,
            group=entry.process_group[0],
            payload_bytes=_payload_bytes(entry, len(groups.get(entry.process_group[0], (0,)))),
        )
        for work in works_of(_entries_since(before, after))
        if not work.is_message
        for entry in work.entries
    ]


def issued_since(before: bytes, after: bytes) -> list[Issued]:
    """Return the collectives between two records in the form that is matched with the events of a trace.

    Raises:
        Forgotten: the buffer was too small for them.
    """
    return [work for work in works_since(before, after) if work.call.collective != "send"]


def works_since(before: bytes, after: bytes) -> list[Issued]:
    """Return the collectives and messages between two records; a batch of messages is a single work.

    Raises:
        Forgotten: the buffer was too small for them.
    """
    groups = group_ranks()
    works = works_of(_entries_since(before, after))
    return [_issued(work, groups.get(work.end.process_group[0], ())) for work in works]


def group_ranks() -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group that this rank belongs to now, by the group's name."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _world

    return {str(group.group_name): tuple(dist.get_process_group_ranks(group)) for group in _world.pg_map}


def _entries_since(before: bytes, after: bytes) -> list[Entry]:
    first = count(before)
    entries = [entry for entry in _entries(after) if entry.record_id >= first]
    if len(entries) != count(after) - first:
        raise Forgotten(f"the Flight Recorder holds {len(entries)} of the last {count(after) - first} collectives")
    return entries


def _issued(work: Work, ranks: tuple[int, ...]) -> Issued:
    entries = work.entries
    dtypes = {
        DTYPES.get(name, name.lower()) for entry in entries for name in (*entry.input_dtypes, *entry.output_dtypes)
    }
    peer = None
    if work.is_message:
        collective = "send"
        sequence = None  # Messages have their own count, separate on each rank.
        sent = _elements([size for entry in entries if is_sent(entry) for size in entry.input_sizes])
        filled = _elements([size for entry in entries if not is_sent(entry) for size in entry.output_sizes])
        # The global rank at the other end; None if there are several.
        peers = {
            endpoints[1] if is_sent(entry) else endpoints[0] for entry in entries if (endpoints := message_ends(entry))
        }
        if len(peers) == 1 and (number := peers.pop()) < len(ranks):
            peer = ranks[number]
    else:
        names = {collective_of(entry.profiling_name) for entry in entries}
        collective = work.coalesced
        if collective == OTHER and len(names) == 1:
            (collective,) = names
        sequence = work.end.collective_seq_id
        sent = _elements([size for entry in entries for size in entry.input_sizes])
        filled = _elements([size for entry in entries for size in entry.output_sizes])
        if sent is not None and filled is not None and collective_of(entries[0].profiling_name) == "all_gather":
            filled = max(filled, len(ranks) * sent)  # See `_payload_bytes`.
    return Issued(
        event=work.end.profiling_name,
        created_ns=work.end.time_created_ns,
        call=Call(
            collective=collective,
            group=work.end.process_group[0],
            ranks=ranks,
            dtype=dtypes.pop() if len(dtypes) == 1 else None,
            given_elements=sent,
            filled_elements=filled,
            peer=peer,
        ),
        sequence=sequence,
    )


def _elements(sizes: list[list[int]]) -> int | None:
    """Return the number of elements of all tensors; None if there are no tensors."""
    return sum(math.prod(size) for size in sizes) if sizes else None


def _entries(record: bytes) -> list[Entry]:
    return msgspec.json.decode(record, type=Record).entries


def _payload_bytes(entry: Entry, ranks: int) -> int:
    given_bytes = _tensor_bytes(entry.input_sizes, entry.input_dtypes)
    filled_bytes = _tensor_bytes(entry.output_sizes, entry.output_dtypes)
    name = call_name(entry)
    if name == "barrier":
        return 0
    if name == "all_gather":
        # For DTensor's gathers on gloo, the record has only a rank's part as the output (torch 2.13).
        filled_bytes = max(filled_bytes, ranks * given_bytes)
    return max(given_bytes, filled_bytes)


def _tensor_bytes(sizes: list[list[int]], dtypes: list[str]) -> int:
    tensors = [(size, dtype) for size, dtype in zip(sizes, dtypes, strict=True) if dtype != _NO_TENSOR]
    unknown = {dtype for _, dtype in tensors} - set(_ELEMENT_BYTES)
    if unknown:
        raise Forgotten(f"the Flight Recorder names elements of unknown size: {', '.join(sorted(unknown))}")
    return sum(math.prod(size) * _ELEMENT_BYTES[dtype] for size, dtype in tensors)


# Mesh axes of process groups, to count traffic by axis.

OTHER_AXIS = "other"
"""Used instead of an axis if ranks of several axes took part."""


def axes_of_groups(mesh: DeviceMesh) -> dict[str, str]:
    """Return the mesh axis of each group that this rank belongs to, by group name, without groups over several axes.

    Libraries also make groups of their own, of all or some ranks of an axis, for example if FSDP2 shards weights among
    a few ranks. Such a group belongs to the axis that contains all its ranks.
    """
    import torch.distributed as dist

    names = mesh.mesh_dim_names
    assert names is not None, "specs name their axes"
    own = {name: mesh.get_group(name) for name in names}
    members = {name: set(dist.get_process_group_ranks(group)) for name, group in own.items()}
    axes = {}
    for group_name, ranks in group_ranks().items():
        containing = [axis for axis, axis_ranks in members.items() if axis_ranks.issuperset(ranks)]
        if containing:
            axes[group_name] = containing[0]
    # The rank of a one-rank axis belongs to every axis, so the mesh's own groups take precedence.
    return axes | {str(group.group_name): axis for axis, group in own.items()}
