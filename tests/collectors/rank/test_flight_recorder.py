"""Collectives are counted from a record, with the bytes that were handed to them."""

import json

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

from collectors.rank import flight_recorder
from collectors.rank.flight_recorder import Entered, Forgotten, count, entered_since, group_ranks, issued_since
from collectors.traces.timeline import Call
from tests.support.ranks import OnRanks
from workloads.core.mesh import make_mesh


def _record(*numbers: int, dtype: str = "Float", is_p2p: bool = False) -> bytes:
    entries = [
        {
            "record_id": number,
            "profiling_name": "nccl:send 0->1" if is_p2p else "gloo:all_reduce",
            "process_group": ["3", "mesh_tensor"],
            "is_p2p": is_p2p,
            "input_sizes": [[2, 3], [5]],
            "input_dtypes": [dtype, "BFloat16"],
            "state": "scheduled",
        }
        for number in numbers
    ]
    return json.dumps({"entries": entries, "version": "2.10"}).encode()


EMPTY = b'{"version": "2.10"}'


def test_collectives_since_a_record_have_their_bytes() -> None:
    assert entered_since(_record(0), _record(0, 1, 2)) == [
        Entered(number=number, name="all_reduce", group="3", payload_bytes=6 * 4 + 5 * 2) for number in (1, 2)
    ]


def test_messages_are_counted_in_order_and_are_no_collectives() -> None:
    after = _record(0, 1, is_p2p=True)
    assert count(after) == 2
    assert entered_since(EMPTY, after) == []


def test_a_rank_that_entered_none_has_none() -> None:
    assert count(EMPTY) == 0
    assert entered_since(EMPTY, EMPTY) == []


def test_the_count_goes_on_when_the_buffer_has_forgotten_the_first() -> None:
    assert count(_record(7, 8)) == 9


def test_collectives_that_were_forgotten_are_not_passed_over() -> None:
    with pytest.raises(Forgotten, match="holds 2 of the last 8"):
        entered_since(_record(0), _record(7, 8))


def test_elements_of_unknown_size_are_named() -> None:
    with pytest.raises(Forgotten, match="ComplexFloat"):
        entered_since(EMPTY, _record(0, dtype="ComplexFloat"))


def test_what_was_issued_bears_its_number_and_elements() -> None:
    entry = {
        "record_id": 4,
        "profiling_name": "gloo:all_reduce",
        "process_group": ["3", "mesh_tensor"],
        "collective_seq_id": 2,
        "time_created_ns": 1_700_000_000_000_000_001,
        "input_sizes": [[2, 3], [5]],
        "input_dtypes": ["BFloat16", "BFloat16"],
        "output_sizes": [[11]],
        "output_dtypes": ["BFloat16"],
    }
    (one,) = issued_since(_record(0, 1, 2, 3), json.dumps({"entries": [entry]}).encode())
    assert (one.event, one.created_ns, one.sequence) == ("gloo:all_reduce", 1_700_000_000_000_000_001, 2)
    assert one.call == Call(collective="all_reduce", group="3", dtype="bfloat16", given_elements=11, filled_elements=11)


def test_elements_of_several_dtypes_have_none_in_common() -> None:
    (one,) = issued_since(EMPTY, _record(0))
    assert one.call.dtype is None
    assert one.sequence is None


def world_and_pair() -> tuple[dict[str, tuple[int, ...]], list[tuple[str | None, tuple[int, ...], int | None]]]:
    """The groups, and of each collective its group, the ranks in it and its number."""
    pair = dist.new_group([0, 1])
    before = flight_recorder.dump("gloo")
    dist.all_reduce(torch.zeros(1), group=pair)
    dist.all_reduce(torch.zeros(1), group=pair)
    issued = issued_since(before, flight_recorder.dump("gloo"))
    return group_ranks(), [(one.call.group, one.call.ranks, one.sequence) for one in issued]


def test_ranks_of_a_group_number_its_collectives_alike(on_ranks: OnRanks) -> None:
    (groups, first), (_, second) = on_ranks(2, world_and_pair)
    assert first == second
    (group, ranks, number), (same, _, next_number) = first
    assert group == same
    assert group is not None
    assert ranks == groups[group] == (0, 1)
    assert number is not None
    assert next_number == number + 1


def gathered() -> list[tuple[str, int]]:
    parts = list(torch.zeros(6).chunk(2))
    before = flight_recorder.dump("gloo")
    dist.all_gather(parts, torch.zeros(3))
    entered = flight_recorder.entered_since(before, flight_recorder.dump("gloo"))
    return [(one.name, one.payload_bytes) for one in entered]


def messages() -> list[str]:
    before = flight_recorder.dump("gloo")
    peer = 1 - dist.get_rank()
    exchange = [dist.P2POp(dist.isend, torch.zeros(3), peer), dist.P2POp(dist.irecv, torch.zeros(3), peer)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    return [one.name for one in flight_recorder.entered_since(before, flight_recorder.dump("gloo"))]


def test_messages_of_gloo_are_in_no_record(on_ranks: OnRanks) -> None:
    # Once they are, those who count them themselves need not.
    assert on_ranks(2, messages) == [[], []]


def test_the_payload_of_an_all_gather_is_what_it_gathers(on_ranks: OnRanks) -> None:
    for entered in on_ranks(2, gathered):
        assert entered == [("all_gather", 24)]


def gathered_by_dtensor() -> list[tuple[str, int]]:
    whole = distribute_tensor(torch.zeros(6), make_mesh({"tensor": 2}, "cpu"), [Shard(0)], src_data_rank=None)
    before = flight_recorder.dump("gloo")
    whole.full_tensor()
    entered = flight_recorder.entered_since(before, flight_recorder.dump("gloo"))
    return [(one.name, one.payload_bytes) for one in entered]


def test_the_payload_of_a_gather_by_dtensor_is_what_it_gathers_too(on_ranks: OnRanks) -> None:
    for entered in on_ranks(2, gathered_by_dtensor):
        assert entered == [("all_gather", 24)]
