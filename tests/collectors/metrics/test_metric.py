"""A metric gives samples with exactly its own labels."""

import pytest

from collectors.metrics.metric import Metric, Sample

PHASE = Metric(
    name="observatory_phase_seconds", kind="gauge", unit="seconds", scope="rank", help="Time.", labels=("phase",)
)


def test_at_gives_a_sample_with_its_labels() -> None:
    assert PHASE.at(0.5, phase="data") == Sample("observatory_phase_seconds", 0.5, {"phase": "data"})


def test_a_missing_label_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match=r"observatory_phase_seconds: labels missing: phase; its labels are: phase"):
        PHASE.at(0.5)


def test_an_unknown_label_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match=r"unknown: rank"):
        PHASE.at(0.5, phase="data", rank="0")
