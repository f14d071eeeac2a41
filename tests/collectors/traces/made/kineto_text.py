"""Traces as text, in the layouts that kineto has had."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

import numpy as np

from collectors.traces.reading.raw_events import RawEvents
from collectors.traces.timeline import Allocations, Timeline

REAL = Path(__file__).parents[4] / "../shared/data/traces"
BASE_NS = 1711964646000000000
HEAD = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}

COLUMNS = ("name", "kind", "start_ns", "end_ns", "stream", "correlation", "call", "sequence", "shape")


def event(
    category: str,
    name: str,
    ts: str,
    dur: str,
    *,
    pid: int | str = 0,
    tid: int | str = 7,
    args: Mapping[str, object] | None = None,
) -> str:
    """A complete event as kineto lays it out. ts, dur: as they shall be written."""
    rest = "" if args is None else f',\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}'
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {json.dumps(pid)},'
        f' "tid": {json.dumps(tid)},\n    "ts": {ts}, "dur": {dur}{rest}\n  }}'
    )


def kernel(name: str, ts: str, dur: str, *, stream: int = 7, args: Mapping[str, object] | None = None) -> str:
    """A kernel of the first GPU."""
    return event("kernel", name, ts, dur, tid=stream, args={"device": 0, "stream": stream, **(args or {})})


def document(
    events: Iterable[str], *, head: Mapping[str, object] | None = None, tail: Mapping[str, object] | None = None
) -> bytes:
    """The events with these keys before and behind them."""
    before = "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in (HEAD if head is None else head).items())
    behind = "".join(f',\n  "{key}": {json.dumps(value)}' for key, value in (tail or {}).items())
    return ("{\n" + before + '  "traceEvents": [\n' + ",\n".join(events) + "\n  ]" + behind + "\n}").encode()


def differing(one: Timeline, other: Timeline) -> list[str]:
    """The names of the columns in which they differ; what their traces say beside their events is not compared."""
    different = [name for name in COLUMNS if not _are_same(getattr(one, name), getattr(other, name))]
    different += [
        name for name in ("names", "calls", "shapes", "is_device") if getattr(one, name) != getattr(other, name)
    ]
    return different + _differing_allocations(one.allocations, other.allocations)


def differing_raw(one: RawEvents, other: RawEvents) -> list[str]:
    """The names of the fields in which they differ."""
    different = []
    for field in fields(RawEvents):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "allocations":
            different += _differing_allocations(mine, theirs)
        elif not (_are_same(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs):
            different.append(field.name)
    return different


def _differing_allocations(one: Allocations, other: Allocations) -> list[str]:
    names = [field.name for field in fields(Allocations)]
    return [f"allocations.{name}" for name in names if not _are_same(getattr(one, name), getattr(other, name))]


def _are_same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and bool(np.array_equal(one, other))
