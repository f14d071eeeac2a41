"""The card of `hsdp`: the model is divided within each group of ranks, and gradients are averaged between groups."""

from __future__ import annotations

from workloads.cards.card import Needs, Option, Setup
from workloads.cards.sharded_card import sharded_card
from workloads.cards.sharding_options import RESHARD, SHARDING_OPTIONS, divisors

SHARD_RANKS = Option(
    name="shard_ranks", default=2, minimum=2, help="neighbouring ranks that share a weight, such as those of a node"
)


def _shard_ranks(setup: Setup) -> int:
    return int(setup.options[SHARD_RANKS.name])


def _mesh(setup: Setup) -> dict[str, int]:
    shard_ranks = _shard_ranks(setup)
    return {"replicate": setup.ranks // shard_ranks, "shard": shard_ranks}


def _mesh_refusals(setup: Setup) -> list[str]:
    shard_ranks, fitting = _shard_ranks(setup), divisors(setup.ranks)
    if shard_ranks in fitting:
        return []
    remedy = f"take {' or '.join(map(str, fitting))}" if fitting else f"take --ranks {2 * shard_ranks}, or fsdp"
    return [
        f"option shard_ranks is {shard_ranks}; it must divide {setup.ranks} ranks into two groups or more: {remedy}"
    ]


CARD = sharded_card(
    name="hsdp",
    summary="hybrid sharded: as fsdp within each group of ranks, gradients averaged between groups",
    options=(*SHARDING_OPTIONS, SHARD_RANKS, RESHARD),
    stage=3,
    variants=(
        {},
        {"accumulate": 2},
        {"wrap": "layer", "checkpoint": "full"},
    ),
    needs=Needs(minimum_ranks=4),
    mesh=_mesh,
    mesh_refusals=_mesh_refusals,
)
