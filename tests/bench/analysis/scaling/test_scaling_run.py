"""The division of a real step: a loader that is made slow is found in what the step lost."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import FINE
from bench.results.efficiency import Loss, loss_of
from bench.results.step_parts import MeasuredStep
from bench.store.history import History

SMALL = ["--layers=2", "--width=16", "--heads=2", "--kv-heads=1", "--mlp-width=32", "--sequence=8", "--batch=4"]
QUICK = ["--device=cpu", "--ranks=1", "--trials=1", "--steps=6", "--warm-up=2", "--trace-steps=3", "--port=0", "-q"]


@pytest.mark.slow
def test_a_slow_loader_is_found_in_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its batches takes half a second, which a busy machine's steps do not."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for delay in ("0.0", "500.0"):
        assert main.run(["run", "ddp", *SMALL, *QUICK, f"--option=loader_delay_ms={delay}"]) == FINE
    with History() as history:
        slow, base = history.runs(limit=2)
    found = loss_of(*(MeasuredStep(case=one.case, estimates=one.estimates) for one in (slow, base)))
    assert isinstance(found, Loss)
    by_name = {part.name: part.lost_s for part in found.parts}
    assert math.fsum(by_name.values()) == pytest.approx(found.step_s - found.ideal_s)
    assert max(by_name, key=lambda name: by_name[name]) == "data"
    assert by_name["data"] > 0.5 * (found.step_s - found.ideal_s)
