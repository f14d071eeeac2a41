"""From ranks of known speed to the figures of a run, and to their place in the history."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from bench import run as runs
from bench.controller import Conduct, Measured, measure
from bench.engines.messages import Cause
from bench.errors import InfrastructureFailed, Misuse
from bench.judgement.estimate import Estimate
from bench.keeping import adopt, check_baseline, keep
from bench.run import begin, load, summarise
from bench.store.history import History
from bench.summary import Summary
from collectors.catalogue import results
from collectors.metric import Metric
from tests.bench.examples import SMALL, make_machine, small_case
from tests.bench.fake_engine import FakeEngine

# One case on two ranks: rank 1 is the slower in every trial. Medians of it: 0.2, 0.25 and 0.21 s.
DDP_STEPS_S = [
    [[0.10, 0.12, 0.11], [0.20, 0.30, 0.20]],
    [[0.10, 0.12, 0.11], [0.25, 0.25, 0.90]],
    [[0.10, 0.12, 0.11], [0.21, 0.21, 0.21]],
]
SINGLE_STEPS_S = [[[0.15, 0.15, 0.15]], [[0.16, 0.16, 0.16]], [[0.17, 0.17, 0.17]]]
CAUSE = Cause(kind="killed", rank=1, step=2, text="rank 1 was killed by SIGKILL in step 2")
DDP = small_case("ddp", ranks=2, trials=3)
SINGLE = small_case("single", ranks=1, trials=3, shape=replace(SMALL, batch=2))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(f"sqlite:///{tmp_path / 'history.sqlite'}") as opened:
        yield opened


def _measure(folder: Path, engine: FakeEngine, *cases: object) -> Measured:
    measured = measure(
        [(case, None) for case in cases],  # type: ignore[misc]
        engine=engine,
        machine=engine.machine(),
        folder=folder,
        conduct=Conduct(limit_s=60),
        watch=lambda case, trial, steps: None,
    )
    measured.close()
    return measured


def _ddp(folder: Path) -> Summary:
    (summary,) = _measure(folder, FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), DDP).summaries
    return summary


def _find(summary: Summary, metric: Metric, **labels: str) -> Estimate:
    (found,) = [
        estimate for estimate in summary.estimates if estimate.metric == metric.name and estimate.labels == labels
    ]
    return found


def test_a_runs_step_is_the_slowest_ranks_median_and_warm_up_is_left_out(tmp_path: Path) -> None:
    found = _find(_ddp(tmp_path), results.RUN_STEP_SECONDS)
    assert found.trials == (0.20, 0.25, 0.21)
    assert found.median == 0.21
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.21 < found.high


def test_rates_count_all_time_of_the_measured_steps_so_that_a_stutter_shows(tmp_path: Path) -> None:
    stutter_s = [[[0.01, 0.01, 0.01, 0.97]]]
    case = replace(SINGLE, trials=1, steps=4)
    (summary,) = _measure(tmp_path, FakeEngine(make_machine(), {"single": stutter_s}), case).summaries
    assert _find(summary, results.RUN_STEP_SECONDS).median == 0.01
    assert _find(summary, results.RUN_MEAN_STEP_SECONDS).median == 0.25
    assert _find(summary, results.RUN_TOKENS_PER_SECOND).median == case.shape.tokens / 0.25


def test_rates_follow_from_the_step_by_their_definitions(tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    tokens = SMALL.batch * SMALL.sequence
    mean_s = 0.7 / 3  # Of rank 1 in trial 0; the other trials have 1.4 / 3 and 0.21.
    assert _find(summary, results.RUN_TOKENS_PER_SECOND).median == pytest.approx(tokens / mean_s)
    assert _find(summary, results.RUN_TOKENS_PER_SECOND_PER_DEVICE).median == pytest.approx(tokens / mean_s / 2)
    assert _find(summary, results.RUN_FLOPS).median == pytest.approx(SMALL.flops_per_step() / mean_s / 2, rel=1e-12)


def test_phases_memory_and_loss_are_joined_over_ranks_as_defined(tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    assert _find(summary, results.RUN_PHASE_SECONDS, phase="backward").trials == pytest.approx(
        (0.7 / 6, 1.4 / 6, 0.105)
    )
    forward = _find(summary, results.RUN_PHASE_SECONDS, phase="forward")
    assert forward.trials == pytest.approx((1 + 0.7 / 12, 1 + 1.4 / 12, 1.0525))
    assert _find(summary, results.RUN_PEAK_MEMORY_BYTES, account="resident").median == 2e6
    assert _find(summary, results.RUN_LOSS).median == 2.5


def test_traced_steps_are_joined_over_ranks_and_are_no_part_of_speed(tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    shares = {
        part: _find(summary, results.RUN_TRACED_RATIO, part=part).median
        for part in ("compute", "communication", "overlap", "exposed_communication", "idle")
    }
    assert shares == pytest.approx(
        {"compute": 0.6, "communication": 0.4, "overlap": 0.2, "exposed_communication": 0.2, "idle": 0.2}
    )
    assert _find(summary, results.RUN_OVERLAP_RATIO).median == pytest.approx(0.5)
    assert _find(summary, results.RUN_TRACED_STEP_SECONDS).median == 10.0
    assert _find(summary, results.RUN_STEP_SECONDS).median == 0.21


def test_the_observers_share_is_the_largest_ranks(tmp_path: Path) -> None:
    assert _find(_ddp(tmp_path), results.RUN_OBSERVER_RATIO).trials == pytest.approx((0.02, 0.02, 0.02))


def test_expected_traffic_stands_beside_what_was_counted(tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    expected = _find(summary, results.RUN_PAYLOAD_BYTES, collective="all_reduce", account="expected")
    counted = _find(summary, results.RUN_PAYLOAD_BYTES, collective="all_reduce", account="counted")
    assert expected.median == 4 * SMALL.parameters()
    assert counted.median == 1001.0


def test_the_spread_is_the_widest_of_the_trials(tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    assert summary.step_spread_ratio == max(
        median(abs(step - median(trial[1])) for step in trial[1]) / median(trial[1]) for trial in DDP_STEPS_S
    )


def test_the_effective_batch_is_local_times_ranks_times_parts(tmp_path: Path) -> None:
    case = replace(DDP, trials=1, options={**DDP.options, "accumulate": 2})
    (summary,) = _measure(tmp_path, FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), case).summaries
    assert summary.effective_batch == {"local": 1, "data_ranks": 2, "accumulate": 2, "total": 4}


def test_a_cpu_has_no_mfu_and_the_run_says_why(tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    assert [estimate for estimate in summary.estimates if estimate.metric == results.RUN_MFU.name] == []
    assert any(note.startswith("MFU is absent: the peak of a CPU is unknown") for note in summary.notes)


def test_one_trial_has_no_interval_and_the_run_says_so(tmp_path: Path) -> None:
    (summary,) = _measure(tmp_path, FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), replace(DDP, trials=1)).summaries
    assert _find(summary, results.RUN_STEP_SECONDS).low is None
    assert "intervals are absent: one trial has no interval" in summary.notes


def test_trials_of_several_cases_take_turns(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    _measure(tmp_path, engine, SINGLE, DDP)
    assert engine.orders == [(name, trial) for trial in range(3) for name in ("single", "ddp")]
    assert engine.is_stopped


def test_a_failed_trial_ends_its_run_and_no_other_and_complete_trials_count(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S}, {("ddp", 1): CAUSE})
    single, ddp = _measure(tmp_path, engine, SINGLE, DDP).summaries
    assert (single.outcome, single.trials_done) == ("done", 3)
    assert (ddp.outcome, ddp.trials_done, ddp.cause) == ("failed", 1, CAUSE)
    assert engine.orders.count(("ddp", 2)) == 0


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, {("ddp", 2): KeyboardInterrupt()})
    measured = _measure(tmp_path, engine, DDP)
    assert measured.is_interrupted
    assert (measured.summaries[0].outcome, measured.summaries[0].trials_done) == ("interrupted", 2)


def test_a_lost_agent_is_the_cause_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, {("ddp", 1): InfrastructureFailed("the agent is gone")})
    (summary,) = _measure(tmp_path, engine, DDP).summaries
    assert (summary.outcome, summary.trials_done) == ("failed", 1)
    assert summary.cause == Cause(kind="agent", rank=None, step=None, text="the agent is gone")


def test_efficiency_is_read_against_the_baseline_measured_beside_the_run(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    measured = _measure(tmp_path, engine, SINGLE, DDP)
    single, ddp = keep(measured.summaries, engine.machine(), history, told=None).summaries
    assert single.scaling == ()
    (found,) = ddp.scaling
    assert (found.scaling, found.baseline_run) == ("weak", single.run)
    # Tokens per second and rank: 32 tokens in 0.7 / 3 s on 2 ranks of ddp, 16 in 0.16 s of single.
    assert found.ratio.value == pytest.approx((32 / (0.7 / 3) / 2) / (16 / 0.16))
    assert found.ratio.low is not None


def test_efficiency_is_read_against_the_newest_baseline_of_the_history(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    strong = replace(SINGLE, shape=SMALL)
    baselines = _measure(tmp_path, engine, SINGLE, strong).summaries
    keep(baselines, engine.machine(), history, told=None)
    (ddp,) = keep(_measure(tmp_path, engine, DDP).summaries, engine.machine(), history, told=None).summaries
    assert [(found.scaling, found.baseline_run) for found in ddp.scaling] == [
        ("weak", baselines[0].run),
        ("strong", baselines[1].run),
    ]


def test_a_baseline_of_other_hardware_is_not_taken(tmp_path: Path, history: History) -> None:
    other = replace(make_machine(), cpu="another CPU")
    keep(_measure(tmp_path, FakeEngine(other, {"single": SINGLE_STEPS_S}), SINGLE).summaries, other, history, told=None)
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (ddp,) = keep(_measure(tmp_path, engine, DDP).summaries, engine.machine(), history, told=None).summaries
    assert ddp.scaling == ()


def test_a_runs_folder_holds_its_files_each_with_its_schema_version(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (summary,) = keep(_measure(tmp_path, engine, DDP).summaries, engine.machine(), history, told=None).summaries
    folder = Path(summary.folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "case.json",
        "machine.json",
        "rank0.jsonl",
        "rank1.jsonl",
        "summary.json",
    ]
    assert all('"schema_version":' in path.read_text().replace(" ", "") for path in folder.iterdir())
    assert load(folder) == summary


def test_a_folder_whose_runner_died_is_taken_into_the_history_with_its_complete_trials(
    tmp_path: Path, history: History
) -> None:
    (summary,) = _measure(tmp_path / "runs", FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), DDP).summaries
    assert adopt(tmp_path / "runs", history, None) == []
    adopted = history.find(summary.run)
    assert (adopted.outcome, adopted.trials_done) == ("interrupted", 3)
    assert adopted.estimates == summary.estimates
    assert adopt(tmp_path / "runs", history, None) == []


def test_a_folder_that_somebody_works_on_is_left_alone(tmp_path: Path, history: History) -> None:
    run = begin(DDP, make_machine(), tmp_path / "runs")
    try:
        assert adopt(tmp_path / "runs", history, None) == []
        assert history.known() == frozenset()
    finally:
        run.close()


def test_a_broken_folder_is_named_and_does_not_stop_the_others(tmp_path: Path, history: History) -> None:
    (summary,) = _measure(tmp_path / "runs", FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), DDP).summaries
    broken = tmp_path / "runs" / "20200101-000000-broken"
    broken.mkdir()
    (broken / "case.json").write_text("{")
    (problem,) = adopt(tmp_path / "runs", history, None)
    assert str(broken) in problem
    assert history.known() == {summary.run}


def test_a_cut_last_line_of_a_log_costs_that_trial_and_is_noted(tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    log = Path(summary.folder) / "rank1.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    again = summarise(Path(summary.folder), "interrupted", None)
    assert again.trials_done == 2
    assert any(note.startswith("rank1.jsonl: the last line is cut off;") for note in again.notes)


def test_a_loss_that_is_not_finite_in_the_last_step_is_absent_with_its_reason(tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    log = Path(summary.folder) / "rank1.jsonl"
    *lines, last, traced, ended = log.read_text().splitlines()
    assert '"measured"' in last
    log.write_text(
        "\n".join([*lines, last.replace('["observatory_loss_nats",', '["observatory_other_nats",'), traced, ended])
    )
    with log.open("a") as file:
        file.write("\n")
    again = summarise(Path(summary.folder), "done", None)
    assert all(estimate.metric != results.RUN_LOSS.name for estimate in again.estimates)
    assert any(note.startswith("the loss is absent") for note in again.notes)


def test_a_baseline_that_cannot_serve_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"single": SINGLE_STEPS_S}, {("single", 0): CAUSE})
    (failed,) = _measure(tmp_path, engine, SINGLE).summaries
    with pytest.raises(Misuse, match="has no complete trial"):
        check_baseline(DDP, make_machine(), failed)
    (good,) = _measure(tmp_path, FakeEngine(make_machine(), {"single": SINGLE_STEPS_S}), SINGLE).summaries
    check_baseline(DDP, make_machine(), good)
    with pytest.raises(Misuse, match="choose one of this hardware"):
        check_baseline(DDP, replace(make_machine(), cpu="another CPU"), good)


def test_a_run_is_kept_although_its_efficiency_cannot_be_looked_up(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    measured = _measure(tmp_path, engine, DDP)
    history = History(f"sqlite:///{tmp_path / 'history.sqlite'}")  # Never entered: it has no tables.
    kept = keep(measured.summaries, engine.machine(), history, told=None)
    history.close()
    assert kept.failures
    assert load(Path(kept.summaries[0].folder)) == kept.summaries[0]


def test_a_run_meant_for_another_store_is_left_to_it(tmp_path: Path, history: History) -> None:
    run = begin(DDP, make_machine(), tmp_path / "runs", store="postgresql://me:secret@host/name")
    run.close()
    assert "secret" not in (run.folder / "case.json").read_text()
    assert adopt(tmp_path / "runs", history, None) == []
    assert history.known() == frozenset()
    adopt(tmp_path / "runs", history, "postgresql://me:secret@host/name")
    assert history.known() == {run.id}


def test_a_run_in_progress_is_not_taken_for_a_dead_one(tmp_path: Path) -> None:
    run = begin(DDP, make_machine(), tmp_path)
    with pytest.raises(Misuse, match="is still running"):
        load(run.folder)
    run.close()


@pytest.mark.parametrize("name", ["case.json", "machine.json"])
def test_a_file_of_a_newer_version_is_refused_whatever_its_form(name: str, tmp_path: Path) -> None:
    summary = _ddp(tmp_path)
    (Path(summary.folder) / name).write_text('{"schema_version": 99, "of": "another form"}')
    with pytest.raises(Misuse, match=rf"{name}: schema version 99 is newer than 1"):
        summarise(Path(summary.folder), "done", None)


def test_a_folder_without_a_run_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"holds no run: case.json is missing"):
        load(tmp_path)


def test_runs_cannot_be_made_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureFailed, match=r"cannot be written: .*choose another place with --runs"):
        runs.begin(DDP, make_machine(), tmp_path / "file" / "runs")


def test_every_figure_of_a_run_is_finite_and_inside_its_interval(tmp_path: Path) -> None:
    for estimate in _ddp(tmp_path).estimates:
        assert math.isfinite(estimate.median)
        assert estimate.low is None or estimate.high is None or estimate.low <= estimate.median <= estimate.high


def test_what_one_place_refuses_the_other_keeps(tmp_path: Path, history: History) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S})
    (summary,) = _measure(tmp_path, engine, DDP).summaries
    (Path(summary.folder) / "summary.part").mkdir()  # So that summary.json cannot be written.
    kept = keep([summary], engine.machine(), history, told=None)
    (failure,) = kept.failures
    assert str(failure).startswith(f"{summary.folder}/summary.json cannot be written")
    assert history.find(summary.run) == kept.summaries[0]
