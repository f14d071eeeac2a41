"""A Timeline keeps its spans, in memory and on the disk."""

from pathlib import Path

import numpy as np
import pytest

from collectors.traces.spans import SCHEMA_VERSION, Span, Timeline, load, timeline_of

SPANS = [
    Span(name="aten::mm", kind="compute", start_ns=5, end_ns=9, stream=1),
    Span(name="gloo:all_reduce", kind="communication", start_ns=7, end_ns=12, stream=2),
    Span(name="aten::mm", kind="compute", start_ns=1, end_ns=3, stream=1),
]


def _timeline() -> Timeline:
    return timeline_of(SPANS, rank=3, is_device=False)


def test_spans_are_in_order_and_each_name_is_kept_once() -> None:
    timeline = _timeline()
    assert timeline.names == ("aten::mm", "gloo:all_reduce")
    assert timeline.start_ns.tolist() == [1, 5, 7]
    assert timeline.start_ns.dtype == np.int64


def test_times_are_unions() -> None:
    timeline = _timeline()
    assert timeline.busy_ns("compute") == 6
    assert timeline.overlap_ns("compute", "communication") == 2


def test_a_timeline_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    timeline = _timeline()
    timeline.save(tmp_path / "rank3.timeline.npz")
    again = load(tmp_path / "rank3.timeline.npz")
    assert (again.rank, again.is_device, again.names) == (3, False, timeline.names)
    for column in ("name", "kind", "start_ns", "end_ns", "stream"):
        ours, theirs = getattr(timeline, column), getattr(again, column)
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist()


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank3.timeline.npz"
    np.savez(path, schema_version=np.int64(SCHEMA_VERSION + 1))
    with pytest.raises(ValueError, match=r"schema version 2 is newer than 1"):
        load(path)
