"""Times that cannot be true are left out and said; a device with another clock than its host is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.traces.analyzers.critical_path import critical_path
from collectors.traces.analyzers.idle import idle
from collectors.traces.analyzers.kernels import launch_queue
from collectors.traces.analyzers.merge import merge
from collectors.traces.analyzers.stragglers import stragglers
from collectors.traces.analyzers.summary import summary
from collectors.traces.reading.plausible_times import long_time
from collectors.traces.reading.reader import read_trace
from collectors.traces.steps import step_intervals
from collectors.traces.timeline import Timeline, load, save
from tests.collectors.traces.made.foreign_traces import (
    NCCL,
    UNIX_US,
    Event,
    changed,
    event,
    good_steps,
    is_at_work,
    kernel,
    read,
)

NEVER_TAKEN = "at time 0: the profiler never took the time"
HOURS_US = 3600 * 10**6
ODD = Path(__file__).parents[5] / "../shared/data/odd"


def _is(name: str, number: int = 0) -> Callable[[Event], bool]:
    """Whether an event is the n-th of this name, by its place among those of `good_steps`."""
    return lambda one: (
        one["name"] == name
        and (one["args"].get("correlation") in (3 * number + 1, 3 * number + 2) or name.startswith("ProfilerStep"))
    )


def _whole(timeline: Timeline) -> list[str]:
    return [part.name for part in step_intervals(timeline) if part.part == "step"]


def _span_us(timeline: Timeline) -> int:
    (trace,) = (part for part in step_intervals(timeline) if part.part == "trace")
    return (trace.end_ns - trace.start_ns) // 1000


@pytest.mark.parametrize("base_us", [UNIX_US, 0, 86_400_000_000])
@pytest.mark.parametrize("name", ["ampere_sgemm_128x64_tn", NCCL])
@pytest.mark.parametrize("dur", [0, 200])
def test_work_whose_time_was_never_taken_makes_its_step_partial(
    tmp_path: Path, base_us: int, name: str, dur: int
) -> None:
    timeline = read(tmp_path, changed(good_steps(base_us), _is(name, 1), ts=0, dur=dur))
    assert timeline.about.left_out[0] == f"1 event {NEVER_TAKEN}"
    assert _whole(timeline) == ["ProfilerStep#0", "ProfilerStep#2"]
    assert _span_us(timeline) == 2600


def test_a_trace_may_have_no_time_for_its_second_half(tmp_path: Path) -> None:
    events = changed(good_steps(steps=4), lambda one: is_at_work(one) and one["ts"] >= UNIX_US + 2000, ts=0, dur=0)
    timeline = read(tmp_path, events)
    assert timeline.about.left_out == (f"4 events {NEVER_TAKEN}",)
    assert _whole(timeline) == ["ProfilerStep#0", "ProfilerStep#1"]
    assert _span_us(timeline) == 1600


def test_most_of_a_trace_may_have_no_time(tmp_path: Path) -> None:
    events = changed(good_steps(steps=4), lambda one: is_at_work(one) and one["ts"] >= UNIX_US + 1000, ts=0, dur=5)
    timeline = read(tmp_path, events)
    assert timeline.about.left_out == (f"6 events {NEVER_TAKEN}",)
    assert _whole(timeline) == ["ProfilerStep#0"]


def test_a_trace_without_any_time_of_the_device_has_no_device(tmp_path: Path) -> None:
    timeline = read(tmp_path, changed(good_steps(), is_at_work, ts=0, dur=0))
    assert timeline.about.left_out[0] == f"6 events {NEVER_TAKEN}"
    assert not timeline.is_device


def test_times_before_the_base_of_a_trace_are_written_as_0(tmp_path: Path) -> None:
    events = changed(good_steps(5 * 86_400_000_000), _is(NCCL), ts=0)
    timeline = read(tmp_path, events, baseTimeNanoseconds=UNIX_US * 1000)
    assert timeline.about.left_out == (f"1 event {NEVER_TAKEN}",)
    assert _span_us(timeline) == 2600


@pytest.mark.parametrize("base_us", [UNIX_US, 0])
def test_a_step_without_a_time_is_no_step(tmp_path: Path, base_us: int) -> None:
    timeline = read(tmp_path, changed(good_steps(base_us), _is("ProfilerStep#1"), ts=0, dur=0))
    assert timeline.about.left_out[0] == f"1 event {NEVER_TAKEN}"
    assert _whole(timeline) == ["ProfilerStep#0", "ProfilerStep#2"]
    assert not any(part.name == "ProfilerStep#1" for part in step_intervals(timeline))


def test_a_trace_that_counts_from_its_first_event_is_whole(tmp_path: Path) -> None:
    timeline = read(tmp_path, good_steps(0))
    assert timeline.about.left_out == ("the base of its times: the trace lacks it, so they are not Unix times",)
    assert len(_whole(timeline)) == 3


def test_a_copy_without_a_time_makes_its_step_partial(tmp_path: Path) -> None:
    copy = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 0, tid=7, correlation=500)
    call = event("cuda_runtime", "cudaMemcpyAsync", UNIX_US + 1040, 2, correlation=500)
    timeline = read(tmp_path, [*good_steps(), copy, call])
    assert _whole(timeline) == ["ProfilerStep#0", "ProfilerStep#2"]


def test_a_launch_without_a_time_is_unknown_and_not_before_the_trace(tmp_path: Path) -> None:
    events = changed(
        good_steps(), lambda one: one["name"] == "cudaLaunchKernel" and one["args"]["correlation"] == 1, ts=0
    )
    timeline = read(tmp_path, events)
    (first, *_) = (part for part in step_intervals(timeline) if part.part == "step")
    assert (first.end_ns - first.start_ns) == 1_000_000


@pytest.mark.parametrize(
    ("dur", "lasting"),
    [
        (9_223_372_036_854_775, "292 years"),
        (9_300_000_000_000_000, "292 years"),
        ("1e300", "292 years"),
        (700 * HOURS_US, "29 days"),
        (90 * 60 * 10**6, "90 minutes"),
    ],
)
def test_a_kernel_that_lasts_too_long_is_left_out_with_that_reason(tmp_path: Path, dur: object, lasting: str) -> None:
    path = tmp_path / "rank0.json"
    timeline = read(tmp_path, changed(good_steps(), _is(NCCL, 2), dur="DUR"))
    path.write_text(path.read_text().replace('"DUR"', str(dur)))
    timeline = read_trace(path)
    assert timeline.about.left_out == (f"1 event that lasts {lasting}: nothing in a trace runs so long",)
    assert _whole(timeline) == ["ProfilerStep#0", "ProfilerStep#1"]


def test_a_kernel_that_ends_seconds_after_the_next_of_its_stream_began_is_left_out(tmp_path: Path) -> None:
    timeline = read(tmp_path, changed(good_steps(), _is(NCCL, 1), dur=3_000_000))
    (line,) = timeline.about.left_out
    assert line.startswith("1 event on the device that ended seconds after the next on the same stream began: nccl")
    assert _whole(timeline) == ["ProfilerStep#0", "ProfilerStep#2"]
    assert _span_us(timeline) == 2600


def test_a_kernel_that_ends_seconds_after_its_synchronisation_is_left_out(tmp_path: Path) -> None:
    timeline = read(tmp_path, changed(good_steps(), _is(NCCL, 2), dur=3_000_000))
    (line,) = timeline.about.left_out
    assert line.startswith("1 event on the device that ended after the synchronisation that waited for it, unlike")


def test_a_kernel_that_begins_seconds_before_its_launch_is_left_out(tmp_path: Path) -> None:
    timeline = read(tmp_path, changed(good_steps(), _is(NCCL, 1), ts=UNIX_US - 4_000_000))
    (line,) = timeline.about.left_out
    assert line.startswith("1 event on the device that began seconds before the launch, unlike others: ncclDevKernel")
    assert _span_us(timeline) == 2600


@pytest.mark.parametrize("ts", [1, 3_000_000_000_000_000, UNIX_US - 2 * HOURS_US])
def test_an_event_that_is_hours_from_all_others_is_left_out(tmp_path: Path, ts: int) -> None:
    for one in (kernel("odd", ts, 1, 900, stream=9), event("cpu_op", "aten::mm", ts, 1)):
        timeline = read(tmp_path, [*good_steps(), one])
        assert timeline.about.left_out == ("1 event hours before or after all others",)
        assert _span_us(timeline) == 2600
        assert len(_whole(timeline)) == 3


def test_an_annotation_around_hours_of_training_stays(tmp_path: Path) -> None:
    around = event("user_annotation", "training", UNIX_US - 2 * HOURS_US, 3 * HOURS_US)
    assert read(tmp_path, [*good_steps(), around]).about.left_out == ()


def test_merged_ranks_last_as_long_as_their_steps(tmp_path: Path) -> None:
    ranks = []
    for rank in (0, 1):
        events = changed(good_steps(), _is(NCCL, 1), ts=0) if rank else good_steps()
        ranks.append(read(tmp_path, events, rank=rank))
    assert b'"begins_ns":"1764000000000000000"' in merge(ranks).content


# Clocks.


def _moved(by_us: int, **how: int) -> list[Event]:
    return changed(good_steps(**how), is_at_work, ts=lambda ts: ts + by_us)


EARLY = "begin before their launch"
LATE = "end after the synchronisation that waited for them"


@pytest.mark.parametrize(
    ("by_us", "what"),
    [
        (86_400_000_000 - UNIX_US, f"6 of 6 kernels {EARLY}, by up to 56 years"),
        (-3600 * 10**6, f"6 of 6 kernels {EARLY}, by up to 60 minutes"),
        (-300, f"3 of 6 kernels {EARLY}, by up to 260 us"),
        (3600 * 10**6, f"6 of 6 kernels {LATE}, by up to 60 minutes"),
        (300, f"6 of 6 kernels {LATE}, by up to 240 us"),
    ],
)
def test_clocks_of_host_and_device_that_differ_are_noticed(tmp_path: Path, by_us: int, what: str) -> None:
    timeline = read(tmp_path, _moved(by_us))
    assert (
        f"everything that compares host and device, such as steps: their clocks differ: {what}"
        in timeline.about.left_out
    )
    assert timeline.about.clocks_differ
    assert [part.part for part in step_intervals(timeline)] == ["trace"]
    (share,) = summary([timeline]).shares
    assert (share.breakdown.compute_ns, share.breakdown.communication_ns) == (1_200_000, 600_000)
    assert not launch_queue(timeline).delays
    assert not launch_queue(timeline).early
    assert set(idle([timeline]).shares[0].causes_ns.values()) == {None, 800_000}
    assert not critical_path([timeline]).steps
    assert b"ProfilerStep" not in merge([timeline]).content
    path = tmp_path / "rank0.timeline.npz"
    save(timeline, path)
    assert load(path).about == timeline.about


def test_a_device_that_begins_minutes_after_all_launches_has_another_clock(tmp_path: Path) -> None:
    events = [one for one in _moved(600 * 10**6) if one["name"] != "cudaDeviceSynchronize"]
    assert "all 6 kernels begin at least 10 minutes after their launch" in read(tmp_path, events).about.left_out[0]


def test_a_device_years_from_its_host_has_another_clock_without_launches_too(tmp_path: Path) -> None:
    events = [one for one in _moved(86_400_000_000 - UNIX_US) if one["cat"] != "cuda_runtime"]
    assert "the device's events are 56 years from the host's" in read(tmp_path, events).about.left_out[0]


def test_a_clock_that_launches_and_synchronisations_bound_closely_is_corrected(tmp_path: Path) -> None:
    events = changed(
        good_steps(synchronised_us=592), lambda one: one["name"] == "ampere_sgemm_128x64_tn", ts=lambda ts: ts - 36
    )
    whole = read(tmp_path, events)
    moved = read(tmp_path, changed(events, is_at_work, ts=lambda ts: ts - 300))
    assert not moved.about.clocks_differ
    assert moved.about.left_out == (
        f"nothing, though the clocks of host and device differ (3 of 6 kernels {EARLY}, by up to 296 us): the device's"
        " times are moved 299 us later, which launches and synchronisations bound within 6 us",
    )
    assert _whole(moved) == _whole(whole)


def test_one_early_kernel_among_thousands_is_no_other_clock(tmp_path: Path) -> None:
    events = changed(good_steps(steps=600), _is(NCCL, 1), ts=UNIX_US + 900)
    assert read(tmp_path, events).about.left_out == ()


def test_a_rank_with_two_clocks_is_compared_by_its_device_alone(tmp_path: Path) -> None:
    ranks = [read(tmp_path, good_steps(), rank=0), read(tmp_path, _moved(-300), rank=1)]
    found = stragglers(ranks)
    assert found.alignment.offset_ns == {0: 0, 1: 300_000}
    assert all(not one.delay_ns for one in found.ranks)


@pytest.mark.parametrize(
    ("name", "line", "whole"),
    [
        ("c01_years_long", "1 event that lasts 292 years: nothing in a trace runs so long", 3),
        ("c01b_zero_start", f"1 event {NEVER_TAKEN}", 3),
        ("c05_zero_ts_kernel", f"1 event {NEVER_TAKEN}", 2),
        ("c05d_zero_step", f"1 event {NEVER_TAKEN}", 2),
        ("c05e_zero_copy", f"1 event {NEVER_TAKEN}", 2),
        ("c05g_zero_begin_rank1", f"1 event {NEVER_TAKEN}", 2),
        ("c07_boot_clock", f"6 of 6 kernels {EARLY}", 0),
        ("c07c_300us_early", f"3 of 6 kernels {EARLY}", 0),
        ("c07d_one_rank_early_rank1", f"3 of 6 kernels {EARLY}", 0),
    ],
)
def test_odd_traces_are_read_rightly(name: str, line: str, whole: int) -> None:
    if not ODD.exists():
        pytest.skip(f"{ODD} is not there")
    timeline = read_trace(ODD / f"{name}.json")
    assert line in timeline.about.left_out[0]
    assert len(_whole(timeline)) == whole


def test_long_times_are_named_in_a_unit_of_their_size() -> None:
    times = [1_500, 2 * 10**6, 3 * 10**9, 2 * HOURS_US * 1000, 49 * HOURS_US * 1000, 10**18]
    assert [long_time(each) for each in times] == ["1.5 us", "2 ms", "3 s", "2 hours", "2 days", "32 years"]
