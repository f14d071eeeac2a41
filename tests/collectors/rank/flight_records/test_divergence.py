"""The first call on which ranks differ is found, and the rank that others wait for is named, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from collectors.flight_records.divergence import Blame, blame, compare
from collectors.flight_records.dumps import Dump, read_dump
from tests.collectors.made_nccl_record import MadeRecord, Size, State
from tests.collectors.rank.flight_records.ranks import CROSSED, LATE, dump_of_ranks

WORLD = {"0": "[0, 1, 2, 3]"}


def dumps_of(records: Mapping[int, MadeRecord], groups: Mapping[str, str] = WORLD) -> list[Dump]:
    """Return the dumps of these ranks. groups: torch's text of the ranks of each process group."""
    config = {name: {"name": name, "desc": "default_pg", "ranks": ranks} for name, ranks in groups.items()}
    return [
        read_dump(msgspec.json.encode({**msgspec.json.decode(record.json()), "pg_config": config}), rank)
        for rank, record in records.items()
    ]


def judged(records: Mapping[int, MadeRecord], groups: Mapping[str, str] = WORLD) -> Blame:
    dumps = dumps_of(records, groups)
    return blame(compare(dumps), dumps)


def made(*states: State, first_id: int = 0, is_timed: bool = True) -> MadeRecord:
    """Return the record of a rank that entered an all_reduce for each state."""
    record = MadeRecord(is_timed=is_timed, first_id=first_id)
    for state in states:
        record.collective("nccl:all_reduce", state=state)
    return record


def test_of_ranks_that_did_the_same_none_is_named() -> None:
    assert judged({rank: made("completed", "completed") for rank in range(4)}).kind == "alike"


@pytest.mark.parametrize("late", range(4))
def test_the_rank_that_did_not_enter_a_call_is_named(late: int) -> None:
    records = {rank: made("completed", "started") for rank in range(4)} | {late: made("completed")}
    found = judged(records)
    assert (found.kind, found.ranks) == ("missing", (late,))
    assert found.first is not None
    assert (found.first.number, found.first.group) == (2, "0 (default_pg)")
    assert found.first.waiting == tuple(rank for rank in range(4) if rank != late)


def test_a_rank_that_entered_nothing_at_all_is_named() -> None:
    found = judged({0: made("started"), 1: made("started"), 2: made("started"), 3: MadeRecord()})
    assert (found.kind, found.ranks) == ("missing", (3,))


def test_a_member_without_a_dump_is_named_and_only_while_others_wait() -> None:
    waiting = {rank: made("completed", "started") for rank in range(3)}
    assert (judged(waiting).kind, judged(waiting).ranks) == ("no dump", (3,))
    assert judged({rank: made("completed", "completed") for rank in range(3)}).kind == "alike"


def test_a_rank_that_waits_in_another_group_is_a_victim() -> None:
    """Rank 0 waits for 1 in group 0, and 1 waits for 2 in group 1: rank 2 is named."""
    records = {0: made("completed", "started"), 1: made("completed"), 2: MadeRecord(group="1")}
    for rank in (1, 2):
        records[rank].group = "1"
        records[rank].collective("nccl:broadcast")
    records[1].collective("nccl:broadcast", state="started")
    found = judged(records, {"0": "[0, 1]", "1": "[1, 2]"})
    assert (found.kind, found.ranks) == ("missing", (2,))
    assert found.first is not None
    assert found.first.group == "1 (default_pg)"


def test_groups_that_are_entered_in_different_orders_are_a_cycle() -> None:
    records = {rank: made("completed") for rank in range(2)}
    records[1].group = "1"
    for record in records.values():
        record.collective("nccl:all_reduce", state="started")
    assert judged(records, {"0": "[0, 1]", "1": "[0, 1]"}).kind == "cycle"


@pytest.mark.parametrize(
    ("title", "given", "dtype"),
    [
        ("nccl:broadcast", (4,), "Float"),
        ("nccl:all_reduce", (5,), "Float"),
        ("nccl:all_reduce", (4,), "Half"),
    ],
)
def test_a_rank_whose_call_is_of_another_kind_size_or_type_is_named(title: str, given: Size, dtype: str) -> None:
    records = {rank: made("completed", "started") for rank in range(3)}
    records[3] = made("completed").collective(title, (given,), dtype=dtype, state="started")
    # What follows is a consequence.
    for rank in range(3):
        records[rank].collective("nccl:all_reduce", state="scheduled")
    found = judged(records)
    assert (found.kind, found.ranks) == ("different", (3,))
    assert found.first is not None
    assert found.first.number == 2


def test_of_two_against_two_none_is_named() -> None:
    records = {rank: MadeRecord().collective("nccl:all_reduce", state="started") for rank in (0, 1)}
    records |= {rank: MadeRecord().collective("nccl:broadcast", state="started") for rank in (2, 3)}
    assert (judged(records).kind, judged(records).ranks) == ("different", ())


@pytest.mark.parametrize("title", ["nccl:all_to_all", "nccl:gather", "nccl:scatter"])
def test_sizes_that_ranks_may_give_differently_are_no_difference(title: str) -> None:
    sizes: tuple[Size, ...] = ((4,), (8,), (1,), (0,))
    records = {rank: MadeRecord().collective(title, (size,)) for rank, size in enumerate(sizes)}
    assert judged(records).kind == "alike"


def test_views_of_equally_many_elements_are_alike() -> None:
    sizes: tuple[Size, ...] = ((4, 2), (8,), (2, 2, 2), (1, 8))
    records = {rank: MadeRecord().collective("nccl:all_reduce", (size,)) for rank, size in enumerate(sizes)}
    assert judged(records).kind == "alike"


def test_a_device_that_has_not_begun_what_others_have_is_named() -> None:
    records = {rank: made("completed", "started") for rank in range(4)} | {2: made("completed", "scheduled")}
    assert (judged(records).kind, judged(records).ranks) == ("incomplete", (2,))


def test_a_call_that_all_began_and_none_completed_names_nobody() -> None:
    found = judged({rank: made("completed", "started") for rank in range(4)})
    assert (found.kind, found.ranks) == ("incomplete", ())
    untimed = judged({rank: made("completed", "scheduled", is_timed=False) for rank in range(4)})
    assert (untimed.kind, untimed.ranks) == ("incomplete", ())


def test_calls_that_hosts_issued_ahead_of_a_stuck_one_are_no_cause() -> None:
    """Rank 3's host is one call behind, but none of the devices gets past the second."""
    records = {rank: made("completed", "started", "scheduled") for rank in range(3)}
    found = judged(records | {3: made("completed", "started")})
    assert (found.kind, found.first is not None and found.first.number) == ("incomplete", 2)


def test_a_completed_call_that_one_record_does_not_show_as_such_yet_is_no_cause() -> None:
    records = {rank: made("completed", "started") for rank in range(3)}
    found = judged(records | {3: made("started")})
    assert (found.kind, found.ranks) == ("missing", (3,))


def test_records_that_have_forgotten_their_start_are_compared_where_they_overlap() -> None:
    """Ranks 0 to 2 hold calls 3 and 4 only; rank 3 holds all three that it entered."""
    records = {}
    for rank in range(3):
        record = made("completed", "completed", "completed", "started")
        record.entries = record.entries[2:]
        records[rank] = record
    found = judged(records | {3: made("completed", "completed", "completed")})
    assert (found.kind, found.ranks) == ("missing", (3,))
    assert found.first is not None
    assert found.first.number == 4


def test_a_message_that_its_receiver_did_not_ask_for_is_found() -> None:
    sender, receiver = MadeRecord(rank=0), MadeRecord(rank=1)
    sender.message("send", 1, (4,)).message("send", 1, (4,), state="started")
    receiver.message("recv", 0, (4,))
    found = judged({0: sender, 1: receiver}, {"0": "[0, 1]"})
    assert (found.kind, found.ranks) == ("missing", (1,))
    assert found.first is not None
    assert found.first.group == "0 (default_pg), from rank 0 to 1"


def test_messages_of_a_group_are_of_its_ranks() -> None:
    """Ranks 0 and 1 of group 5 are the ranks 2 and 3."""
    sender, receiver = MadeRecord(rank=0, group="5"), MadeRecord(rank=1, group="5")
    sender.batch([("send", 1, (4,))], state="started")
    receiver.collective("nccl:barrier", state="completed")
    found = judged({2: sender, 3: receiver}, {"5": "[2, 3]"})
    assert found.ranks == (3,)


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "kind", "ranks"), [(LATE, "missing", (1,)), (CROSSED, "cycle", ())])
def test_real_ranks_on_gloo_are_judged_by_what_they_entered(
    scenario: str, kind: str, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    dump_of_ranks(tmp_path, scenario)
    for name in ("nccl_trace_rank_{}", "rank{}.flight.json"):
        dumps = [read_dump((tmp_path / name.format(rank)).read_bytes(), rank) for rank in range(2)]
        found = blame(compare(dumps), dumps)
        assert (found.kind, found.ranks) == (kind, ranks)
