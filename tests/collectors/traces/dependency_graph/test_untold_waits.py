"""A wait that no call tells of is told by its times alone, where they leave no other reason."""

from __future__ import annotations

import numpy as np

from collectors.traces.dependency_graph.dependencies import device_queue, inferred_stream_waits
from tests.collectors.traces.made.small_traces import device, launch, span
from tests.support.timelines import Span

NONE = np.empty(0, dtype=np.int64)


def _found(*spans: Span) -> list[tuple[str, str]]:
    timeline = device(0, *spans)
    queue = device_queue(timeline)
    return [
        (timeline.names[timeline.name[queue.row[source]]], timeline.names[timeline.name[queue.row[target]]])
        for source, target in zip(*inferred_stream_waits(queue, NONE, NONE, 5_000), strict=True)
    ]


def _reduced(ends_us: int, starts_us: int) -> list[tuple[str, str]]:
    """A reduction on a stream of its own, and what was put on the device right after it."""
    return _found(
        launch(0, 1),
        launch(3, 2),
        span("communication", "reduce", 5, ends_us, 20, 1),
        span("compute", "update", starts_us, starts_us + 40, 7, 2),
    )


def test_what_began_right_after_another_stream_waited_for_it() -> None:
    assert _reduced(100, 102) == [("reduce", "update")]


def test_what_began_as_soon_as_it_was_called_did_not_wait() -> None:
    assert _reduced(7, 8) == []


def test_what_was_ready_only_shortly_before_did_not_wait() -> None:
    assert _reduced(22, 23) == []


def test_what_began_long_after_the_other_ended_did_not_wait_for_it() -> None:
    assert _reduced(30, 102) == []


def test_a_graph_is_bound_by_the_times_of_its_spans() -> None:
    found = _found(
        launch(0, 1),
        span("compute", "one", 5, 60, 7, 1),
        span("compute", "two", 61, 90, 13, 1),
    )
    assert found == [("one", "two")]


def test_what_was_asked_for_later_was_not_waited_for() -> None:
    found = _found(
        launch(0, 1),
        launch(40, 2),
        span("compute", "waits", 100, 120, 7, 1),
        span("compute", "later", 50, 98, 13, 2),
    )
    assert found == []
