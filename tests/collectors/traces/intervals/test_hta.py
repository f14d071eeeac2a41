"""HolisticTraceAnalysis 0.5.0, run on real traces, says what our Timelines say once its own habits are put upon them.

Its habits, which are wrong and which are these tests' and never the product's:

- It rounds each start up and each end down to a microsecond, so that kernels are too short, and those that lie within
  one microsecond last less than nothing, which it takes away from the rest. Of the MI300X trace it says 17,018 us of
  compute where there are 19,234, and 1,541 us of idling where there are 284. It adds start and length in floating
  point, whose sum may fall below the microsecond at which a kernel ends.
- It leaves out what was called after the last profiler step began, since that step may be cut off, and so answers for
  less than the trace. Where a trace marks steps on the device too, as that of the MI300X does, it takes these for the
  host's: the device comes to the last step late, so that much of that step stays in and only its end is left out.
- It tells a kernel that communicates by the one pattern `^nccl.*Kernel`: every other library computes. A kernel whose
  name holds Sync or Memcpy is neither to it, and not part of compute; none is in these files.
- It takes whatever has a stream for the device's: with them it counts `Stream Wait Event` as compute. These files were
  recorded without such events.
- Its overlap is of communication, in percent with two decimals, and NaN where there is none.
"""

from __future__ import annotations

import gzip
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from collectors.traces.intervals import Times, intersection, length_ns
from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import SpanKind, Timeline
from tests.benchmarks.trace_parts.hta import Answer, ask, interpreter

TRACES = Path(__file__).parents[4] / "../shared/data/traces"
SETS = {
    "MI300X": ("resnet_mi300x_rank0_of_8.json.gz",),
    "A100 in nanoseconds": ("nccl_a100_rank0_of_2.json.gz",),
    "A100 in microseconds": ("a100_rank3_of_8.json.gz",),
    "eight V100": tuple(f"dlrm_v100_rank{rank}.json.gz" for rank in range(8)),
}
IN_NANOSECONDS = ("MI300X", "A100 in nanoseconds")
DEVICE: tuple[SpanKind, ...] = ("compute", "communication", "copy")

pytestmark = pytest.mark.slow


class _Event(msgspec.Struct):
    ph: str
    name: str = ""
    ts: int | float = 0


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(default=0, name="baseTimeNanoseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """In microseconds, as HTA calls them."""

    idle: float
    compute: float
    non_compute: float
    kernel: float
    overlap_percent: float


@pytest.fixture(scope="module")
def hta() -> None:
    try:
        interpreter()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"HolisticTraceAnalysis cannot be installed: {error}")


@pytest.mark.parametrize("name", SETS)
def test_with_its_rounding_and_its_steps_hta_finds_the_same_to_the_microsecond(name: str, hta: None) -> None:
    paths, answer = _ask(name)
    for path, its in zip(paths, answer.ranks, strict=True):
        ours = _as_hta(path, is_rounding=True)
        assert (ours.idle, ours.compute, ours.non_compute, ours.kernel) == (
            its.idle_us,
            its.compute_us,
            its.non_compute_us,
            its.kernel_us,
        )
        assert round(ours.overlap_percent, 2) == its.overlap_percent


@pytest.mark.parametrize("name", IN_NANOSECONDS)
def test_without_its_rounding_hta_finds_the_same_but_for_its_floating_point(name: str, hta: None) -> None:
    paths, answer = _ask(name, keeps_nanoseconds=True)
    for path, its in zip(paths, answer.ranks, strict=True):
        ours = _as_hta(path, is_rounding=False)
        # At these moments neighbouring doubles of microseconds lie half a nanosecond to a nanosecond apart.
        assert (ours.idle, ours.compute, ours.non_compute, ours.kernel) == pytest.approx(
            (its.idle_us, its.compute_us, its.non_compute_us, its.kernel_us), abs=0.002, rel=0
        )
        assert round(ours.overlap_percent, 2) == its.overlap_percent


def _ask(name: str, *, keeps_nanoseconds: bool = False) -> tuple[Sequence[Path], Answer]:
    paths = [TRACES / file for file in SETS[name]]
    if not all(path.exists() for path in paths):
        pytest.skip(f"{TRACES} has no {', '.join(SETS[name])}")
    return paths, ask(paths, keeps_nanoseconds=keeps_nanoseconds)


def _as_hta(path: Path, *, is_rounding: bool) -> _Said:
    """What our Timeline of the trace says with HTA's habits."""
    timeline = read_trace(path)
    trace = msgspec.json.decode(gzip.decompress(path.read_bytes()), type=_Trace)
    # Decimals of microseconds, which it rounds, come with a base.
    is_rounding = is_rounding and trace.base_ns > 0
    start_ns, end_ns = timeline.start_ns - trace.base_ns, timeline.end_ns - trace.base_ns
    if is_rounding:
        start_ns, end_ns = _rounded(start_ns, end_ns)
    chosen = np.isin(timeline.correlation, _called(timeline, trace, start_ns, is_rounding=is_rounding))
    every, compute, communication = (
        _merged(start_ns[of_kind & chosen], end_ns[of_kind & chosen])
        for of_kind in (
            np.logical_or.reduce([timeline.of_kind(kind) for kind in DEVICE]),
            timeline.of_kind("compute"),
            timeline.of_kind("communication"),
        )
    )
    kernel_ns, busy_ns = int(every[-1, 1] - every[0, 0]), length_ns(every)
    both = intersection(*(times[times[:, 1] > times[:, 0]] for times in (compute, communication)))
    return _Said(
        idle=(kernel_ns - busy_ns) / 1000,
        compute=length_ns(compute) / 1000,
        non_compute=(busy_ns - length_ns(compute)) / 1000,
        kernel=kernel_ns / 1000,
        overlap_percent=100 * length_ns(both) / length_ns(communication),
    )


def _rounded(start_ns: Times, end_ns: Times) -> tuple[Times, Times]:
    """To microseconds inwards, after a sum in floating point."""
    start_us = start_ns / 1000
    end_us = start_us + (end_ns - start_ns) / 1000
    return 1000 * np.ceil(start_us).astype(np.int64), 1000 * np.floor(end_us).astype(np.int64)


def _called(timeline: Timeline, trace: _Trace, start_ns: Times, *, is_rounding: bool) -> Times:
    """The correlations of what was called before the last profiler step; of all where the trace has but one."""
    steps = [event for event in trace.events if event.ph == "X" and "ProfilerStep" in event.name]
    if len({step.name for step in steps}) < 2:
        return timeline.correlation
    last_us = max(step.ts for step in steps)
    last_ns = 1000 * math.ceil(last_us) if is_rounding else round(1000 * last_us)
    return timeline.correlation[timeline.of_kind("launch") & (start_ns < last_ns)]


def _merged(start_ns: Times, end_ns: Times) -> Times:
    """One row for all that touch, as HTA puts them together: what ends before it starts does so there too."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    first = np.flatnonzero(np.concatenate(([True], start_ns[1:] > np.maximum.accumulate(end_ns)[:-1])))
    return np.stack((start_ns[first], np.maximum.reduceat(end_ns, first)), axis=1)
