"""Fault injection: faults that a rank commits when told to, to test how the root cause of a failure is found."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from typing import Literal, get_args

from bench.errors import Misuse

FaultKind = Literal["raise", "kill", "hang", "exit", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, in which rank, at the beginning of which step (from 0, warm-up included)."""

    kind: FaultKind
    rank: int
    step: int


def parse_fault(text: str, *, ranks: int, steps: int) -> Fault:
    """Return the fault that KIND@RANK:STEP describes.

    Raises:
        Misuse: the text has another form, or there is no such rank or step.
    """
    kinds = get_args(FaultKind)
    match = re.fullmatch(rf"({'|'.join(kinds)})@(\d+):(\d+)", text)
    if match is None:
        raise Misuse(f'fault "{text}" is not KIND@RANK:STEP, such as hang@1:3; KIND is one of {", ".join(kinds)}')
    kind, rank, step = match.groups()
    if int(rank) >= ranks:
        raise Misuse(f'fault "{text}" is for rank {rank}; ranks are 0 to {ranks - 1}')
    if int(step) >= steps:
        raise Misuse(f'fault "{text}" is for step {step}; steps are 0 to {steps - 1}, warm-up included')
    return Fault(kind=kind, rank=int(rank), step=int(step))  # type: ignore[arg-type]  # The pattern allows no other.


def commit_at(fault: Fault | None, *, rank: int, step: int) -> None:
    """Commit the fault in this process, if it is due in this rank at this step."""
    if fault is None or (fault.rank, fault.step) != (rank, step):
        return
    match fault.kind:
        case "raise":
            raise RuntimeError("a fault was asked for")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            while True:
                time.sleep(3600)
        case "exit":
            sys.exit(7)
        case "leave":
            os._exit(0)
