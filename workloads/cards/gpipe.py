"""The card of `gpipe`: stages of the model follow each other; all forwards, then all backwards."""

from __future__ import annotations

from workloads.cards.pipeline_options import pipeline_card

CARD = pipeline_card(
    name="gpipe",
    summary="GPipe: a stage of the model on each rank; all microbatches forward, then all backward",
    schedule=lambda setup: "gpipe",
    variants=({}, {"microbatches": 8}, {"balance": "flops"}, {"checkpoint": "full"}, {"balance": "measured"}),
)
