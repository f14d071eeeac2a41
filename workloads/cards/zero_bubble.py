"""The card of `zero_bubble`: backward is parted into that of inputs, which others wait for, and that of weights."""

from __future__ import annotations

from workloads.cards.card import Option, Setup
from workloads.cards.halved_backward import halved_backward_refusals
from workloads.cards.pipeline_options import PIPELINE_OPTIONS, STAGES, pipeline_card
from workloads.laws.pipeline import ScheduleName

VARIANT = Option(
    name="variant",
    default="interleaved",
    choices=("interleaved", "zbv"),
    help="order of a rank's stages: in turn, or there and back (ZBV, with 2 stages)",
)


def _schedule(setup: Setup) -> ScheduleName:
    return "zbv" if setup.options[VARIANT.name] == "zbv" else "interleaved_zero_bubble"


def _refusals(setup: Setup) -> list[str]:
    return list(halved_backward_refusals(setup, _schedule(setup)))


CARD = pipeline_card(
    name="zero_bubble",
    summary="zero bubble: backward of weights fills the gaps that waiting for backward of inputs leaves",
    schedule=_schedule,
    options=(*PIPELINE_OPTIONS, STAGES, VARIANT),
    variants=({}, {"variant": "zbv"}, {"microbatches": 8}, {"variant": "zbv", "microbatches": 8}),
    more_refusals=_refusals,
)
