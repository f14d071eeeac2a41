"""The time before a rank comes to a collective is divided among what it waited for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.lateness import ACTIVITIES, Activities, Activity
from collectors.traces.timeline import SpanKind
from tests.support.timelines import Span, timeline_of

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def _span(kind: SpanKind, start_ns: int, end_ns: int, name: str = "", stream: int = 7) -> Span:
    return Span(name=name or kind, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=stream)


def _activities(*spans: Span, is_device: bool = True) -> Activities:
    return Activities(timeline_of(spans, rank=0, is_device=is_device))


def _spent(activities: Activities, start_ns: int, end_ns: int) -> dict[Activity, int]:
    """What lasted at all."""
    spent_ns = activities.spent_ns(activities.by_last_end(start_ns, end_ns), start_ns, end_ns)
    return {activity: lasted_ns for activity, lasted_ns in spent_ns.items() if lasted_ns}


def test_what_overlaps_is_the_time_of_what_ended_last() -> None:
    computed_last = _activities(_span("communication", 0, 60), _span("compute", 20, 90))
    assert _spent(computed_last, 0, 100) == {"an earlier collective": 20, "compute": 70, "host": 10}
    met_last = _activities(_span("communication", 0, 95), _span("compute", 20, 90))
    assert _spent(met_last, 0, 100) == {"an earlier collective": 95, "host": 5}


def test_what_still_ran_when_the_rank_came_was_not_waited_for() -> None:
    activities = _activities(_span("communication", 0, 60), _span("compute", 0, 50), _span("compute", 50, 200))
    assert _spent(activities, 0, 100) == {"an earlier collective": 60, "compute": 40}


def test_loading_on_a_host_holds_the_operators_in_it() -> None:
    spans = (_span("host", 0, 50, LOADER), _span("compute", 10, 80, "aten::stack"))
    assert _spent(_activities(*spans, is_device=False), 0, 100) == {"data loading": 50, "compute": 30, "host": 20}


def test_loading_beside_a_busy_device_is_not_waited_for() -> None:
    activities = _activities(_span("host", 0, 50, LOADER), _span("compute", 0, 80))
    assert _spent(activities, 0, 100) == {"compute": 80, "host": 20}


SPANS = st.lists(
    st.tuples(st.sampled_from(["compute", "communication", "copy", "host"]), st.integers(0, 90), st.integers(0, 40)),
    max_size=12,
)


@given(SPANS, st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_the_parts_add_up_to_the_window(
    spans: list[tuple[SpanKind, int, int]], start_ns: int, lasts_ns: int, is_device: bool
) -> None:
    activities = _activities(
        *(_span(kind, start, start + lasts, LOADER if kind == "host" else "") for kind, start, lasts in spans),
        is_device=is_device,
    )
    order = activities.by_last_end(start_ns, start_ns + lasts_ns)
    spent_ns = activities.spent_ns(order, start_ns, start_ns + lasts_ns)
    assert set(spent_ns) == set(ACTIVITIES)
    assert min(spent_ns.values()) >= 0
    assert sum(spent_ns.values()) == lasts_ns


def test_names_are_of_the_innermost_and_only_within_the_windows() -> None:
    activities = _activities(
        _span("compute", 0, 100, "aten::linear", stream=1),
        _span("compute", 20, 90, "aten::addmm", stream=1),
        _span("compute", 0, 50, "aten::mul", stream=2),
    )
    windows = np.array([[10, 30], [60, 95]], dtype=np.int64)
    assert activities.names_ns("compute", windows) == {"aten::linear": 15, "aten::addmm": 40, "aten::mul": 20}


def test_names_of_the_host_are_of_the_time_in_which_it_did_nothing_else() -> None:
    activities = _activities(_span("host", 0, 100, "aten::nonzero", stream=1), _span("compute", 0, 70))
    assert activities.names_ns("host", np.array([[10, 90]], dtype=np.int64)) == {"aten::nonzero": 20}
