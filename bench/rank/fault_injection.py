"""Fault injection: the faults that a rank can commit, to test how the root cause of a failure is found."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from bench.errors import Misuse

FaultKind = Literal["raise", "kill", "stop", "hang", "wait", "memory", "exit", "leave"]
"""raise: an exception. kill, stop: SIGKILL, SIGSTOP. hang: sleeps. wait: waits in the process group's own code for a
message that nobody sends. memory: allocates until none is left. exit: sys.exit(7). leave: os._exit(0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, in which rank, at the beginning of which step (from 0, warm-up included)."""

    kind: FaultKind
    rank: int
    step: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.rank}:{self.step}"


def parse_fault(text: str, *, ranks: int, steps: int) -> Fault:
    """Return the fault that KIND@RANK:STEP describes.

    Raises:
        Misuse: the text has another form, or the rank or step does not exist.
    """
    kinds = get_args(FaultKind)
    match = re.fullmatch(rf"({'|'.join(kinds)})@(\d+):(\d+)", text)
    if match is None:
        raise Misuse(
            f'fault "{text}" does not have the form KIND@RANK:STEP, for example hang@1:3; KIND is one of'
            f" {', '.join(kinds)}"
        )
    kind, rank, step = match.groups()
    if kind == "wait" and ranks == 1:
        raise Misuse(
            f'fault "{text}" waits for a message from another rank, but there is only one; use --ranks 2 or more'
        )
    if int(rank) >= ranks:
        raise Misuse(f'fault "{text}" is for rank {rank}; ranks are 0 to {ranks - 1}')
    if int(step) >= steps:
        raise Misuse(f'fault "{text}" is for step {step}; steps are 0 to {steps - 1}, warm-up included')
    return Fault(kind=kind, rank=int(rank), step=int(step))  # type: ignore[arg-type]  # The pattern allows no other.
