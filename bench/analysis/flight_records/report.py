"""Reports the Flight Records of a job: the first call on which ranks differ, and the missing ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bench.errors import plural
from collectors.flight_records.divergence import Blame, Difference, blame, call_of, compare, group_words
from collectors.flight_records.dumps import Dump
from collectors.rank.flight_entries import works_of
from collectors.rank.rank_list import listed
from collectors.traces.table import Table, table_of

NO_GROUPS = (
    "these dumps, like all of gloo's, do not list the ranks of groups, so a rank that entered no call of a group is not"
    " reported as missing there"
)
STILL_RUNNING = "dumps of a job that still runs show ranks that are merely late as missing"


def records(dumps: Sequence[Dump]) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    """Return the tables (the first difference of each group, and the newest call of each rank) and the notes."""
    differences = compare(dumps)
    blamed = blame(differences, dumps)
    tables = (
        table_of(
            "differences",
            verdict(blamed),
            "group number what call entered missing where",
            (row for difference in differences for row in _rows(difference)),
            f"compared: {plural(len(dumps), 'dump')}, of {_ranks(dump.rank for dump in dumps)}",
        ),
        table_of(
            "ranks",
            "the newest call of each rank",
            "rank entries group number call state where",
            map(_newest, dumps),
        ),
    )
    notes = []
    if not any(dump.groups for dump in dumps):
        notes.append(NO_GROUPS)
    if blamed.kind in ("missing", "cycle", "incomplete"):
        notes.append(STILL_RUNNING)
    if forgetful := [dump.rank for dump in dumps if dump.has_forgotten]:
        notes.append(
            f"{_ranks(forgetful)}: the oldest entries are gone, so messages are not compared; set a larger"
            " TORCH_FR_BUFFER_SIZE"
        )
    return tables, tuple(notes)


def verdict(blamed: Blame) -> str:
    """Return the conclusion from the records, as a sentence."""
    first = blamed.first
    if first is None:
        return "all ranks entered the same calls and completed them"
    place = f"call {first.number} of group {first.group}"
    call = next(iter(first.entered.values())).words
    who = _ranks(blamed.ranks)
    if blamed.kind == "different":
        calls = " and ".join(f"{_ranks(ranks)} entered {words}" for words, ranks in _by_call(first).items())
        return f"ranks differ in {place}: {calls}"
    if blamed.kind == "no dump":
        waiting = f"{_ranks(first.waiting)} {_verb(first.waiting, 'wait')}"
        return f"{who} left no dump and may have ended; {waiting} in {place}, {call}"
    if blamed.kind == "missing":
        others = tuple(first.entered)
        return f"{who} {_has(blamed.ranks)} not entered {place}, {call}; {_ranks(others)} {_has(others)}"
    if blamed.kind == "cycle":
        return (
            f"each rank waits for another: {_ranks(first.absent)} {_has(first.absent)} not entered {place}, {call}, and"
            f" {_verb(first.absent, 'wait')} in another group; ranks enter these groups in different orders"
        )
    if not blamed.ranks:
        return f"all ranks entered {place}, {call}, and none completed it"
    step = "begun" if any(entered.has_begun is False for entered in first.entered.values()) else "completed"
    return f"all ranks entered {place}, {call}; {who} {_has(blamed.ranks)} not {step} it"


def _by_call(difference: Difference) -> dict[str, list[int]]:
    """Return the ranks by the call that they entered, the most frequent call last."""
    ranks: dict[str, list[int]] = {}
    for rank, call in difference.entered.items():
        ranks.setdefault(call.words, []).append(rank)
    return dict(sorted(ranks.items(), key=lambda item: len(item[1])))


def _rows(difference: Difference) -> Iterator[tuple[str | int | None, ...]]:
    """Yield a row for each form of the call: which ranks entered it, and from where."""
    absent = listed((*difference.absent, *difference.without_dump)) or None
    for words, ranks in _by_call(difference).items():
        places = {difference.entered[rank].where for rank in ranks}
        where = places.pop() if len(places) == 1 else None
        yield difference.group, difference.number, difference.kind, words, listed(ranks), absent, where


def _newest(dump: Dump) -> tuple[str | int | None, ...]:
    entry = max(dump.entries, key=lambda entry: entry.record_id, default=None)
    if entry is None:
        return dump.rank, 0, None, None, None, None, None
    (work,) = works_of([entry])
    call = call_of(work, is_timed=any(each.time_discovered_started_ns for each in dump.entries))
    state = "completed" if call.is_complete else "begun" if call.has_begun else "entered"
    number = entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id
    return dump.rank, entry.record_id + 1, group_words(entry), number, call.words, state, call.where


def _ranks(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    return f"rank{'s' * (len(numbers) != 1)} {listed(numbers)}"


def _has(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _verb(ranks: Sequence[int], verb: str) -> str:
    return f"{verb}s" if len(ranks) == 1 else verb
