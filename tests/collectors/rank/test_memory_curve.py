"""Changes of memory, added up by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from collectors.metrics.rank import TIMELINE_PEAK_BYTES
from collectors.rank.memory_snapshot import CATEGORIES, CannotSave, added_up

CURVE = added_up(
    [
        (10, "parameters", 100),
        (10, "activations", 30),
        (20, "activations", -30),
        (20, "gradients", 40),
        (30, "gradients", -40),
    ]
)


def test_what_changes_at_one_moment_is_one_row() -> None:
    assert CURVE.times_ns.tolist() == [10, 20, 30]
    assert CURVE.held_bytes.sum(axis=1).tolist() == [130, 140, 100]


def test_the_peak_is_the_moment_of_the_largest_total_without_empty_categories() -> None:
    assert CURVE.peak() == {"parameters": 100, "gradients": 40, "total": 140}
    assert CURVE.samples() == [TIMELINE_PEAK_BYTES.at(size, category=name) for name, size in CURVE.peak().items()]


def test_a_step_that_changes_nothing_has_no_peak() -> None:
    assert added_up([]).samples() == []


def test_the_file_has_a_counter_for_each_moment(tmp_path: Path) -> None:
    path = tmp_path / "rank0.memory.json.gz"
    CURVE.save(path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert [event["ts"] for event in events] == [0.0, 0.01, 0.02]
    assert all(event["ph"] == "C" and tuple(event["args"]) == CATEGORIES for event in events)
    assert [event["args"]["gradients"] for event in events] == [0, 40, 0]


def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CannotSave, match="missing/x cannot be written: No such file or directory"):
        CURVE.save(tmp_path / "missing" / "x")
