"""The card of `fsdp`: weights, gradients and optimizer states are divided; each block is gathered when it computes."""

from __future__ import annotations

from workloads.cards.sharded_card import sharded_card
from workloads.cards.sharding_options import RESHARD, SHARDING_OPTIONS

CARD = sharded_card(
    name="fsdp",
    summary="fully sharded (ZeRO-3): weights, gradients and optimizer divided; blocks gathered when they compute",
    options=(*SHARDING_OPTIONS, RESHARD),
    stage=3,
    variants=(
        {},
        {"wrap": "layer"},
        {"accumulate": 2},
        {"checkpoint": "full"},
        {"wrap": "layer", "checkpoint": "selective", "accumulate": 2},
        {"offload": True},
    ),
)
