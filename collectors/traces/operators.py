"""Host operators of a Timeline: the operator that runs at a moment or launched a kernel, and the phases of a step.

If spans overlap, a moment belongs to the span that started last: on a thread the innermost operator, on a device the
latest kernel. So the time that spans cover is divided among them without gaps or double counting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.steps import launch_of
from collectors.traces.timeline import ABSENT, Timeline

NOBODY = -1
"""The owner of a moment at which no span runs."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Disjoint intervals, in order. owner: the index of the span that each belongs to."""

    start_ns: Times
    end_ns: Times
    owner: Numbers


class Foreground:
    """The owner of each moment. Spans must be sorted by start; if two start together, the longer comes first."""

    def __init__(self, start_ns: Times, end_ns: Times) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns
        self._outlived_by = _outlived_by(end_ns)

    def at(self, moments_ns: Times) -> Numbers:
        """Return the index of the span that owns each moment, or `NOBODY`."""
        if not self._start_ns.size:
            return np.full(moments_ns.size, NOBODY, dtype=np.int64)
        # Guess the last span that started. If it is over, try the last earlier span that ends later, and so on: the
        # spans between the two end no later than the one that is over.
        owner: Numbers = np.searchsorted(self._start_ns, moments_ns, side="right") - 1
        over = self._is_over(owner, moments_ns)
        while over.size:
            owner[over] = self._outlived_by[owner[over]]
            over = over[self._is_over(owner[over], moments_ns[over])]
        return owner

    def pieces(self) -> Pieces:
        """Divide the time that the spans cover among them."""
        # Sort, with duplicates: `np.unique` hashes, which takes a hundred times as long on a million moments.
        edges_ns = np.sort(np.concatenate((self._start_ns, self._end_ns)))
        start_ns, end_ns = edges_ns[:-1], edges_ns[1:]
        owner = self.at(start_ns)
        owned = (owner != NOBODY) & (end_ns > start_ns)
        return Pieces(start_ns=start_ns[owned], end_ns=end_ns[owned], owner=owner[owned])

    def _is_over(self, owner: Numbers, moments_ns: Times) -> Numbers:
        """Return the indices of the moments whose owner has already ended."""
        return np.flatnonzero((owner != NOBODY) & (self._end_ns[owner] <= moments_ns))


def _outlived_by(end_ns: Times) -> Numbers:
    """Return for each span the last earlier span that ends later; `NOBODY` if there is none.

    Example: ends of 9, 4, 3, 6 give NOBODY, 0, 1, 0.
    """
    outlived_by = [NOBODY] * end_ns.size
    lasting: list[int] = []  # A stack of spans whose ends decrease.
    ends = end_ns.tolist()
    for number, end in enumerate(ends):
        while lasting and ends[lasting[-1]] <= end:
            lasting.pop()
        if lasting:
            outlived_by[number] = lasting[-1]
        lasting.append(number)
    return np.array(outlived_by, dtype=np.int64)


Rows = NDArray[np.int64]
"""Row numbers of a Timeline, or `ABSENT`."""


def operators_at(
    timeline: Timeline, moments_ns: Times, threads: NDArray[np.int64], *, counts: Callable[[str], bool] = bool
) -> Rows:
    """Return the row of the innermost operator that ran on the host at each moment.

    threads: the thread to search, one per moment; `ABSENT` searches all, and the operator that started last wins.
    counts: whether operators of this name count; others are ignored.
    """
    chosen = _operators(timeline) & np.array([counts(name) for name in timeline.names], dtype=bool)[timeline.name]
    operator = np.full(moments_ns.size, ABSENT, dtype=np.int64)
    for thread in np.unique(threads):
        on_thread = threads == thread
        of_thread = chosen if thread == ABSENT else chosen & (timeline.stream == thread)
        operator[on_thread] = _innermost(timeline, np.flatnonzero(of_thread), moments_ns[on_thread])
    return operator


def launching_operators(timeline: Timeline) -> Rows:
    """Return for each span of the device the row of the operator that launched it; for an operator, its own row.

    `ABSENT` if the trace lacks the launch, or no operator surrounds it.
    """
    operators = _operators(timeline)
    launch = launch_of(timeline)
    operator = np.where(operators, np.arange(operators.size), ABSENT)
    launched = np.flatnonzero(launch != ABSENT)
    threads = timeline.stream[launch[launched]]
    for thread in np.unique(threads):
        on_thread = launched[threads == thread]
        rows = np.flatnonzero(operators & (timeline.stream == thread))
        operator[on_thread] = _innermost(timeline, rows, timeline.start_ns[launch[on_thread]])
    return operator


def _operators(timeline: Timeline) -> NDArray[np.bool_]:
    """Return the host's operators and annotations; without a device these include the spans of computation."""
    host = timeline.of_kind("host")
    return host if timeline.is_device else host | timeline.of_kind("compute")


def _innermost(timeline: Timeline, rows: Rows, moments_ns: Times) -> Rows:
    owner = Foreground(timeline.start_ns[rows], timeline.end_ns[rows]).at(moments_ns)
    return np.append(rows, ABSENT)[owner]


# Phases of a step (forward, backward, optimizer), from the names of host operators.

StepPhase = Literal["forward", "backward", "optimizer", "between"]
"""between: none of the other three, for example clearing gradients, loading data, and the edges of a step."""

PHASES: tuple[StepPhase, ...] = get_args(StepPhase)

_OPENED_BY: tuple[tuple[str, StepPhase], ...] = (
    ("autograd::engine::evaluate_function", "backward"),
    ("Optimizer.step#", "optimizer"),
    ("Optimizer.zero_grad#", "between"),
    ("enumerate(DataLoader)", "between"),
)
"""Prefixes of names that torch itself assigns, in any training loop."""

_OPERATOR = "aten::"
"""Prefix of operators, which count as forward unless they are inside a span of another phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Intervals in order, each lasting until the next starts. phase: an index into `PHASES`."""

    start_ns: Times
    phase: NDArray[np.int8]

    def at(self, moments_ns: Times) -> NDArray[np.int64]:
        """Return the index of the interval that each moment lies in; `NOBODY` before the first."""
        number: NDArray[np.int64] = np.searchsorted(self.start_ns, moments_ns, side="right") - 1
        return number


def phases(timeline: Timeline) -> Phases | None:
    """Return the phases of all steps; None if no name belongs to a backward or an optimizer.

    An interval begins with a span whose phase differs from the previous span's. Operators outside the spans in
    `_OPENED_BY` are forward on the thread that runs the steps; those of other threads are ignored.
    """
    opened = {
        number: phase
        for number, name in enumerate(timeline.names)
        for beginning, phase in _OPENED_BY
        if name.startswith(beginning)
    }
    if not {"backward", "optimizer"} & set(opened.values()):
        return None
    code_of_name = np.full(len(timeline.names), NOBODY, dtype=np.int8)
    for number, phase in opened.items():
        code_of_name[number] = PHASES.index(phase)
    code = code_of_name[timeline.name]  # Index of each span's phase, or NOBODY.
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
    # Keep the first of consecutive spans with the same phase.
    rows = np.flatnonzero(code != NOBODY)
    begins = np.append(True, code[rows[1:]] != code[rows[:-1]])
    return Phases(start_ns=timeline.start_ns[rows[begins]], phase=code[rows[begins]])
