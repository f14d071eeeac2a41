"""What a rank looks at when it is asked to, in steps of their own beside the measured ones, and no part of speed."""

from __future__ import annotations

import msgspec

from bench.case import Case
from bench.errors import Misuse


class Looks(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    trace_every: measured steps between one window of the profiler and the next; None has one window, after them all.
    memory_snapshot: the memory of one step by category, and on CUDA the history of its blocks.
    """

    trace_every: int | None = None
    memory_snapshot: bool = False


NO_LOOKS = Looks()


def check_looks(looks: Looks, case: Case) -> Looks:
    """The looks themselves, if the case's ranks can take them.

    Raises:
        Misuse: windows would come without steps between them, or without steps in them.
    """
    if looks.trace_every is None:
        return looks
    if looks.trace_every < 1:
        raise Misuse(f"trace-every is {looks.trace_every}; it must be 1 or more measured steps")
    if not case.trace_steps:
        raise Misuse("--trace-every repeats the profiler's window, and trace-steps is 0; take --trace-steps 1 or more")
    return looks
