"""What is wrong with events is left out, or kept with a remark."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collectors.traces.reading.event_kinds import EARLIEST_UNIX_NS, kinds, remarks
from collectors.traces.reading.plausible_times import LATEST_NS, drop_impossible
from collectors.traces.reading.raw_events import CollectiveArgs
from collectors.traces.timeline import Allocations
from tests.collectors.traces.made.raw import Row, raw_of

KERNEL = Row("k", "kernel", EARLIEST_UNIX_NS, EARLIEST_UNIX_NS + 10, thread=7)


def _remarks(
    *rows: Row, unknown: tuple[str, ...] = (), unread_phases: tuple[str, ...] = (), without_address: int = 0
) -> tuple[str, ...]:
    raw = raw_of(rows, unknown=unknown, unread_phases=unread_phases, without_address=without_address)
    kind, is_device = kinds(raw)
    return remarks(raw, kind, raw.thread, is_device)


def test_events_that_end_before_they_begin_go_and_what_others_say_stays_with_them() -> None:
    words = CollectiveArgs(collective="allreduce")
    raw, lines, _ = drop_impossible(raw_of([Row("a", "kernel", 10, 9), Row("b", "kernel", 10, 10, said=words)]), 5)
    assert raw.start_ns.tolist() == [15]
    assert raw.collective_args == ((0, words),)
    assert lines == ("1 event that ends before it begins",)


def test_times_that_the_base_moves_beyond_64_bits_go_and_are_said_to_be_that() -> None:
    rows = [Row("a", "kernel", LATEST_NS - 19, LATEST_NS - 9), Row("b", "kernel", 5, 6)]
    raw, lines, _ = drop_impossible(raw_of([*rows, *rows, Row("c", "kernel", 5, 4)]), 10)
    assert raw.start_ns.tolist() == [15, 15]
    assert lines == (
        "1 event that ends before it begins",
        "2 events that end later than 64 bits of nanoseconds can tell, counted from the trace's base",
    )


def test_a_change_of_memory_that_the_base_moves_beyond_64_bits_goes_too() -> None:
    allocations = Allocations(
        time_ns=np.array([5, LATEST_NS - 9]),
        address=np.array([1, 2], dtype=np.uint64),
        change_bytes=np.array([8, 9]),
        allocated_bytes=np.array([8, 17]),
        device=np.array([0, 0], dtype=np.int16),
        thread=np.array([4, 4]),
    )
    raw, lines, _ = drop_impossible(raw_of([KERNEL], allocations=allocations), 10)
    assert raw.allocations.address.tolist() == [1]
    assert lines == ("1 event that ends later than 64 bits of nanoseconds can tell, counted from the trace's base",)


def test_sound_events_are_only_moved() -> None:
    raw, lines, _ = drop_impossible(raw_of([KERNEL]), 7)
    assert raw.start_ns.tolist() == [EARLIEST_UNIX_NS + 7]
    assert lines == ()


def test_a_sound_trace_has_no_remark() -> None:
    after = replace(KERNEL, start_ns=KERNEL.end_ns, end_ns=KERNEL.end_ns + 1)
    beside = replace(KERNEL, thread=8)
    assert _remarks(KERNEL, after, beside) == ()


def test_each_event_that_begins_too_early_on_its_stream_counts() -> None:
    rows = [replace(KERNEL, start_ns=KERNEL.start_ns + number, end_ns=KERNEL.start_ns + 9) for number in range(3)]
    assert _remarks(*rows) == ("nothing, though 2 events of stream 7 begin before others end, by up to 0.008 us",)


def test_nested_operators_of_a_thread_are_no_overlap() -> None:
    operators = [Row("aten::mm", "cpu_op", EARLIEST_UNIX_NS, EARLIEST_UNIX_NS + length) for length in (9, 8)]
    assert _remarks(*operators) == ()


def test_a_clock_that_is_not_unixs_is_remarked() -> None:
    (line,) = _remarks(Row("k", "kernel", 5, 6))
    assert line.startswith("the base of its times")


def test_categories_without_a_rule_are_named() -> None:
    assert _remarks(KERNEL, unknown=("b", "a")) == ('events of categories that are not known: "a", "b"',)


def test_phases_that_are_not_read_are_named() -> None:
    assert _remarks(KERNEL, unread_phases=("E", "B")) == ('events of phases that are not read: "B", "E"',)


@pytest.mark.parametrize(("count", "said"), [(1, "1 change"), (20, "20 changes")])
def test_changes_of_memory_without_an_address_are_said_once(count: int, said: str) -> None:
    line = f"{said} of memory without an address, as kineto wrote them in 2021"
    assert _remarks(KERNEL, without_address=count) == (line,)


def test_without_events_there_is_nothing_to_remark() -> None:
    raw = raw_of(())
    assert remarks(raw, np.empty(0, dtype=np.int8), raw.thread, False) == ()
