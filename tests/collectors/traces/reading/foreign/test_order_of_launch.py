"""Work that breaks its stream's order of launch, or its synchronisation, is left out; its step is partial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.traces.reading.reader import read_trace
from collectors.traces.steps import step_intervals
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.foreign_traces import UNIX_US, Event, changed, event, good_steps, kernel, read

OUT_OF_ORDER = "1 event on the device that began out of its stream's order of launch: ampere_sgemm_128x64_tn"
LATE = (
    "1 event on the device that ended after the synchronisation that waited for it, unlike others:"
    " ampere_sgemm_128x64_tn"
)
REAL = Path(__file__).parents[5] / "../shared/data/traces"


def _kernel_of(step: int) -> Callable[[Event], bool]:
    return lambda one: one["cat"] == "kernel" and one["args"].get("correlation") == 3 * step + 1


def _without(events: list[Event], name: str) -> list[Event]:
    return [one for one in events if one["name"] != name]


def _parts(timeline: Timeline) -> list[str]:
    return [part.part for part in step_intervals(timeline)]


def _span_us(timeline: Timeline) -> int:
    return (step_intervals(timeline)[0].end_ns - step_intervals(timeline)[0].start_ns) // 1000


@pytest.mark.parametrize("by_us", [3_000, 900_000, 600_000_000])
@pytest.mark.parametrize("is_synchronised", [True, False])
def test_a_kernel_that_begins_after_those_launched_later_is_left_out(
    tmp_path: Path, by_us: int, is_synchronised: bool
) -> None:
    events = changed(good_steps(steps=6), _kernel_of(1), ts=lambda ts: ts + by_us)
    timeline = read(tmp_path, events if is_synchronised else _without(events, "cudaDeviceSynchronize"))
    assert timeline.about.left_out == (OUT_OF_ORDER,)
    assert _parts(timeline) == ["trace", "step", "partial", "step", "step", "step", "step"]
    assert _span_us(timeline) == 5600


def test_a_kernel_that_begins_before_those_launched_earlier_is_left_out(tmp_path: Path) -> None:
    """All run 10 ms behind their launch, but for the last, which has the time of its launch."""
    events = changed(good_steps(steps=6), lambda one: one["cat"] == "kernel", ts=lambda ts: ts + 10_000)
    events = changed(_without(events, "cudaDeviceSynchronize"), _kernel_of(5), ts=UNIX_US + 5_020)
    timeline = read(tmp_path, events)
    assert timeline.about.left_out == (OUT_OF_ORDER,)
    assert _parts(timeline)[-1] == "partial"


@pytest.mark.parametrize("step", [1, 3])
def test_a_kernel_that_begins_before_its_launch_and_those_of_its_stream_is_left_out(tmp_path: Path, step: int) -> None:
    timeline = read(tmp_path, changed(good_steps(steps=6), _kernel_of(step), ts=UNIX_US - 500))
    assert timeline.about.left_out == (OUT_OF_ORDER,)
    assert [part.name for part in step_intervals(timeline) if part.part == "partial"] == [f"ProfilerStep#{step}"]


def test_two_faults_apart_from_each_other_are_two(tmp_path: Path) -> None:
    events = good_steps(steps=9)
    for step in (1, 5):
        events = changed(events, _kernel_of(step), ts=lambda ts: ts + 2_500)
    timeline = read(tmp_path, events)
    assert timeline.about.left_out == (f"2 events{OUT_OF_ORDER[7:]}",)


def test_a_copy_out_of_order_is_left_out(tmp_path: Path) -> None:
    call = event("cuda_runtime", "cudaMemcpyAsync", UNIX_US + 2, 3, correlation=500)
    copy = event("gpu_memcpy", "Memcpy HtoD", UNIX_US + 40_000, 5, tid=7, correlation=500)
    timeline = read(tmp_path, [*_without(good_steps(), "cudaDeviceSynchronize"), call, copy])
    assert timeline.about.left_out == (
        "1 event on the device that began out of its stream's order of launch: Memcpy HtoD",
    )
    assert _parts(timeline) == ["trace", "partial", "step", "step"]


def test_calls_of_two_threads_that_overlap_tell_no_order(tmp_path: Path) -> None:
    """A call may wait for room in the queue while another thread launches more into the stream."""
    events = [
        *good_steps(),
        event("cuda_runtime", "cudaLaunchKernel", UNIX_US + 1000, 900, tid=2, correlation=90),
        kernel("waited", UNIX_US + 1600, 20, 90),
    ]
    assert read(tmp_path, events).about.left_out == ()


def test_kernels_of_a_graph_have_no_order(tmp_path: Path) -> None:
    events = [
        *good_steps(),
        event("cuda_runtime", "cudaGraphLaunch", UNIX_US + 8, 1, correlation=90),
        kernel("of_graph", UNIX_US + 700, 5, 90),
        kernel("of_graph", UNIX_US + 20, 5, 90),
        event("cuda_runtime", "cudaGraphLaunch", UNIX_US + 1008, 1, correlation=91),
        kernel("of_graph", UNIX_US + 1700, 5, 91),
    ]
    assert read(tmp_path, events).about.left_out == ()


def test_streams_of_other_priority_have_an_order_each(tmp_path: Path) -> None:
    events = [
        *_without(good_steps(), "cudaDeviceSynchronize"),
        event("cuda_runtime", "cudaLaunchKernel", UNIX_US + 2, 3, correlation=90),
        kernel("patient", UNIX_US + 2900, 50, 90, stream=9),
    ]
    assert read(tmp_path, events).about.left_out == ()


@pytest.mark.parametrize("dur", [5_000, 500_000])
@pytest.mark.parametrize("synchronisations", [6, 1])
def test_a_kernel_that_ends_after_its_synchronisation_is_left_out(
    tmp_path: Path, dur: int, synchronisations: int
) -> None:
    events = changed(good_steps(steps=6), _kernel_of(1), dur=dur)
    if synchronisations == 1:
        events = [*_without(events, "cudaDeviceSynchronize")]
        events.append(event("cuda_runtime", "cudaDeviceSynchronize", UNIX_US + 5_600, 100))
        dur = max(dur, 6_000)
        events = changed(events, _kernel_of(1), dur=dur)
    timeline = read(tmp_path, events)
    assert timeline.about.left_out == (LATE,)
    assert _parts(timeline) == ["trace", "step", "partial", "step", "step", "step", "step"]
    assert _span_us(timeline) == 5600


def _synchronised_once(events: list[Event]) -> list[Event]:
    """The events with the last of their synchronisations alone."""
    return [one for one in events if one["name"] != "cudaDeviceSynchronize" or one["args"]["correlation"] == 18]


def test_the_last_kernel_before_the_only_synchronisation_may_be_wrong(tmp_path: Path) -> None:
    """Clocks that differ by so much would have all kernels begin long after their launch."""
    events = changed(_synchronised_once(good_steps(steps=6)), _kernel_of(5), dur=400_000)
    timeline = read(tmp_path, events)
    assert timeline.about.left_out == (LATE,)
    assert _parts(timeline)[-1] == "partial"


@pytest.mark.parametrize("by_us", [300, 3_000, 400_000])
def test_a_clock_that_only_one_synchronisation_shows_is_no_fault_of_a_kernel(tmp_path: Path, by_us: int) -> None:
    events = _synchronised_once(good_steps(steps=6))
    timeline = read(tmp_path, changed(events, lambda one: one["cat"] == "kernel", ts=lambda ts: ts + by_us))
    assert timeline.about.clocks_differ
    assert len(timeline.name) == len(events)


def test_a_kernel_that_may_be_wrong_is_named_where_nothing_tells(tmp_path: Path) -> None:
    events = changed(_without(good_steps(steps=6), "cudaDeviceSynchronize"), _kernel_of(0), dur=500_000)
    (line,) = read(tmp_path, events).about.left_out
    assert line == (
        "nothing, though a stream runs its work one by one and 5 events of stream 7 begin before ampere_sgemm_128x64_tn"
        " ends, which lasts 500 ms: its end is probably wrong, and with it the figures of its step"
    )


@pytest.mark.parametrize("path", sorted(REAL.glob("*.json.gz")) or [REAL], ids=lambda path: path.name)
def test_no_event_of_a_real_trace_is_left_out(path: Path) -> None:
    if not path.is_file():
        pytest.skip(f"{REAL} is not there")
    assert not [line for line in read_trace(path).about.left_out if line[0].isdigit()]
