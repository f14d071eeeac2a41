"""Bytes and times of collectives, against published figures and against the collectives done by hand."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import get_args

import pytest

from workloads.cost_models.communication import (
    CommunicationBackend,
    Link,
    collective_time_s,
    transfer_time_s,
    wire_bytes,
    wire_factor,
    wire_messages,
)
from workloads.cost_models.terms import Collective, Transfer

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


def transfer(collective: Collective = "all_reduce", payload_bytes: int = 10**9, calls: int = 1) -> Transfer:
    return Transfer(collective=collective, axis="data", payload_bytes=payload_bytes, calls=calls)


def ring_all_reduce(ranks: int) -> tuple[list[list[int]], Counter[int], int]:
    """A ring all_reduce by hand: the ranks' tensors after it, chunks sent by each rank, and rounds of messages.

    Each rank starts with powers of two of its own, one chunk for each rank, so that a sum tells who is in it.
    """
    chunks = [[2**rank] * ranks for rank in range(ranks)]
    sent: Counter[int] = Counter()
    rounds = 0
    for is_gathering in (False, True):
        for turn in range(ranks - 1):
            before = [list(held) for held in chunks]
            for rank in range(ranks):
                chunk = (rank - turn + is_gathering) % ranks
                to = (rank + 1) % ranks
                chunks[to][chunk] = before[rank][chunk] + (0 if is_gathering else before[to][chunk])
                sent[rank] += 1
            rounds += 1
    return chunks, sent, rounds


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_all_reduce_costs_what_a_ring_by_hand_sends(ranks: int) -> None:
    chunks, sent, rounds = ring_all_reduce(ranks)
    assert chunks == [[2**ranks - 1] * ranks] * ranks
    for rank in range(ranks):
        assert wire_factor("all_reduce", ranks, "nccl") == Fraction(sent[rank], ranks)
    assert wire_messages("all_reduce", ranks, "nccl") == rounds


def test_one_gigabyte_on_eight_gpus_takes_5_8_ms_at_300_gb_a_second() -> None:
    link = Link(bandwidth_bytes_per_second=300e9)
    assert transfer_time_s(transfer(), 8, link, "nccl") == pytest.approx(5.8e-3, abs=0.05e-3)


def test_on_eight_ranks_each_sends_1_75_times_the_data() -> None:
    assert wire_bytes(transfer(), 8, "nccl") == 1_750_000_000


@pytest.mark.parametrize(("ranks", "elapsed_ms"), [(2, 80), (3, 107), (4, 120)])
def test_two_megabytes_at_200_mbit_take_the_nominal_time(ranks: int, elapsed_ms: float) -> None:
    link = Link(bandwidth_bytes_per_second=200e6 / 8)
    elapsed_s = transfer_time_s(transfer(payload_bytes=2_000_000), ranks, link, "gloo")
    assert elapsed_s * 1e3 == pytest.approx(elapsed_ms, abs=0.5)


def test_a_ring_never_takes_longer_than_two_sendings_of_the_data() -> None:
    link = Link(bandwidth_bytes_per_second=1e9)
    times_s = [transfer_time_s(transfer(), ranks, link, "nccl") for ranks in (2, 8, 64, 1024)]
    assert times_s == sorted(times_s)
    assert times_s[-1] < 2.0


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_reduce_scatter_then_all_gather_is_an_all_reduce(ranks: int) -> None:
    parts = wire_factor("reduce_scatter", ranks, "nccl") + wire_factor("all_gather", ranks, "nccl")
    assert parts == wire_factor("all_reduce", ranks, "nccl")


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_gloos_reduce_scatter_costs_an_all_reduce(ranks: int) -> None:
    assert wire_factor("reduce_scatter", ranks, "gloo") == wire_factor("all_reduce", ranks, "gloo")
    assert wire_messages("reduce_scatter", ranks, "gloo") == wire_messages("all_reduce", ranks, "gloo")


@pytest.mark.parametrize(("ranks", "sendings"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3)])
def test_the_root_of_gloos_broadcast_sends_once_a_level_of_its_tree(ranks: int, sendings: int) -> None:
    assert wire_bytes(transfer("broadcast", 10), ranks, "gloo") == 10 * sendings
    assert wire_messages("broadcast", ranks, "gloo") == sendings


def test_the_root_of_nccls_broadcast_sends_once() -> None:
    assert wire_bytes(transfer("broadcast", 10), 8, "nccl") == 10


def test_all_to_all_keeps_its_own_share() -> None:
    assert wire_bytes(transfer("all_to_all", 80), 8, "nccl") == 70


def test_send_sends_its_tensor() -> None:
    assert wire_bytes(transfer("send", 80), 4, "gloo") == 80


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_gloos_reduce_is_a_reduce_scatter_by_ring_and_a_gather(ranks: int) -> None:
    gathered = wire_factor("gather", ranks, "gloo")
    assert wire_factor("reduce", ranks, "gloo") == wire_factor("reduce_scatter", ranks, "nccl") + gathered
    assert wire_messages("reduce", ranks, "gloo") == wire_messages("reduce_scatter", ranks, "nccl") + 1


def test_nccls_reduce_passes_the_whole_tensor_from_rank_to_rank() -> None:
    assert wire_bytes(transfer("reduce", 80), 8, "nccl") == 80
    assert wire_messages("reduce", 8, "nccl") == 7


@pytest.mark.parametrize("collective", ["gather", "scatter"])
@pytest.mark.parametrize("backend", get_args(CommunicationBackend))
def test_a_root_keeps_its_own_part_and_deals_with_all_others_at_once(
    collective: Collective, backend: CommunicationBackend
) -> None:
    assert wire_bytes(transfer(collective, 80), 8, backend) == 70
    assert wire_messages(collective, 8, backend) == 1


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_transfer_takes_the_time_of_its_collective(collective: Collective) -> None:
    link = Link(bandwidth_bytes_per_second=1e9, latency_s=1e-3)
    expected_s = collective_time_s(collective, 10**9, 4, link, "gloo", calls=3)
    assert transfer_time_s(transfer(collective, calls=3), 4, link, "gloo") == expected_s
    messages, sent_bytes = wire_messages(collective, 4, "gloo"), wire_bytes(transfer(collective), 4, "gloo")
    assert expected_s == pytest.approx(3 * messages * 1e-3 + sent_bytes / 1e9)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_alone_nothing_is_sent(collective: Collective) -> None:
    link = Link(bandwidth_bytes_per_second=1.0, latency_s=1.0)
    assert wire_bytes(transfer(collective), 1, "gloo") == 0
    assert transfer_time_s(transfer(collective), 1, link, "gloo") == 0


def test_bytes_are_rounded_up() -> None:
    assert wire_bytes(transfer("all_gather", 10), 3, "nccl") == 7


def test_each_call_pays_the_latency_of_each_message() -> None:
    link = Link(bandwidth_bytes_per_second=1e30, latency_s=1.0)
    assert transfer_time_s(transfer(calls=5), 4, link, "nccl") == pytest.approx(5 * 6)


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="ranks is 0; it must be 1 or more"):
        wire_bytes(transfer(), 0, "gloo")
    with pytest.raises(ValueError, match="ranks is 0; it must be 1 or more"):
        wire_messages("send", 0, "gloo")


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan")])
def test_a_bandwidth_that_is_not_above_0_is_refused(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bandwidth_bytes_per_second"):
        Link(bandwidth_bytes_per_second=bandwidth)


def test_a_latency_below_0_is_refused() -> None:
    with pytest.raises(ValueError, match="latency_s"):
        Link(bandwidth_bytes_per_second=1.0, latency_s=-1.0)
