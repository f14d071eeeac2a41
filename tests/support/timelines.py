"""Timelines for tests, made from spans."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from collectors.traces.timeline import ABSENT, KINDS, NO_ALLOCATIONS, About, Allocations, Call, SpanKind, Timeline

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One event.

    stream: a stream of the device, or a thread of the host.
    correlation: shared by a launch and its activity on the device; None if there is none.
    call, sequence: of communication only: its description in the trace, and its number in its process group.
    shape: of an operator only: the sizes of its inputs as the trace writes them; "" if it writes none.
    """

    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int
    stream: int
    correlation: int | None = None
    call: Call | None = None
    sequence: int | None = None
    shape: str = ""


def timeline_of(
    spans: Iterable[Span],
    *,
    rank: int,
    is_device: bool,
    allocations: Allocations = NO_ALLOCATIONS,
    about: About | None = None,
) -> Timeline:
    """Return the spans as a Timeline."""
    rows = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    names = _numbered(span.name for span in rows)
    calls = _numbered(span.call for span in rows if span.call is not None)
    shapes = _numbered(span.shape for span in rows if span.shape)
    kinds = {kind: number for number, kind in enumerate(KINDS)}
    return Timeline(
        rank=rank,
        is_device=is_device,
        names=tuple(names),
        name=np.array([names[span.name] for span in rows], dtype=np.int32),
        kind=np.array([kinds[span.kind] for span in rows], dtype=np.int8),
        start_ns=np.array([span.start_ns for span in rows], dtype=np.int64),
        end_ns=np.array([span.end_ns for span in rows], dtype=np.int64),
        stream=np.array([span.stream for span in rows], dtype=np.int64),
        correlation=_column(span.correlation for span in rows),
        calls=tuple(calls),
        call=np.array([ABSENT if span.call is None else calls[span.call] for span in rows], dtype=np.int32),
        sequence=_column(span.sequence for span in rows),
        shapes=tuple(shapes),
        shape=np.array([shapes[span.shape] if span.shape else ABSENT for span in rows], dtype=np.int32),
        allocations=allocations,
        about=About() if about is None else about,
    )


def _numbered(things: Iterable[T]) -> dict[T, int]:
    return {thing: number for number, thing in enumerate(dict.fromkeys(things))}


def _column(values: Iterable[int | None]) -> NDArray[np.int64]:
    return np.array([ABSENT if value is None else value for value in values], dtype=np.int64)
