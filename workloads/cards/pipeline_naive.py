"""The card of `pipeline_naive`: the whole batch goes from stage to stage, and one rank computes at a time."""

from __future__ import annotations

from workloads.cards.pipeline_options import PIPELINE_OPTIONS, pipeline_card, with_default
from workloads.cards.training_options import MICROBATCHES

CARD = pipeline_card(
    name="pipeline_naive",
    summary="naive model parallel: the whole batch goes from stage to stage, one rank computes at a time",
    schedule=lambda setup: "naive",
    options=tuple(with_default(option, 1) if option is MICROBATCHES else option for option in PIPELINE_OPTIONS),
    variants=({}, {"balance": "flops"}, {"checkpoint": "full"}),
)
