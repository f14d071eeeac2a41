"""Named tensors reach every rank as they are, whatever their shapes, and no rank unpickles anything."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from bench.rank.distributed import refuse_objects
from tests.support.ranks import OnRanks
from workloads.core.collectives import gather_named

OF_RANKS: tuple[dict[str, Tensor], ...] = (
    {"blocks.0.weight": torch.arange(6.0).view(2, 3), "scale": torch.tensor(2.5)},
    {},
    {"blocks.1.weight": torch.arange(8.0, dtype=torch.bfloat16).view(4, 2).T, "empty": torch.empty(0, 3)},
)


def gathered(_: None) -> dict[str, Tensor]:
    world = dist.group.WORLD
    assert world is not None
    return gather_named(OF_RANKS[dist.get_rank()], world, torch.device("cpu"))


def test_each_rank_has_the_tensors_of_all_in_their_shapes_and_types(on_ranks: OnRanks) -> None:
    whole = OF_RANKS[0] | OF_RANKS[1] | OF_RANKS[2]
    for of_rank in on_ranks(3, gathered, None):
        assert of_rank.keys() == whole.keys()
        for name, tensor in of_rank.items():
            torch.testing.assert_close(tensor, whole[name], rtol=0, atol=0)


def refusals(_: None) -> list[str]:
    """What this rank says when objects are sent by each of torch's collectives for them."""
    refuse_objects()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    said = []
    collectives: tuple[Callable[[], object], ...] = (
        lambda: dist.all_gather_object([None] * ranks, {"rank": rank}),
        lambda: dist.broadcast_object_list([{"rank": rank}], src=0),
        lambda: dist.send_object_list([1], dst=1) if rank == 0 else dist.recv_object_list([None], src=0),
    )
    for collective in collectives:
        try:
            collective()
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_a_rank_refuses_an_object_in_place_of_unpickling_it(on_fresh_ranks: OnRanks) -> None:
    sender, receiver = on_fresh_ranks(2, refusals, None)
    assert len(sender) == 1  # Of all_gather_object, where it receives as well.
    assert len(receiver) == 3
    assert {*sender, *receiver} == {"a collective received a Python object, which a rank never unpickles; send tensors"}
