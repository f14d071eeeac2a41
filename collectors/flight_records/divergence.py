"""Finds the first call in which ranks differ, from their Flight Records, and the rank that the others wait for.

Ranks of a process group enter its collectives in the same order, and each collective has a number in the record. So
records are compared group by group and number by number. The two ends of a message share no number: messages are
counted from the start, and left out if a record has lost its start.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from collectors.flight_records.dumps import CalledEntry, Dump
from collectors.rank.flight_entries import Entry, Work, call_name, message_ends, works_of
from collectors.traces.event_names import OTHER

ALIKE = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"})
"""Collectives to which all ranks must pass tensors of the same type and number of elements."""
SHOWN = 4
"""Maximum number of a call's sizes to list; a coalesced call may have hundreds."""

Kind = Literal["different", "missing", "incomplete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective, a message, or several coalesced ones, as a rank entered it.

    is_complete: on NCCL, the device completed it; on gloo, nothing waits for it any longer.
    has_begun: the device began it; None if torch did not time it, and on gloo.
    where: the innermost line of the program outside torch; None if the dump has no stacks.
    """

    words: str
    signature: tuple[object, ...]
    created_ns: int
    is_complete: bool
    has_begun: bool | None
    where: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first call of a process group that ranks entered differently, or that some did not enter or complete.

    number: counted from 1, the group's first collective or its first message in this direction.
    entered: the call of each rank. absent: ranks with a dump that did not enter the call. without_dump: ranks of the
    group without a dump.
    """

    kind: Kind
    group: str
    number: int
    entered: Mapping[int, Call]
    absent: tuple[int, ...] = ()
    without_dump: tuple[int, ...] = ()

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that entered the call and did not complete it."""
        return tuple(rank for rank, call in self.entered.items() if not call.is_complete)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The result of a comparison. ranks: those that the others wait for; empty if none can be named. first: the
    difference that shows it; None if there is no difference."""

    kind: Literal["different", "missing", "no dump", "cycle", "incomplete", "alike"]
    ranks: tuple[int, ...]
    first: Difference | None = None


@dataclass(slots=True)
class _Sequence:
    """Calls that some ranks make in the same order, by rank and number. ranks: all participants, if known."""

    group: str
    ranks: tuple[int, ...] | None
    calls: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))


def compare(dumps: Sequence[Dump]) -> list[Difference]:
    """Return the first difference in each process group's collectives, and in each direction of its messages."""
    by_rank = {dump.rank: dump for dump in dumps}
    differences = (_difference(sequence, by_rank) for sequence in _sequences(dumps))
    return sorted(
        (difference for difference in differences if difference is not None),
        key=lambda difference: min(call.created_ns for call in difference.entered.values()),
    )


def blame(differences: Sequence[Difference], dumps: Sequence[Dump]) -> Blame:
    """Return the ranks that the others wait for.

    Ranks that entered different collectives come first: everything after may be a consequence. Next come ranks without
    a dump, whose process may be gone. Then ranks that did not enter a call of the others and wait for none themselves.
    If each rank waits for another, they entered their groups in different orders.
    """
    for difference in differences:
        if difference.kind == "different":
            return Blame(kind="different", ranks=_minority(difference), first=difference)
    for difference in differences:
        if difference.without_dump and difference.waiting:
            return Blame(kind="no dump", ranks=difference.without_dump, first=difference)
    missing = [difference for difference in differences if difference.kind == "missing"]
    waiting = {rank for difference in differences for rank in difference.waiting}
    for difference in missing:
        if idle := tuple(rank for rank in difference.absent if rank not in waiting):
            return Blame(kind="missing", ranks=idle, first=difference)
    if missing:
        return Blame(kind="cycle", ranks=(), first=missing[0])
    for difference in differences:
        return Blame(kind="incomplete", ranks=_behind(difference), first=difference)
    return Blame(kind="alike", ranks=())


def _minority(difference: Difference) -> tuple[int, ...]:
    """Return the ranks that did not make the most common call; none if two calls are equally common."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, call in difference.entered.items():
        alike[call.signature].append(rank)
    most = max(map(len, alike.values()))
    if sum(len(ranks) == most for ranks in alike.values()) > 1:
        return ()
    return tuple(sorted(rank for ranks in alike.values() if len(ranks) < most for rank in ranks))


def _behind(difference: Difference) -> tuple[int, ...]:
    """Return the ranks whose devices, unlike others, have not begun the call, or else have not completed it."""
    calls = difference.entered
    tests: tuple[Callable[[Call], bool], ...] = (
        lambda call: call.has_begun is not False,
        lambda call: call.is_complete,
    )
    for test in tests:
        behind = tuple(sorted(rank for rank, call in calls.items() if not test(call)))
        if behind and len(behind) < len(calls):
            return behind
    return ()


# From entries to sequences of calls


def _sequences(dumps: Sequence[Dump]) -> list[_Sequence]:
    sequences: dict[tuple[str, tuple[int, ...] | None, str], _Sequence] = {}
    every = tuple(sorted(dump.rank for dump in dumps))
    for dump in dumps:
        is_timed = any(entry.time_discovered_started_ns for entry in dump.entries)
        counts: dict[tuple[str, str], int] = defaultdict(int)
        for work in works_of(dump.entries):
            name, description = work.end.process_group
            group = group_words(work.end)
            ranks = dump.groups.get(name) or (every if description == "default_pg" else None)
            if not work.is_message:
                sequence = sequences.setdefault((name, ranks, ""), _Sequence(group=group, ranks=ranks))
                sequence.calls[dump.rank][work.end.collective_seq_id or 0] = call_of(work, is_timed=is_timed)
            elif not dump.has_forgotten:
                for direction in filter(None, map(message_ends, work.entries)):
                    ends = direction if ranks is None else tuple(ranks[end] for end in direction if end < len(ranks))
                    words = f"{group}, from rank {ends[0]} to {ends[-1]}"
                    sequence = sequences.setdefault((name, ends, words), _Sequence(group=words, ranks=ends))
                    counts[name, words] += 1
                    sequence.calls[dump.rank][counts[name, words]] = call_of(work, is_timed=is_timed)
    forgetful = {dump.rank for dump in dumps if dump.has_forgotten}
    return [
        sequence
        for (_, _, direction), sequence in sequences.items()
        if not direction or forgetful.isdisjoint(sequence.ranks or ())
    ]


def _difference(sequence: _Sequence, dumps: Mapping[int, Dump]) -> Difference | None:
    """Return the first call that ranks entered differently; else the first that a rank did not enter or complete.

    If some ranks miss a later call, an earlier call that any rank completed is not to blame, even if it looks
    incomplete on other ranks: torch checks devices only occasionally.
    """
    calls = sequence.calls
    members = sequence.ranks or tuple(sorted(calls))
    # A rank without entries of this group entered no call, unless its record has lost its oldest entries.
    silent = (rank for rank in members if rank in dumps and rank not in calls and not dumps[rank].has_forgotten)
    last = {rank: max(numbered) for rank, numbered in calls.items()} | dict.fromkeys(silent, 0)

    def at(number: int, kind: Kind) -> Difference:
        return Difference(
            kind=kind,
            group=sequence.group,
            number=number,
            entered=_entered(sequence, number),
            absent=tuple(sorted(rank for rank, end in last.items() if end < number)),
            without_dump=tuple(rank for rank in members if rank not in dumps),
        )

    numbers = sorted({number for numbered in calls.values() for number in numbered})
    for number in numbers:
        if len({call.signature for call in _entered(sequence, number).values()}) > 1:
            return at(number, "different")
    missing = next((number for number in numbers if number > min(last.values())), None)
    for number in numbers:
        if number == missing:
            return at(number, "missing")
        is_complete = any if missing is not None else all
        if not is_complete(call.is_complete for call in _entered(sequence, number).values()):
            return at(number, "incomplete")
    return None


def group_words(entry: Entry) -> str:
    """Return a process group's name, with its description if the program gave one."""
    name, description = entry.process_group
    return name if description in ("", "undefined") else f"{name} ({description})"


def _entered(sequence: _Sequence, number: int) -> dict[int, Call]:
    return {rank: numbered[number] for rank, numbered in sorted(sequence.calls.items()) if number in numbered}


def call_of(work: Work, *, is_timed: bool = False) -> Call:
    """Return the call of a work. is_timed: the record has the calls that the device has begun."""
    first, end = work.entries[0], work.end
    names = [work.coalesced] if work.coalesced != OTHER else list(dict.fromkeys(map(call_name, work.entries)))
    tensors = [
        f"{'x'.join(map(str, size)) or '1'} {dtype}"
        for entry in work.entries
        for size, dtype in zip(entry.input_sizes, entry.input_dtypes, strict=False)
    ]
    more = f" and {len(tensors) - SHOWN} more" if len(tensors) > SHOWN else ""
    signature: tuple[object, ...] = ("message",) if work.is_message else tuple(names)
    if len(work.entries) == 1 and names[0] in ALIKE:
        # What must be equal on all ranks: numbers of input and output elements, and the types.
        given, filled = (sum(map(math.prod, sizes)) for sizes in (first.input_sizes, first.output_sizes))
        signature += (given, filled, *sorted(set(first.input_dtypes)))
    frames = first.frames if isinstance(first, CalledEntry) else ()
    # The first frame that is not torch's, nor the watch's, which wraps some of torch's functions.
    own = next(
        (
            frame
            for frame in frames
            if "torch" not in (file := PurePath(frame.filename)).parts and file.name != "observatory_watch_hooks.py"
        ),
        None,
    )
    return Call(
        words=" and ".join(names) + (f" of {', '.join(tensors[:SHOWN])}{more}" if tensors else ""),
        signature=signature,
        created_ns=end.time_created_ns,
        is_complete=end.state == "completed" or end.retired,
        has_begun=end.state != "scheduled" if is_timed else None,
        where=None if own is None else f"{own.filename}:{own.line} in {own.name}",
    )
