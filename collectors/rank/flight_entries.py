"""Entries of torch's Flight Recorder, and their grouping into works; reading them does not need torch.

Only NCCL records messages from one rank to another (torch 2.13). Each message of a batch is an entry without a state;
the entry that closes the batch follows them and has the state but no sizes.
Source: ProcessGroupNCCL.cpp, pointToPoint, collective, collectiveCoalesced, endCoalescing and initWork;
FlightRecorderDetail.hpp, dump_json (torch 2.11 and 2.13).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from collectors.traces.event_names import OTHER, collective_of


class Entry(msgspec.Struct):
    """An entry as torch writes it. process_group: name and description. retired: nothing waits for it any longer."""

    record_id: int
    profiling_name: str
    process_group: tuple[str, str]
    input_sizes: list[list[int]]
    input_dtypes: list[str]
    output_sizes: list[list[int]] = []
    output_dtypes: list[str] = []
    is_p2p: bool = False
    collective_seq_id: int | None = None
    p2p_seq_id: int | None = None
    time_created_ns: int = 0
    state: str = "scheduled"
    time_discovered_started_ns: int | None = 0
    retired: bool = False


class Record(msgspec.Struct):
    """A record as torch writes it; oldest entries first."""

    entries: list[Entry] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The operations that the device gets in one call: an entry, or the entries of a coalesced group.

    end: the entry with the state: the group's closing entry, or the only entry.
    """

    entries: tuple[Entry, ...]
    end: Entry

    @property
    def is_message(self) -> bool:
        """Whether it is a message, or a batch of messages."""
        return any(entry.is_p2p for entry in self.entries)

    @property
    def coalesced(self) -> str:
        """The collective that a coalesced group implements; `OTHER` if it is unknown, or there is no group."""
        return OTHER if self.entries == (self.end,) else collective_of(self.end.profiling_name)


_CLOSING = re.compile(r"(?:^|[:_])coalesced$")
"""Closing entry: nccl:coalesced, and since torch 2.11 nccl:ALLGATHER_coalesced for a gather made of broadcasts."""

_MESSAGE = re.compile(r"(?:send (?P<from>\d+)->(?P<to>\d+)|recv (?P<by>\d+)<-(?P<of>\d+))$")
"""Name of a message, with its ranks numbered within the process group."""


def works_of(entries: Iterable[Entry]) -> list[Work]:
    """Group the entries into works, in the order in which the device got them.

    Example, all in one process group:

        all_reduce               collective 4                work 1
        send 0->1                message 7                   work 2
        recv 0<-1                message 7                   work 2
        coalesced                collective 4, message 7     work 2, closes it
        all_reduce               collective 5                work 3

    The closing entry has both numbers and does not say which applies. The entry just before it decides: it is a
    message, so the group consists of all messages with number 7.
    """
    waiting: dict[str, list[Entry]] = defaultdict(list)
    works = []
    for entry in entries:
        before = waiting[entry.process_group[0]]
        if entry.input_sizes or entry.output_sizes or not _CLOSING.search(entry.profiling_name):
            before.append(entry)
            continue
        # Walk back over the entries that this one closes: before[first:].
        first = len(before)
        while first and _belongs(before[first - 1], entry, is_message=before[-1].is_p2p):
            first -= 1
        if first < len(before):  # Otherwise the record has lost the entries that it closes.
            works.append(Work(entries=tuple(before[first:]), end=entry))
        del before[first:]
        works += _alone(before)
        before.clear()
    works += _alone(work for before in waiting.values() for work in before)
    return sorted(works, key=lambda work: work.end.record_id)


def _alone(entries: Iterable[Entry]) -> Iterator[Work]:
    return (Work(entries=(entry,), end=entry) for entry in entries)


def _belongs(entry: Entry, end: Entry, *, is_message: bool) -> bool:
    """Return whether `end` closes the entry; a group consists of messages only or of collectives only."""
    if entry.is_p2p != is_message:
        return False
    return entry.p2p_seq_id == end.p2p_seq_id if is_message else entry.collective_seq_id == end.collective_seq_id


def message_ends(entry: Entry) -> tuple[int, int] | None:
    """Return sender and receiver of a message, by rank within its group; None if the entry is not a message."""
    match = _MESSAGE.search(entry.profiling_name)
    if match is None:
        return None
    ends = (match["from"], match["to"]) if match["from"] is not None else (match["of"], match["by"])
    return int(ends[0]), int(ends[1])


def is_sent(entry: Entry) -> bool:
    """Return whether the entry is a message that this rank sends."""
    match = _MESSAGE.search(entry.profiling_name)
    return match is not None and match["from"] is not None


def call_name(entry: Entry) -> str:
    """Return the collective's name by the rules for trace events; torch's own name if the rules have none."""
    collective = collective_of(entry.profiling_name)
    return collective if collective != OTHER else entry.profiling_name.partition(":")[2] or entry.profiling_name
