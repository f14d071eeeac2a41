"""What schedules that part backward into inputs and weights refuse: blocks whose backward does not come in halves."""

from __future__ import annotations

from collections.abc import Iterator

from workloads.cards.card import Setup
from workloads.laws.pipeline import HALVED_BACKWARD, ScheduleName


def halved_backward_refusals(setup: Setup, schedule: ScheduleName) -> Iterator[str]:
    """Why a zero-bubble schedule cannot run this; nothing where backward is whole."""
    if schedule not in HALVED_BACKWARD:
        return
    options = setup.options
    if options["compile"] != "none":
        yield (
            f"option compile is {options['compile']} with a zero-bubble schedule; a compiled block's backward is one"
            " piece, and cannot be parted into inputs and weights: take compile=none, or an interleaved schedule"
        )
    if options["checkpoint"] != "none":
        yield (
            f"option checkpoint is {options['checkpoint']} with a zero-bubble schedule; each half of a backward would"
            " compute a block again and free nothing, so that more lived than without it: take checkpoint=none, or an"
            " interleaved schedule"
        )
