"""The card of `zero2`: gradients and optimizer states are divided; weights are gathered once a step."""

from __future__ import annotations

from workloads.cards.sharded_card import sharded_card
from workloads.cards.sharding_options import SHARDING_OPTIONS

CARD = sharded_card(
    name="zero2",
    summary="ZeRO-2: gradients and optimizer divided; weights gathered once a step, and divided between steps too",
    options=SHARDING_OPTIONS,
    stage=2,
    variants=(
        {},
        {"wrap": "layer"},
        {"accumulate": 2},
        {"checkpoint": "full"},
    ),
)
