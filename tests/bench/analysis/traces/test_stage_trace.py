"""The timed steps of a run become a trace file, and a run without any is refused in one line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.traces.pipeline_trace import require_stages, timed_steps, typical, write_trace
from bench.errors import InfrastructureFailed, Misuse
from tests.bench.made.examples import make_case, make_machine, make_probe, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import measure_fake
from tests.bench.results.pipeline.staged import GPIPE, Row, timed_step

PIPELINE = small_case("gpipe", ranks=2, trials=2, trace_steps=1)
STEPS_S = {"gpipe": [[[0.1, 0.1, 0.1]] * 2] * 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run of two trials."""
    (summary,) = measure_fake(tmp_path, FakeEngine(make_machine(), STEPS_S), PIPELINE).summaries
    return Path(summary.folder)


def _events(path: Path, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == phase]


def test_the_steps_are_those_of_the_last_trial(folder: Path) -> None:
    assert [step.trial for step in timed_steps(PIPELINE, folder)] == [1]


def test_each_action_is_a_span_on_the_row_of_its_stage(folder: Path) -> None:
    path = write_trace(PIPELINE, timed_steps(PIPELINE, folder), folder)
    spans = _events(path, "X")
    microbatches = PIPELINE.options["microbatches"]
    assert len(spans) == 2 * 2 * int(microbatches)
    assert len({(span["pid"], span["tid"]) for span in spans}) == 2
    assert {span["cat"] for span in spans} == {"forward", "backward"}


def test_each_microbatch_has_an_arrow_there_and_one_back(folder: Path) -> None:
    path = write_trace(PIPELINE, timed_steps(PIPELINE, folder), folder)
    upper, lower = dict.fromkeys(span["pid"] for span in _events(path, "X"))
    arrows = {start["id"]: (start["name"], start["pid"]) for start in _events(path, "s")}
    ways = Counter((*arrows[finish["id"]], finish["pid"]) for finish in _events(path, "f"))
    microbatches = int(PIPELINE.options["microbatches"])
    assert ways == {("activations", upper, lower): microbatches, ("gradients", lower, upper): microbatches}


def test_the_typical_step_is_of_median_length() -> None:
    rows: list[list[Row]] = [[[("forward", 0, 0, 0, length)]] for length in (5, 1, 9, 2)]
    assert typical([timed_step(row, step=number) for number, row in enumerate(rows)]).step == 3


def test_a_folder_that_cannot_be_written_is_the_infrastructures_failure(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFailed, match="cannot be written"):
        write_trace(PIPELINE, [timed_step(GPIPE)], tmp_path / "gone")


def test_a_run_that_timed_no_step_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(
        Misuse, match="has no step that was timed on all ranks; `observatory run gpipe` times new steps"
    ):
        timed_steps(PIPELINE, tmp_path)


def test_what_has_no_stages_is_refused() -> None:
    for case in (make_case("ddp"), make_probe("collectives")):
        with pytest.raises(Misuse, match=f"{case.strategy} has none; leave it out, or choose a pipeline"):
            require_stages(case)


def test_a_pipeline_that_times_no_step_is_refused() -> None:
    with pytest.raises(Misuse, match="trace-steps is 0; use --trace-steps 1 or more"):
        require_stages(make_case("gpipe"))
