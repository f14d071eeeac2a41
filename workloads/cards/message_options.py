"""The option that lets messages between ranks go before a GPU's other work, and what is refused of it."""

from __future__ import annotations

from collections.abc import Iterator

from workloads.cards.card import Option, Setup

HIGH_PRIORITY = Option(
    name="high_priority_stream",
    default=False,
    help="on NCCL: send messages on a stream of high priority, so that they begin before computation that is queued",
    added_later=True,
)


def priority_refusals(setup: Setup) -> Iterator[str]:
    """Why messages cannot go first."""
    if not HIGH_PRIORITY.of(setup):
        return
    if setup.backend != "nccl":
        yield (
            f"option {HIGH_PRIORITY.name} is true on {setup.backend}, which has no streams; leave it out, or take"
            " --backend nccl"
        )
    elif setup.ranks == 1:
        yield f"option {HIGH_PRIORITY.name} is true on 1 rank, which sends nothing; leave it out, or take --ranks 2"


def priority_axes(setup: Setup, axis: str) -> tuple[str, ...]:
    """The axis that messages travel along, where they go first."""
    return (axis,) if HIGH_PRIORITY.of(setup) else ()
