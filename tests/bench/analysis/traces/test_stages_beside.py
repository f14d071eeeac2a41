"""The actions of a pipeline's stages are drawn beside its traces; a run without any has none."""

from __future__ import annotations

from pathlib import Path

from bench.analysis.traces.pipeline_trace import stage_spans
from bench.store.run_dir import begin
from tests.bench.made.examples import make_machine, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import measure_fake

PIPELINE = small_case("gpipe", ranks=2, trials=1, trace_steps=1)


def test_each_action_of_a_pipeline_is_a_box_below_its_rank(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"gpipe": [[[0.1, 0.1, 0.1]] * 2]})
    (summary,) = measure_fake(tmp_path, engine, PIPELINE).summaries
    said: list[str] = []
    spans = stage_spans(Path(summary.folder), on_notice=said.append)
    assert said == []
    assert len(spans) == 2 * 2 * int(PIPELINE.options["microbatches"])
    assert {span.track.group for span in spans} == {"rank 0", "rank 1"}
    assert {span.track.name for span in spans} == {f"stage {stage}, in extra steps" for stage in (0, 1)}
    assert all(span.start_ns < span.end_ns for span in spans)


def test_a_run_without_stages_has_none(tmp_path: Path) -> None:
    run = begin(small_case("ddp"), make_machine(), tmp_path)
    run.close()
    said: list[str] = []
    assert stage_spans(run.folder, on_notice=said.append) == []
    assert said == []


def test_a_pipeline_that_ended_before_its_timed_steps_has_none_and_says_so(tmp_path: Path) -> None:
    run = begin(PIPELINE, make_machine(), tmp_path)
    run.close()
    said: list[str] = []
    assert stage_spans(run.folder, on_notice=said.append) == []
    (line,) = said
    assert line.startswith("stage actions are absent: ")
