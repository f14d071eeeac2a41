"""The card of `interleaved`: as `one_f_one_b` with several stages on each rank, in turn, so that ranks wait less."""

from __future__ import annotations

from workloads.cards.message_options import DEFER_RECEIVES
from workloads.cards.pipeline_options import PIPELINE_OPTIONS, STAGES, pipeline_card

CARD = pipeline_card(
    name="interleaved",
    summary="interleaved 1F1B: several smaller stages on each rank, so that the pipeline fills sooner",
    schedule=lambda setup: "interleaved",
    options=(*PIPELINE_OPTIONS, DEFER_RECEIVES, STAGES),
    variants=({}, {"microbatches": 8}, {"checkpoint": "full"}),
)
