"""When a step went forward, backward and updated its weights, as far as the names of the host's operators tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.spans import Timeline
from collectors.traces.steps.foreground import NOBODY, Foreground

Phase = Literal["forward", "backward", "optimizer", "between"]
"""between: what is none of them, such as clearing gradients, loading data, and the edge of a step."""

PHASES: tuple[Phase, ...] = get_args(Phase)

_OPENED_BY: tuple[tuple[str, Phase], ...] = (
    ("autograd::engine::evaluate_function", "backward"),
    ("Optimizer.step#", "optimizer"),
    ("Optimizer.zero_grad#", "between"),
    ("enumerate(DataLoader)", "between"),
)
"""How names begin that torch gives on its own, whoever wrote the loop."""

_OPERATOR = "aten::"
"""How names begin of operators that go forward where nothing around them says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Stretches of time in order, each from its start to that of the next. phase: the index in `PHASES`."""

    start_ns: Times
    phase: NDArray[np.int8]

    def at(self, moments_ns: Times) -> NDArray[np.int64]:
        """The number of the stretch that each moment lies in; `NOBODY` before the first."""
        number: NDArray[np.int64] = np.searchsorted(self.start_ns, moments_ns, side="right") - 1
        return number


def phases(timeline: Timeline) -> Phases | None:
    """The phases of all steps; None where no name speaks of a backward or of an optimizer.

    A stretch begins with a name of another phase than the one before. Operators outside of the spans that such names
    have go forward, on the thread that runs the steps; those of other threads say nothing.
    """
    opened = {number: phase for number, name in enumerate(timeline.names) if (phase := _opened_by(name)) is not None}
    if not {"backward", "optimizer"} & set(opened.values()):
        return None
    code_of_name = np.full(len(timeline.names), NOBODY, dtype=np.int8)
    for number, phase in opened.items():
        code_of_name[number] = PHASES.index(phase)
    code = code_of_name[timeline.name]
    steps = timeline.of_kind("step")
    marks = np.flatnonzero(code != NOBODY)
    around = Foreground(timeline.start_ns[marks], timeline.end_ns[marks])
    is_operator = np.array([name.startswith(_OPERATOR) for name in timeline.names], dtype=bool)[timeline.name]
    if steps.any():
        is_operator &= np.isin(timeline.stream, np.unique(timeline.stream[steps]))
    operators = np.flatnonzero(is_operator)
    forward = operators[around.at(timeline.start_ns[operators]) == NOBODY]
    code[forward] = PHASES.index("forward")
    code[steps] = PHASES.index("between")
    rows = np.flatnonzero(code != NOBODY)
    begins = np.append(True, code[rows[1:]] != code[rows[:-1]])
    return Phases(start_ns=timeline.start_ns[rows[begins]], phase=code[rows[begins]])


def _opened_by(name: str) -> Phase | None:
    return next((phase for beginning, phase in _OPENED_BY if name.startswith(beginning)), None)
