"""A real run after its calibration: what was predicted before its first trial is what every later look shows."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import msgspec
import pytest

from bench.analysis.prediction.scoring.before_run import predicted_step
from bench.analysis.prediction.scoring.score_report import print_score
from bench.case import Case
from bench.cli import main
from bench.errors import FINE
from bench.store.hardware_baselines import PredictedStep
from bench.store.history import History
from bench.store.run_dir import case_file
from bench.store.summary import StoredPrediction, Summary
from collectors.metrics.results import RUN_STEP_PREDICTED_RATIO, RUN_STEP_SECONDS
from workloads.cost_models.absent import Absent

FEW = ["--device", "cpu", "--trials", "2", "--steps", "2", "--warm-up", "1", "--port", "0"]
SIZES = {
    "layers": 1,
    "width": 32,
    "heads": 2,
    "kv-heads": 1,
    "mlp-width": 64,
    "vocabulary": 64,
    "sequence": 16,
    "batch": 4,
}
SHAPE = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def _measure(*words: str) -> None:
    assert main.run(("run", *words, *FEW)) == FINE


def _predicted_and_shown(*words: str) -> tuple[Summary, StoredPrediction, PredictedStep | Absent]:
    """Measure the case; its stored prediction, and what `show` would have predicted just before."""
    with History() as history:
        hardware = history.runs(1)[0].hardware
        (case,) = plan_cases(*words)
        shown = predicted_step(case, hardware, history)
        _measure(*words)
        run = history.runs(1)[0]
    assert run.case.key() == case.key()
    stored = case_file(Path(run.folder)).prediction
    assert stored is not None
    assert stored == run.prediction
    assert stored.predicted_ns <= min(path.stat().st_mtime_ns for path in Path(run.folder).glob("rank*.jsonl"))
    return run, stored, shown


def plan_cases(*words: str) -> list[Case]:
    """The cases of a command line, by its dry run."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main.run(("run", *words, *FEW, "--dry-run", "--format", "json")) == FINE
    return [msgspec.convert(each["case"], Case) for each in json.loads(out.getvalue())]


@pytest.mark.slow
def test_a_calibrated_run_is_predicted_before_it_begins_and_scored_after(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _measure("matmul", "--ranks", "1", "--option", "max_size=512")
    _measure("copies", "--ranks", "1", "--option", "size_bytes=4194304")
    run, stored, shown = _predicted_and_shown("single", "--ranks", "1", *SHAPE)
    assert isinstance(shown, PredictedStep)
    assert stored.step_s == shown.step_s
    assert [name.split("-")[2] for name in stored.calibrations] == ["matmul", "copies"]
    measured, ratio = (
        next(each for each in run.estimates if each.metric == metric.name)
        for metric in (RUN_STEP_SECONDS, RUN_STEP_PREDICTED_RATIO)
    )
    assert ratio.trials == pytest.approx([stored.step_s / step_s for step_s in measured.trials])
    assert main.run(("show", run.run, "--details")) == FINE
    assert "single on 1, before its first trial" in capsys.readouterr().out
    with History() as history:
        print_score(history, "json")
    document = json.loads(capsys.readouterr().out)
    assert (document["runs"], document["calibrations"]) == (1, 1)
    (group,) = document["groups"]
    assert group["errors"]["step"]["median"] == pytest.approx(stored.step_s / measured.median - 1)
    assert group["errors"]["memory"] is not None


@pytest.mark.slow
def test_a_run_that_communicates_rests_on_a_sweep_as_well(home: Path) -> None:
    _measure("matmul", "--ranks", "2", "--option", "max_size=512")
    _measure("copies", "--ranks", "2", "--option", "size_bytes=4194304")
    _measure("collectives", "--ranks", "2", "--option", "collectives=all_reduce")
    _, stored, shown = _predicted_and_shown("ddp", "--ranks", "2", *SHAPE)
    if isinstance(shown, Absent):  # On a machine so busy that the sweep determines no link.
        assert stored.absent["step_s"] == shown.reason
    else:
        assert stored.step_s == shown.step_s
        assert [name.split("-")[2] for name in stored.calibrations] == ["matmul", "copies", "collectives"]
