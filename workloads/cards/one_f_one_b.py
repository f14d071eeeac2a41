"""The card of `one_f_one_b`: as `gpipe`, but backwards begin as soon as they can, so that fewer activations live."""

from __future__ import annotations

from workloads.cards.pipeline_options import pipeline_card

CARD = pipeline_card(
    name="one_f_one_b",
    summary="1F1B: as GPipe, but each backward begins as soon as it can, so that fewer microbatches live at once",
    schedule=lambda setup: "one_f_one_b",
    variants=({}, {"microbatches": 8}, {"balance": "flops"}, {"checkpoint": "full"}),
)
