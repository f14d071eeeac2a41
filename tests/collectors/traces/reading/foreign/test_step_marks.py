"""Marks of steps that cannot be true are left out and said, and so is work without a length."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.traces.analyzers.summary import summary
from collectors.traces.steps import step_intervals
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.foreign_traces import UNIX_US, Event, changed, event, good_steps, is_at_work, read

FAR = "1 step mark that begins or ends minutes from all other events"
REACHES = "that reached into another: a step ends before the next begins"


def _marks(number: int, **values: object) -> list[Event]:
    return changed(good_steps(steps=6), lambda one: one["name"] == f"ProfilerStep#{number}", **values)


def _steps(timeline: Timeline) -> list[str]:
    return [part.name[-1] for part in step_intervals(timeline) if part.part == "step"]


@pytest.mark.parametrize(
    ("number", "values", "line", "whole"),
    [
        (0, {"dur": 1_800_000_000}, FAR, "12345"),
        (5, {"dur": 82_800_000_000}, FAR, "01234"),
        (1, {"ts": UNIX_US - 3_000_000_000}, FAR, "02345"),
        (1, {"ts": UNIX_US + 3_000_000_000}, FAR, "02345"),
        (0, {"dur": 900_000}, f"1 step mark {REACHES}", "12345"),
        (0, {"dur": 2_500}, f"1 step mark {REACHES}", "12345"),
        (0, {"dur": 1_500}, f"2 step marks {REACHES}", "2345"),
        (2, {"ts": UNIX_US + 1_400}, f"2 step marks {REACHES}", "0345"),
        (1, {"dur": 0}, "1 step mark without a length", "02345"),
    ],
)
def test_a_mark_that_cannot_be_true_is_left_out(
    tmp_path: Path, number: int, values: dict[str, object], line: str, whole: str
) -> None:
    timeline = read(tmp_path, _marks(number, **values))
    (left_out,) = timeline.about.left_out
    assert left_out.startswith(f"{line}: ProfilerStep#{number}" if line[0] == "1" else f"{line}: ProfilerStep#")
    assert _steps(timeline) == list(whole)


def test_marks_of_two_threads_may_overlap_and_one_may_be_written_twice(tmp_path: Path) -> None:
    marks = [event("user_annotation", f"ProfilerStep#{step}", UNIX_US + 1000 * step, 1000) for step in range(3)]
    others = [event("user_annotation", "ProfilerStep#9", UNIX_US + 500, 1000, tid=2)]
    assert read(tmp_path, [*good_steps(), *marks, *others]).about.left_out == ()


def test_a_step_may_wait_seconds_for_its_first_event(tmp_path: Path) -> None:
    assert read(tmp_path, _marks(0, ts=UNIX_US - 30_000_000, dur=30_001_000)).about.left_out == ()


@pytest.mark.parametrize("base_us", [UNIX_US, UNIX_US + 0.125])
def test_launched_work_without_a_length_makes_its_step_partial(tmp_path: Path, base_us: float) -> None:
    events = changed(good_steps(base_us), lambda one: one["args"].get("correlation") == 4 and is_at_work(one), dur=0)  # type: ignore[arg-type]
    timeline = read(tmp_path, events)
    assert timeline.about.left_out == (
        "1 event on the device without a length, whose end the profiler never took: ampere_sgemm_128x64_tn",
    )
    assert _steps(timeline) == ["0", "2"]


def test_work_that_whole_microseconds_round_to_none_is_counted_and_stays(tmp_path: Path) -> None:
    short = []
    for number, dur in enumerate((1, 0, 1, 0)):
        at = UNIX_US + 700 + 10 * number
        short.append(event("cuda_runtime", "cudaMemsetAsync", at, 2, correlation=90 + number))
        short.append(event("gpu_memset", "Memset (Device)", at + 5, dur, tid=7, correlation=90 + number))
    timeline = read(tmp_path, [*good_steps(), *short])
    assert timeline.about.left_out == (
        "nothing, though 2 events on the device have a length of 0: the trace rounds to whole microseconds, and others"
        " of their names last 1 us",
    )
    assert len(_steps(timeline)) == 3
    exact = changed(short, lambda one: one["cat"] == "gpu_memset", ts=lambda ts: ts + 0.5)
    assert read(tmp_path, [*good_steps(), *exact]).about.left_out[0].startswith("2 events on the device without a len")


def test_all_kernels_may_have_no_time(tmp_path: Path) -> None:
    timeline = read(tmp_path, changed(good_steps(), is_at_work, ts=0, dur=0))
    assert timeline.about.left_out == (
        "6 events at time 0: the profiler never took the time",
        "the device: all of its 6 kernels and copies are left out, since their times are not known; what figures there"
        " are belong to the host",
    )
    notes = summary([timeline]).notes
    for step in range(3):
        why = "the trace lacks the work of 2 of 2 launches, or its time"
        assert f"rank 0: ProfilerStep#{step} is partial: {why}" in notes


def test_a_device_seconds_behind_a_trace_of_milliseconds_has_another_clock(tmp_path: Path) -> None:
    events = [one for one in good_steps() if one["name"] != "cudaDeviceSynchronize"]
    timeline = read(tmp_path, changed(events, is_at_work, ts=lambda ts: ts + 30_000_000))
    assert timeline.about.clocks_differ
    assert "all 6 kernels begin at least 30 s after their launch" in timeline.about.left_out[0]
    behind = changed(events, is_at_work, ts=lambda ts: ts + 900_000)
    assert not read(tmp_path, behind).about.clocks_differ
