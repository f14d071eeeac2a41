"""Blocks come and go as the changes say."""

from __future__ import annotations

import numpy as np

from collectors.traces.analyzers.memory import HOST, blocks_of
from collectors.traces.timeline import Allocations
from tests.collectors.traces.made.changes import changes


def test_a_block_lives_until_its_address_is_given_back() -> None:
    blocks = blocks_of(changes((1, 8, 100), (2, 9, 50), (3, 8, -100)), HOST)
    assert (blocks.allocated.tolist(), blocks.ended.tolist(), blocks.size_bytes.tolist()) == ([0, 1], [2, 3], [100, 50])
    assert [blocks.alive_after(change).tolist() for change in range(3)] == [
        [True, False],
        [True, True],
        [False, True],
    ]


def test_a_block_that_was_dropped_unheard_ends_when_its_address_is_given_out_again() -> None:
    blocks = blocks_of(changes((1, 8, 100), (2, 8, 30), (3, 8, -30)), HOST)
    assert blocks.ended.tolist() == [1, 2]
    assert blocks.change_bytes.tolist() == [100, -70, -30]


def test_a_block_from_before_the_trace_is_seen_only_as_it_goes() -> None:
    blocks = blocks_of(changes((1, 8, -100), (2, 9, 50)), HOST)
    assert (blocks.allocated.tolist(), blocks.change_bytes.tolist()) == ([1], [-100, 50])


def test_devices_are_told_apart_though_their_addresses_are_alike() -> None:
    both = changes((1, 8, 100), (2, 8, 30))
    parted = Allocations(
        time_ns=both.time_ns,
        address=both.address,
        change_bytes=both.change_bytes,
        allocated_bytes=both.allocated_bytes,
        device=np.array([0, 1], dtype=np.int16),
        thread=both.thread,
    )
    assert blocks_of(parted, 0).ended.tolist() == blocks_of(parted, 1).ended.tolist() == [1]


def test_a_gpu_tells_its_total_and_the_host_does_not() -> None:
    told = blocks_of(changes((1, 8, 100), device=0, totals=[700]), 0)
    assert told.total_bytes is not None
    assert told.total_bytes.tolist() == [700]
    assert blocks_of(changes((1, 8, 100), totals=[700]), HOST).total_bytes is None
    assert blocks_of(changes((1, 8, 100), device=0), 0).total_bytes is None


def test_the_highest_address_is_an_address() -> None:
    assert blocks_of(changes((1, 2**64 - 1, 100)), HOST).address.tolist() == [2**64 - 1]
