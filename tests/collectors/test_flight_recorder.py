"""Collectives are counted from a record, with the bytes that were handed to them."""

import json

import pytest
import torch
import torch.distributed as dist

from collectors import flight_recorder
from collectors.flight_recorder import Entered, Forgotten, count, entered_since
from tests.ranks import OnRanks


def _record(*numbers: int, dtype: str = "Float") -> bytes:
    entries = [
        {
            "record_id": number,
            "profiling_name": "gloo:all_reduce",
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
        Entered(number=number, name="all_reduce", payload_bytes=6 * 4 + 5 * 2) for number in (1, 2)
    ]


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


def gathered() -> list[tuple[str, int]]:
    parts = list(torch.zeros(6).chunk(2))
    before = flight_recorder.dump("gloo")
    dist.all_gather(parts, torch.zeros(3))
    entered = flight_recorder.entered_since(before, flight_recorder.dump("gloo"))
    return [(one.name, one.payload_bytes) for one in entered]


def test_the_payload_of_an_all_gather_is_what_it_gathers(on_ranks: OnRanks) -> None:
    for entered in on_ranks(2, gathered):
        assert entered == [("all_gather", 24)]
