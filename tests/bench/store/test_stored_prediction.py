"""What is predicted of a run before its first trial, and that it is stored then and never replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.analysis.prediction.scoring.before_run import predict_run, predicted_step, predicted_steps
from bench.case import Case
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.rank.messages import FailureCause, TrialEnded, TrialOrder
from bench.results.estimate import estimate
from bench.session.measure import CaseOrder, TrialSettings, measure
from bench.session.patient_store import PatientStore
from bench.store.hardware_baselines import PredictedStep
from bench.store.history import History
from bench.store.prediction import MEMORY_PARTS, MODEL_VERSION, errors_of
from bench.store.run_dir import case_file, load
from bench.store.summary import StoredPrediction, Summary, decode, encode
from collectors.metrics import results
from tests.bench.made.calibrations import add_copies, add_matmul, add_sweep
from tests.bench.made.examples import make_case, make_machine, make_probe, make_summary
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import DDP, DDP_STEPS_S
from tests.bench.made.fake_suites import FakeNight
from workloads.cost_models.absent import Absent
from workloads.cost_models.peak_memory import Prediction

HARDWARE = make_machine().hardware("cpu")


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """An empty one."""
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as empty:
        yield empty


def _predict(case: Case, history: History | Absent) -> StoredPrediction:
    predicted = predict_run(case, HARDWARE, history)
    assert predicted is not None
    return predicted


# What is predicted


@pytest.mark.parametrize("strategy", ["ddp", "one_f_one_b"])
def test_the_parts_add_up_to_the_step_that_show_predicts(strategy: str, history: History) -> None:
    case = make_case(strategy)
    add_matmul(history, case, HARDWARE)
    add_copies(history, case, HARDWARE)
    add_sweep(history, case, HARDWARE)
    stored, shown = _predict(case, history), predicted_step(case, HARDWARE, history)
    assert isinstance(shown, PredictedStep)
    assert (stored.step_s, stored.step_basis) == (shown.step_s, shown.basis)
    parts = (stored.compute_s, stored.optimizer_s, stored.exposed_s, stored.bubble_s)
    assert all(part is not None for part in parts)
    assert sum(part for part in parts if part is not None) == pytest.approx(stored.step_s)
    assert (stored.bubble_s or 0) > 0 or strategy == "ddp"
    assert (stored.optimizer_s or 0) > 0
    assert stored.calibrations == ("matmul-a", "copies-a", "sweep")
    assert stored.model_version == MODEL_VERSION == 3


def test_without_the_bandwidth_of_memory_a_cpu_has_no_step_and_says_what_measures_it(history: History) -> None:
    case = make_case("single", ranks=1)
    add_matmul(history, case, HARDWARE)
    stored = _predict(case, history)
    assert stored.step_s is None
    assert "`observatory run copies " in stored.absent["step_s"]


def test_memory_is_that_of_the_cost_models_whatever_the_history_has() -> None:
    case = make_case("ddp")
    stored = _predict(case, Absent(reason="the store does not answer"))
    peak = case.spec().peak(case)
    assert isinstance(peak, Prediction)
    assert stored.memory_bytes["total"] == peak.total_bytes
    assert stored.memory_bytes["optimizer"] == case.spec().most_states(case).optimizer_bytes
    assert set(stored.memory_bytes) == set(MEMORY_PARTS)
    assert stored.absent["step_s"] == stored.absent["exposed_s"] == "the store does not answer"


def test_what_no_cost_model_covers_is_absent_with_its_reason(history: History) -> None:
    case = make_case("parameter_server")
    stored = _predict(case, history)
    assert stored.step_s is None
    assert "no comparable matmul run" in stored.absent["step_s"]
    assert {*stored.memory_bytes, *stored.absent} >= set(MEMORY_PARTS)


def test_a_probe_is_not_predicted(history: History) -> None:
    assert predict_run(make_probe("matmul"), HARDWARE, history) is None


# The range


def test_the_range_takes_all_rates_at_their_lowest_and_at_their_highest_trial(history: History) -> None:
    case = make_case("single", ranks=1)
    add_matmul(history, case, HARDWARE, rates=(0.9e11, 1e11, 1.1e11))
    add_copies(history, case, HARDWARE)
    stored = _predict(case, history)
    assert stored.step_s is not None
    assert stored.step_low_s is not None
    assert stored.step_high_s is not None
    assert stored.compute_s is not None
    # What is bound by memory has no range, so that the ends differ as the products alone do.
    products_s = (stored.step_high_s - stored.step_s) / (1 / 0.9 - 1)
    assert 0 < products_s < stored.compute_s
    assert stored.step_s - stored.step_low_s == pytest.approx(products_s * (1 - 1 / 1.1))
    assert stored.interval_basis == "range of 3 trials in 1 run of matmul"
    add_copies(history, case, HARDWARE, run="copies-b", rates=(0.9e10, 1e10))
    of_both = "range of 3 trials in 1 run of matmul; range of 3 trials in 2 runs of copies"
    assert _predict(case, history).interval_basis == of_both


def test_single_trials_give_no_range(history: History) -> None:
    case = make_case("single", ranks=1)
    add_matmul(history, case, HARDWARE)
    add_copies(history, case, HARDWARE)
    stored = _predict(case, history)
    assert (stored.step_low_s, stored.step_high_s) == (None, None)
    assert stored.absent["step_low_s"] == "no calibration has more than one trial"


def test_computing_is_compared_with_its_optimizer_which_a_trace_counts_as_computing() -> None:
    for optimizer_s, together_s in ((0.1, 0.4), (None, 0.3)):  # Model version 1 had no optimizer.
        stored = StoredPrediction(model_version=1, predicted_ns=1, step_s=0.5, compute_s=0.3, optimizer_s=optimizer_s)
        computing = next(part for part in errors_of(make_summary(prediction=stored)) if part.name == "computing")
        assert computing.predicted == pytest.approx(together_s)


STEP = estimate(results.RUN_STEP_SECONDS, [0.5])


def test_each_part_has_its_unit_and_the_reason_for_which_nothing_was_predicted() -> None:
    fields = ("step_s", "compute_s", "communication_s", "exposed_s", "optimizer_s", "bubble_s", "total")
    stored = StoredPrediction(model_version=2, predicted_ns=1, absent={field: f"no {field}" for field in fields})
    measured = (
        STEP,
        estimate(results.RUN_TRACED_RATIO, [0.6], part="compute"),
        estimate(results.RUN_TRACED_RATIO, [0.2], part="exposed_communication"),
        estimate(results.RUN_COMMUNICATION_SECONDS, [0.3], account="traced"),
        estimate(results.RUN_COMMUNICATION_SECONDS, [0.9], account="expected"),
        estimate(results.RUN_PHASE_SECONDS, [0.1], phase="optimizer"),
        estimate(results.RUN_MEMORY_ACCOUNT_BYTES, [1000.0], part="total", account="measured"),
    )
    parts = errors_of(make_summary(prediction=stored, estimates=measured))
    assert [(part.name, part.unit, part.measured, part.why_absent) for part in parts] == [
        ("step", "seconds", 0.5, "no step_s"),
        ("computing", "seconds", pytest.approx(0.3), "no compute_s"),
        ("communication", "seconds", 0.3, "no communication_s"),
        ("exposed communication", "seconds", pytest.approx(0.1), "no exposed_s"),
        ("optimizer", "seconds", 0.1, "no optimizer_s"),
        ("memory: total", "bytes", 1000.0, "no total"),
    ]
    assert {part.predicted for part in parts} == {part.error for part in parts} == {None}


@pytest.mark.parametrize(
    ("low_s", "high_s", "is_inside"),
    [(0.5, 0.6, True), (0.4, 0.5, True), (0.51, 0.6, False), (0.4, 0.49, False), (0.4, None, None), (None, 0.6, None)],
)
def test_the_ends_of_a_range_belong_to_it_and_one_end_is_no_range(
    low_s: float | None, high_s: float | None, is_inside: bool | None
) -> None:
    stored = StoredPrediction(model_version=2, predicted_ns=1, step_s=0.5, step_low_s=low_s, step_high_s=high_s)
    (step, *_) = errors_of(make_summary(prediction=stored, estimates=(STEP,)))
    assert (step.low, step.high, step.is_inside) == (low_s, high_s, is_inside)


# When it is stored


class ReadingEngine(FakeEngine):
    """Reads case.json at the start of each trial. predictions: what it had."""

    def __init__(self, breaks: dict[tuple[str, int], FailureCause | BaseException] | None = None) -> None:
        super().__init__(make_machine(), {"ddp": DDP_STEPS_S}, breaks)
        self.predictions: list[StoredPrediction | None] = []

    def run(self, order: TrialOrder, progress: object) -> TrialEnded:
        """As it is then."""
        self.predictions.append(case_file(self.folder(order)).prediction)
        return super().run(order, progress)  # type: ignore[arg-type]


def _measured(engine: ReadingEngine, folder: Path, step_s: float, resumes: Path | None = None) -> Summary:
    engine.runs = folder

    def prediction_of(case: Case, machine: Machine) -> StoredPrediction:
        return StoredPrediction(model_version=1, predicted_ns=1, step_s=step_s)

    measured = measure(
        [CaseOrder(case=DDP, settings=TrialSettings(limit_s=60), resumes=resumes)],
        engine=engine,
        machine=engine.machine(),
        folder=folder,
        prediction_of=prediction_of,
    )
    measured.close()
    (summary,) = measured.summaries
    return summary


def test_the_prediction_is_in_the_run_s_folder_before_its_first_trial(tmp_path: Path) -> None:
    engine = ReadingEngine()
    summary = _measured(engine, tmp_path, 0.3)
    assert [each and each.step_s for each in engine.predictions] == [0.3] * 3
    assert summary.prediction == engine.predictions[0]
    assert load(Path(summary.folder)).prediction == summary.prediction
    assert decode(encode(summary)) == summary


def test_a_resumed_run_keeps_its_first_prediction(tmp_path: Path) -> None:
    broken = FailureCause(kind="agent", rank=None, step=None, text="the node is gone")
    first = _measured(ReadingEngine({("ddp", 1): broken}), tmp_path, 0.3)
    again = _measured(engine := ReadingEngine(), tmp_path, 0.7, resumes=Path(first.folder))
    assert again.trials_done == 3
    assert [each and each.step_s for each in (*engine.predictions, again.prediction)] == [0.3] * 3


def test_a_run_of_an_older_version_has_no_prediction(tmp_path: Path) -> None:
    summary = _measured(ReadingEngine(), tmp_path, 0.3)
    for name in ("case.json", "summary.json"):
        path = Path(summary.folder) / name
        document = json.loads(path.read_text()) if path.exists() else json.loads(encode(summary))
        del document["prediction"]
        path.write_text(json.dumps(document))
    assert load(Path(summary.folder)).prediction is None
    again = _measured(ReadingEngine(), tmp_path, 0.7, resumes=Path(summary.folder))
    assert again.prediction is None


def test_each_block_of_a_session_is_predicted_from_the_history_of_that_moment(tmp_path: Path) -> None:
    night = FakeNight(tmp_path)
    order = CaseOrder(case=DDP, settings=TrialSettings(limit_s=60))
    with night.session() as session:
        with session.measure([order]) as measured:
            (before,) = session.keep(measured).summaries
        history = session.store.history
        assert history is not None
        add_matmul(history, DDP, before.hardware)
        add_copies(history, DDP, before.hardware)
        add_sweep(history, DDP, before.hardware)
        with session.measure([order]) as measured:
            (after,) = session.keep(measured).summaries
        shown = predicted_step(after.case, after.hardware, history)
        assert history.find(before.run).prediction == before.prediction
        assert history.find(after.run).prediction == after.prediction
    assert before.prediction is not None
    assert before.prediction.step_s is None
    assert after.prediction is not None
    assert isinstance(shown, PredictedStep)
    assert after.prediction.step_s == shown.step_s
    assert after.prediction.predicted_ns < after.started_ns + 1e9


# A prediction that fails ends nothing


def _patient(history: History, folder: Path) -> PatientStore:
    return PatientStore(history, runs=folder, url=None, tell=lambda line: None, sleep=lambda seconds: None)


def test_a_cost_model_that_fails_is_a_reason_in_the_prediction(tmp_path: Path, history: History) -> None:
    stored = _patient(history, tmp_path).prediction_of(replace(make_case(), strategy="gone"), make_machine())
    assert stored is not None
    assert stored.step_s is None
    assert "the prediction failed: " in stored.absent["step_s"]
    assert "gone" in stored.absent["total"]


def test_a_store_that_does_not_answer_is_a_reason_in_the_prediction(tmp_path: Path) -> None:
    class FakeGoneHistory(History):
        def runs(self, *words: object, **settings: object) -> tuple[Summary, ...]:
            raise InfrastructureFailed("store: disk I/O error")

    with FakeGoneHistory(f"sqlite:///{tmp_path / 'gone.sqlite'}") as history:
        store = _patient(history, tmp_path)
        stored = store.prediction_of(make_case(), make_machine())
        assert store.failure is not None
    assert stored is not None
    assert stored.absent["step_s"] == "the store does not answer"
    assert stored.memory_bytes["total"] > 0


# What is shown of it


def test_the_stored_step_is_shown_and_not_one_that_is_predicted_later(history: History) -> None:
    run = make_summary(prediction=StoredPrediction(model_version=1, predicted_ns=1, step_s=0.4, step_basis="stored"))
    add_matmul(history, run.case, run.hardware)
    add_copies(history, run.case, run.hardware)
    add_sweep(history, run.case, run.hardware)
    assert predicted_steps([run], history) == {run.run: PredictedStep(step_s=0.4, basis="stored")}
    unpredicted = replace(run, prediction=StoredPrediction(model_version=1, predicted_ns=1))
    assert predicted_steps([unpredicted], history) == {run.run: predicted_step(run.case, run.hardware, history)}
