"""The options that say when messages between ranks begin, what is refused of them, and what a reader must know."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from workloads.cards.card import Option, Setup
from workloads.laws.pipeline import HALVED_BACKWARD, ScheduleName

HIGH_PRIORITY = Option(
    name="high_priority_stream",
    default=False,
    help="on NCCL: send messages on a stream of high priority, so that they begin before computation that is queued",
    added_later=True,
)
DEFER_RECEIVES = Option(
    name="defer_receives",
    default=False,
    help="begin each receive only before the action that needs it, not as early as it can be (torch 2.13)",
    added_later=True,
)
FIRST_TO_DEFER = (2, 13)
"""The torch whose schedules take `defer_pp_recv`."""
RECEIVES_EARLY: tuple[ScheduleName, ...] = ("interleaved", "interleaved_zero_bubble", "zbv")
"""Schedules of several stages for each rank: torch begins a receive when its sender computes, in those of one stage
when the rank itself would."""
CAN_DEFER: tuple[ScheduleName, ...] = ("interleaved",)
"""Those of which torch 2.13 defers receives in the order of their sends. Of zero-bubble schedules it does not, and a
rank takes one tensor of a neighbour for another."""


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


def torch_release() -> tuple[int, int]:
    """The first two numbers of the torch that is installed, without importing it."""
    major, minor, *_ = version("torch").split(".")
    return int(major), int(minor)


def deferring_refusals(
    setup: Setup, schedule: ScheduleName, *, release: tuple[int, int] | None = None
) -> Iterator[str]:
    """Why receives cannot be deferred. release: of torch; that which is installed, where it is left out."""
    if not DEFER_RECEIVES.of(setup):
        return
    if schedule in HALVED_BACKWARD:
        yield (
            f"option {DEFER_RECEIVES.name} is true with schedule {schedule}, of which torch 2.13 defers receives out of"
            " the order of their sends, so that losses are wrong without a word; leave it out, or take schedule"
            " interleaved"
        )
    elif schedule not in CAN_DEFER:
        yield (
            f"option {DEFER_RECEIVES.name} is true with schedule {schedule}, which receives no earlier than it needs;"
            " leave it out, or take schedule interleaved"
        )
    elif (release or torch_release()) < FIRST_TO_DEFER:
        installed, first = (".".join(map(str, each)) for each in (release or torch_release(), FIRST_TO_DEFER))
        yield (
            f"option {DEFER_RECEIVES.name} is true, and torch {installed} has no schedule that defers;"
            f" leave it out, or install torch {first} or newer"
        )


def pipeline_message_notes(setup: Setup, schedule: ScheduleName) -> list[str]:
    """What the figures of a pipeline's bubble hold on NCCL."""
    if setup.backend != "nccl" or schedule not in RECEIVES_EARLY or DEFER_RECEIVES.of(setup):
        return []
    remedy = f"; {DEFER_RECEIVES.name}=true begins receives late" if schedule in CAN_DEFER else ""
    return [
        "on NCCL all messages of a rank pass one stream in order: a receive that begins early holds back the sends"
        f" after it, and this wait is in the unexplained part of the bubble{remedy}"
    ]
