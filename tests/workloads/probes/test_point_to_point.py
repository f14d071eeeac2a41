"""Messages arrive, in order and without waiting for each other, and each rank counts its own."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.ranks import OnRanks
from workloads.probes.all_reduce import CountedTraffic, MessageRounds


def make_wire() -> MessageRounds:
    group = dist.group.WORLD
    assert group is not None
    return MessageRounds(group)


def swap_with_all(rounds: int, elements: int) -> list[list[float]]:
    """What a rank received from each other in each round, where each sends its rank and the round."""
    wire = make_wire()
    peers = [peer for peer in range(wire.ranks) if peer != wire.rank]
    seen = []
    for number in range(rounds):
        received = {peer: torch.empty(elements) for peer in peers}
        wire.exchange(
            send={peer: torch.full((elements,), wire.rank + 10.0 * number) for peer in peers}, receive=received
        )
        seen.append([float(torch.unique_consecutive(received[peer])) for peer in peers])
    return seen


def fan_in_then_rest() -> CountedTraffic:
    """Ranks 1 and 2 send 3 and 4 elements to rank 0, which sends 1 back to rank 1; then all rest."""
    wire = make_wire()
    if wire.rank == 0:
        wire.exchange(receive={1: torch.empty(3), 2: torch.empty(4)})
        wire.exchange(send={1: torch.zeros(1)})
    else:
        wire.exchange(send={0: torch.zeros(2 + wire.rank)})
        if wire.rank == 1:
            wire.exchange(receive={0: torch.empty(1)})
        else:
            wire.exchange()
    wire.exchange()
    return wire.traffic


def send_nothing_in_particular() -> tuple[CountedTraffic, Tensor]:
    """Empty tensors beside a full one."""
    wire = make_wire()
    empty, received = torch.empty(0), torch.empty(2)
    other = 1 - wire.rank
    wire.exchange(send={other: empty}, receive={other: empty})
    wire.exchange(send={other: torch.full((2,), float(wire.rank))}, receive={other: received})
    return wire.traffic, received


def send_narrow_elements() -> CountedTraffic:
    wire = make_wire()
    other = 1 - wire.rank
    wire.exchange(
        send={other: torch.zeros(5, dtype=torch.bfloat16)},
        receive={other: torch.empty(5, dtype=torch.bfloat16)},
    )
    return wire.traffic


def test_all_ranks_can_swap_with_all_in_one_round_and_rounds_keep_their_order(on_ranks: OnRanks) -> None:
    assert on_ranks(3, swap_with_all, 3, 100_000) == [
        [[1.0, 2.0], [11.0, 12.0], [21.0, 22.0]],
        [[0.0, 2.0], [10.0, 12.0], [20.0, 22.0]],
        [[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]],
    ]


def test_rounds_count_for_all_and_bytes_for_who_has_them(on_ranks: OnRanks) -> None:
    assert on_ranks(3, fan_in_then_rest) == [
        CountedTraffic(rounds=3, sent_bytes=4, peak_bytes=28),
        CountedTraffic(rounds=3, sent_bytes=12, peak_bytes=12),
        CountedTraffic(rounds=3, sent_bytes=16, peak_bytes=16),
    ]


def test_an_empty_tensor_takes_its_round_and_no_message(on_ranks: OnRanks) -> None:
    for rank, (traffic, received) in enumerate(on_ranks(2, send_nothing_in_particular)):
        assert traffic == CountedTraffic(rounds=2, sent_bytes=8, peak_bytes=8)
        assert received.tolist() == [1.0 - rank] * 2


def test_bytes_are_those_of_the_elements(on_ranks: OnRanks) -> None:
    assert on_ranks(2, send_narrow_elements) == [CountedTraffic(rounds=1, sent_bytes=10, peak_bytes=10)] * 2
