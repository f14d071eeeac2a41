"""A record of NCCL's is counted, named and told by the same words as one of gloo's."""

from __future__ import annotations

import pytest

from collectors.rank.flight_recorder import (
    count,
    entered_since,
    group_ranks,
    issued_since,
    reached,
    works_since,
)
from collectors.rank.reached import Reached
from collectors.traces.timeline import Call
from tests.collectors.made_nccl_record import CREATED_NS, EMPTY, STEP_NS, MadeRecord
from tests.support.ranks import OnRanks

# All titles that a record may bear, of torch 2.11 to 2.15. Source: the profilingTitle that each function of
# ProcessGroupNCCL.cpp hands to collective, collectiveCoalesced and pointToPoint, and of ProcessGroupGloo.cpp to
# AsyncWork; found as strings in libtorch_cuda.so and libtorch_cpu.so of 2.11.0 and 2.15.0, and in the latter of 2.13.0.
TITLES = {
    "nccl:all_reduce": "all_reduce",
    "nccl:all_reduce_sparse": "all_reduce",
    "nccl:allreduce_coalesced": "all_reduce",
    "nccl:all_reduce_barrier": "barrier",
    "nccl:broadcast": "broadcast",
    "nccl:_broadcast_oop": "broadcast",
    "nccl:reduce": "reduce",
    "nccl:_reduce_oop": "reduce",
    "nccl:all_gather": "all_gather",
    "nccl:_all_gather_base": "all_gather",
    "nccl:all_gather_into_tensor_coalesced": "all_gather",
    "nccl:reduce_scatter": "reduce_scatter",
    "nccl:_reduce_scatter_base": "reduce_scatter",
    "nccl:reduce_scatter_tensor_coalesced": "reduce_scatter",
    "nccl:all_to_all": "all_to_all",
    "nccl:gather": "gather",
    "nccl:gather_single": "gather",
    "nccl:scatter": "scatter",
    "gloo:all_reduce": "all_reduce",
    "gloo:sparse_all_reduce": "all_reduce",
    "gloo:broadcast": "broadcast",
    "gloo:reduce": "reduce",
    "gloo:all_gather": "all_gather",
    "gloo:all_to_all": "all_to_all",
    "gloo:gather": "gather",
    "gloo:scatter": "scatter",
    "gloo:barrier": "barrier",
}


@pytest.mark.parametrize(("title", "name"), TITLES.items())
def test_each_title_is_counted_and_told_by_the_name_of_its_law(title: str, name: str) -> None:
    record = MadeRecord().collective(title).json()
    assert [one.name for one in entered_since(EMPTY, record)] == [name]
    assert [one.call.collective for one in issued_since(EMPTY, record)] == [name]


def test_a_title_that_no_rule_knows_keeps_its_own_word() -> None:
    (one,) = entered_since(EMPTY, MadeRecord().collective("nccl:something_new").json())
    assert one.name == "something_new"


@pytest.mark.parametrize("title", ["nccl:all_gather_into_tensor_coalesced", "nccl:_all_gather_base"])
def test_a_gather_of_dtensor_is_counted_with_what_it_gathers(title: str) -> None:
    (one,) = entered_since(EMPTY, MadeRecord().collective(title, ((3,),), ((2, 3),), dtype="BFloat16").json())
    assert one.payload_bytes == 2 * 3 * 2


@pytest.mark.parametrize("title", ["nccl:reduce_scatter_tensor_coalesced", "nccl:_reduce_scatter_base"])
def test_a_reduce_scatter_is_counted_with_what_it_takes_in(title: str) -> None:
    (one,) = entered_since(EMPTY, MadeRecord().collective(title, ((8,),), ((4,),)).json())
    assert one.payload_bytes == 8 * 4


def test_the_element_that_nccl_reduces_for_a_barrier_is_no_payload() -> None:
    (one,) = entered_since(EMPTY, MadeRecord().collective("nccl:all_reduce_barrier", ((1,),)).json())
    assert (one.name, one.payload_bytes) == ("barrier", 0)


def test_ranks_that_only_receive_of_a_scatter_are_counted_by_what_they_receive() -> None:
    """Such a rank has no tensor to hand over, whose dtype torch then calls Undefined."""
    record = MadeRecord().collective("nccl:scatter", ((4,),), ((0,),))
    record.entries[0]["output_dtypes"] = ["Undefined"]
    (one,) = entered_since(EMPTY, record.json())
    assert (one.name, one.payload_bytes) == ("scatter", 16)


def test_a_gather_of_unlike_parts_is_one_gather_of_all_of_them() -> None:
    record = MadeRecord().collective("nccl:all_reduce").unlike_gather(((3,), (5,))).json()
    reduced, *parts = entered_since(EMPTY, record)
    assert reduced.name == "all_reduce"
    assert [(part.name, part.payload_bytes) for part in parts] == [("all_gather", 12), ("all_gather", 20)]
    _, gathered = issued_since(EMPTY, record)
    assert (gathered.call.collective, gathered.call.filled_elements, gathered.sequence) == ("all_gather", 8, 2)


def test_a_reduce_scatter_of_unlike_parts_is_one_too() -> None:
    record = MadeRecord().unlike_scatter(((3,), (5,))).json()
    assert {one.name for one in entered_since(EMPTY, record)} == {"reduce_scatter"}


def test_unlike_collectives_of_one_group_keep_their_names() -> None:
    record = MadeRecord().managed(["nccl:all_reduce", "nccl:_all_gather_base"]).json()
    assert [one.name for one in entered_since(EMPTY, record)] == ["all_reduce", "all_gather"]
    (one,) = issued_since(EMPTY, record)
    assert one.call.collective == "other"


def test_messages_and_what_closes_them_are_no_collectives() -> None:
    """Workloads count their messages themselves."""
    record = MadeRecord().collective("nccl:all_reduce").batch([("send", 1, (4,)), ("recv", 1, (4,))])
    record.message("send", 1, (4,)).collective("nccl:all_reduce")
    assert [one.name for one in entered_since(EMPTY, record.json())] == ["all_reduce", "all_reduce"]
    assert [one.sequence for one in issued_since(EMPTY, record.json())] == [1, 2]
    assert count(record.json()) == 6


def test_a_batch_of_messages_is_one_work_with_all_their_elements() -> None:
    record = MadeRecord().collective("nccl:all_reduce")
    record.batch([("recv", 1, (2, 3)), ("send", 1, (5,)), ("send", 1, (7,))], dtype="BFloat16")
    reduced, batch = works_since(EMPTY, record.json())
    assert reduced.call.collective == "all_reduce"
    assert batch.event == "nccl:coalesced"
    assert batch.created_ns == CREATED_NS + 4 * STEP_NS  # Of the entry that closes it, before the kernel's launch.
    assert batch.sequence is None
    assert batch.call == Call(
        collective="send", group="0", dtype="bfloat16", given_elements=12, filled_elements=6, peer=None
    )


def test_works_of_several_groups_are_in_the_order_in_which_they_were_issued() -> None:
    record = MadeRecord(group="a").collective("nccl:all_reduce")
    record.group = "b"
    record.collective("nccl:broadcast")
    record.group = "a"
    record.batch([("send", 1, (4,))])
    record.group = "b"
    record.collective("nccl:all_gather")
    works = works_since(EMPTY, record.json())
    assert [one.call.collective for one in works] == ["all_reduce", "broadcast", "send", "all_gather"]


def test_how_far_a_rank_came_is_told_by_group() -> None:
    record = MadeRecord(group="3").collective("nccl:all_reduce").collective("nccl:all_reduce", state="scheduled")
    assert reached(record.json(), has_states=True) == {"3": Reached(issued=2, started=None, completed=1)}


def test_what_started_is_told_where_torch_times_collectives() -> None:
    record = MadeRecord(is_timed=True).collective("nccl:all_reduce").collective("nccl:all_reduce", state="started")
    record.collective("nccl:all_reduce", state="scheduled")
    assert reached(record.json(), has_states=True) == {"0": Reached(issued=3, started=2, completed=1)}


def test_messages_have_the_state_of_what_closes_them_by_direction() -> None:
    record = MadeRecord(rank=1).batch([("recv", 0, (4,)), ("send", 2, (4,))])
    record.batch([("recv", 0, (4,))], state="scheduled")
    assert reached(record.json(), has_states=True) == {
        "0 0->1": Reached(issued=2, started=None, completed=1),
        "0 1->2": Reached(issued=1, started=None, completed=1),
    }


def test_messages_are_not_compared_once_the_record_has_forgotten_some() -> None:
    record = MadeRecord(first_id=7).collective("nccl:all_reduce").batch([("send", 1, (4,))])
    assert set(reached(record.json(), has_states=True)) == {"0"}


def test_a_record_that_begins_within_a_batch_tells_the_rest() -> None:
    record = MadeRecord(first_id=9).batch([("send", 1, (4,))]).collective("nccl:all_reduce")
    del record.entries[0]
    assert reached(record.json(), has_states=True) == {"0": Reached(issued=1, started=None, completed=1)}


def test_a_rank_that_issued_nothing_has_reached_nothing() -> None:
    assert reached(EMPTY, has_states=True) == {}


def peers_of_batches() -> list[int | None]:
    """The peers of batches in the group of all, as rank 1 of 3 has them."""
    record = MadeRecord(rank=1, group=next(iter(group_ranks())))
    record.batch([("send", 2, (4,)), ("recv", 2, (4,))]).batch([("send", 2, (4,)), ("recv", 0, (4,))])
    record.message("recv", 0, (4,))
    return [one.call.peer for one in works_since(EMPTY, record.json())]


def test_messages_with_one_rank_alone_tell_which(on_ranks: OnRanks) -> None:
    assert on_ranks(3, peers_of_batches)[1] == [2, None, 0]
