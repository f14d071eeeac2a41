"""A pipeline's tables say what was measured, and what explains it."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from bench.report.run.pipeline import pipeline_blocks
from bench.report.table import print_page
from bench.store.hardware_baselines import against_history
from bench.store.history import History
from bench.store.summary import Summary
from tests.bench.made.examples import make_machine, make_summary, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import measure_fake

# Two ranks, four microbatches, forward 1 ms and backward 2: 15 ms, of which each rank computes 12.
PIPELINE = small_case("gpipe", ranks=2, options={"microbatches": 4}, trace_steps=1)


def _printed(summary: Summary) -> list[list[str]]:
    text = io.StringIO()
    print_page(pipeline_blocks(summary), Console(file=text, width=100))
    return [line.split() for line in text.getvalue().splitlines() if line]


def _measured(folder: Path) -> Summary:
    engine = FakeEngine(make_machine(), {"gpipe": [[[0.1, 0.1, 0.1]] * 2]})
    (summary,) = measure_fake(folder, engine, PIPELINE).summaries
    with History(f"sqlite:///{folder / 'history.sqlite'}") as history:
        return against_history(summary, history)


def test_the_bubble_stands_with_its_parts_and_what_was_predicted(tmp_path: Path) -> None:
    lines = _printed(_measured(tmp_path))
    assert lines[:6] == [
        ["gpipe", "on", "2:", "bubble", "share", "of", "the", "ranks'", "time"],
        ["measured", "20.0", "%"],
        ["schedule", "20.0", "%"],
        ["imbalance", "0.000", "%"],
        ["uneven", "0.000", "%"],
        ["unexplained", "0.000", "%"],
    ]
    assert lines[6] == ["predicted", "20.0", "%"]


def test_each_stage_has_its_times_and_what_it_holds(tmp_path: Path) -> None:
    lines = _printed(_measured(tmp_path))
    assert lines[7] == ["stage", "pipeline", "rank", "forward", "backward", "live", "microbatches", "activations"]
    assert [line[:12] for line in lines[8:]] == [
        ["0", "0", "1.00", "ms", "2.00", "ms", "4,", "predicted", "4", "0.954", "MiB,", "predicted"],
        ["1", "1", "1.00", "ms", "2.00", "ms", "4,", "predicted", "4", "1.91", "MiB,", "predicted"],
    ]


def test_a_run_without_stages_has_no_such_tables() -> None:
    assert _printed(make_summary()) == []
