"""Which collectives a rank has entered, and with how many bytes, by torch's Flight Recorder.

It records when TORCH_FR_BUFFER_SIZE is set, on gloo and NCCL alike, and forgets the oldest when that many are full.
Messages from one rank to another are not told here: gloo's are in no record (torch 2.13).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from collectors.traces.calls import Call
from collectors.traces.names import collective_of
from collectors.traces.reading.collectives_said import DTYPES
from collectors.traces.reading.gloo_calls import Issued


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """One collective. number: counted from 0 since the rank's start.

    group: the name of the process group whose ranks took part.
    payload_bytes: of the tensors that it was handed, or that it filled if those are larger: what an all_gather gathers
    and what a reduce_scatter takes in.
    """

    number: int
    name: str
    group: str
    payload_bytes: int


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
    time_created_ns: int = 0


class _Record(msgspec.Struct):
    entries: list[_Entry] = []


# Names of c10's scalar types, where torch's own differ.
_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


# What torch calls the forms of a collective that take one tensor in place of a list.
_NAMES = {"_all_gather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}


class Forgotten(RuntimeError):
    """The recorder's buffer no longer holds all that was asked for, or records nothing."""


def dump(backend: str) -> bytes:
    """All that the recorder of the backend holds, as torch's JSON. NCCL has a recorder of its own."""
    from torch._C import _distributed_c10d

    name = "_dump_nccl_trace_json" if backend == "nccl" else "_dump_fr_trace_json"
    record: bytes = getattr(_distributed_c10d, name)(includeCollectives=True, onlyActive=False)
    return record


def count(record: bytes) -> int:
    """How many collectives the rank had entered when the record was made."""
    return max((entry.record_id + 1 for entry in _entries(record)), default=0)


def entered_since(before: bytes, after: bytes) -> list[Entered]:
    """The collectives that were entered between two records.

    NCCL's record has messages too, which are left out, so that both backends are counted alike.

    Raises:
        Forgotten: more of them than the buffer holds, or elements of a size that is not known.
    """
    groups = group_ranks()
    return [
        Entered(
            number=entry.record_id,
            name=_name(entry),
            group=entry.process_group[0],
            payload_bytes=_payload_bytes(entry, len(groups.get(entry.process_group[0], (0,)))),
        )
        for entry in _entries_since(before, after)
    ]


def issued_since(before: bytes, after: bytes) -> list[Issued]:
    """The same collectives, as the events of a trace are told by.

    Raises:
        Forgotten: more of them than the buffer holds.
    """
    groups = group_ranks()
    return [_issued(entry, groups.get(entry.process_group[0], ())) for entry in _entries_since(before, after)]


def group_ranks() -> dict[str, tuple[int, ...]]:
    """The ranks of each group that this rank is in now, by the group's name."""
    return {str(group.group_name): tuple(dist.get_process_group_ranks(group)) for group in _world.pg_map}


def _entries_since(before: bytes, after: bytes) -> list[_Entry]:
    first = count(before)
    entries = [entry for entry in _entries(after) if entry.record_id >= first]
    if len(entries) != count(after) - first:
        raise Forgotten(f"the Flight Recorder holds {len(entries)} of the last {count(after) - first} collectives")
    return [entry for entry in entries if not entry.is_p2p]


def _issued(entry: _Entry, ranks: tuple[int, ...]) -> Issued:
    dtypes = {DTYPES.get(name, name.lower()) for name in (*entry.input_dtypes, *entry.output_dtypes)}
    given, filled = _elements(entry.input_sizes), _elements(entry.output_sizes)
    if given is not None and filled is not None and _name(entry) == "all_gather":
        filled = max(filled, len(ranks) * given)  # See `_payload_bytes`.
    return Issued(
        event=entry.profiling_name,
        created_ns=entry.time_created_ns,
        call=Call(
            collective=collective_of(entry.profiling_name),
            group=entry.process_group[0],
            ranks=ranks,
            dtype=dtypes.pop() if len(dtypes) == 1 else None,
            given_elements=given,
            filled_elements=filled,
        ),
        sequence=entry.collective_seq_id,
    )


def _elements(sizes: list[list[int]]) -> int | None:
    """Those of all tensors together; None where there is no tensor."""
    return sum(math.prod(size) for size in sizes) if sizes else None


def _entries(record: bytes) -> list[_Entry]:
    return msgspec.json.decode(record, type=_Record).entries


def _name(entry: _Entry) -> str:
    """The collective: gloo:all_reduce and nccl:all_reduce are one, and what takes one tensor is what takes a list."""
    name = entry.profiling_name.partition(":")[2] or entry.profiling_name
    return _NAMES.get(name, name)


def _payload_bytes(entry: _Entry, ranks: int) -> int:
    given_bytes = _tensor_bytes(entry.input_sizes, entry.input_dtypes)
    filled_bytes = _tensor_bytes(entry.output_sizes, entry.output_dtypes)
    if _name(entry) == "all_gather":
        # Of DTensor's gathers on gloo the record has one rank's part for what is filled (torch 2.13).
        filled_bytes = max(filled_bytes, ranks * given_bytes)
    return max(given_bytes, filled_bytes)


def _tensor_bytes(sizes: list[list[int]], dtypes: list[str]) -> int:
    unknown = set(dtypes) - set(_DTYPES)
    if unknown:
        raise Forgotten(f"the Flight Recorder names elements of unknown size: {', '.join(sorted(unknown))}")
    return sum(math.prod(size) * _DTYPES[dtype].itemsize for size, dtype in zip(sizes, dtypes, strict=True))
