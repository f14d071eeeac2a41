"""From ranks of known speed to the figures of a run, and to their place in the history."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from bench.errors import InfrastructureFailed
from bench.rank.messages import FailureCause, TrialEnded, TrialOrder, TrialProgress
from bench.session.measure import CaseOrder, CasePlace, TrialSettings, measure
from bench.store.run_dir import summarise
from collectors.metrics import results
from tests.bench.made.examples import SMALL, make_machine
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import CAUSE, DDP, DDP_STEPS_S, SINGLE, SINGLE_STEPS_S, ddp_summary, find, measure_fake


def test_a_runs_step_is_the_slowest_ranks_median_and_warm_up_is_left_out(tmp_path: Path) -> None:
    found = find(ddp_summary(tmp_path), results.RUN_STEP_SECONDS)
    assert found.trials == (0.20, 0.25, 0.21)
    assert found.median == 0.21
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.21 < found.high


def test_rates_count_all_time_of_the_measured_steps_so_that_a_stutter_shows(tmp_path: Path) -> None:
    stutter_s = [[[0.01, 0.01, 0.01, 0.97]]]
    case = replace(SINGLE, trials=1, steps=4)
    (summary,) = measure_fake(tmp_path, FakeEngine(make_machine(), {"single": stutter_s}), case).summaries
    assert find(summary, results.RUN_STEP_SECONDS).median == 0.01
    assert find(summary, results.RUN_MEAN_STEP_SECONDS).median == 0.25
    assert find(summary, results.RUN_TOKENS_PER_SECOND).median == case.shape.tokens / 0.25


def test_rates_follow_from_the_step_by_their_definitions(tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
    tokens = SMALL.batch * SMALL.sequence
    mean_s = 0.7 / 3  # Of rank 1 in trial 0; the other trials have 1.4 / 3 and 0.21.
    assert find(summary, results.RUN_TOKENS_PER_SECOND).median == pytest.approx(tokens / mean_s)
    assert find(summary, results.RUN_TOKENS_PER_SECOND_PER_DEVICE).median == pytest.approx(tokens / mean_s / 2)
    assert find(summary, results.RUN_FLOPS).median == pytest.approx(SMALL.flops_per_step() / mean_s / 2, rel=1e-12)


def test_phases_memory_and_loss_are_joined_over_ranks_as_defined(tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
    assert find(summary, results.RUN_PHASE_SECONDS, phase="backward").trials == pytest.approx((0.7 / 6, 1.4 / 6, 0.105))
    forward = find(summary, results.RUN_PHASE_SECONDS, phase="forward")
    assert forward.trials == pytest.approx((1 + 0.7 / 12, 1 + 1.4 / 12, 1.0525))
    assert find(summary, results.RUN_PEAK_MEMORY_BYTES, account="resident").median == 2e6
    assert find(summary, results.RUN_LOSS).median == 2.5


def test_traced_steps_are_joined_over_ranks_and_are_no_part_of_speed(tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
    shares = {
        part: find(summary, results.RUN_TRACED_RATIO, part=part).median
        for part in ("compute", "communication", "overlap", "exposed_communication", "idle")
    }
    assert shares == pytest.approx(
        {"compute": 0.6, "communication": 0.4, "overlap": 0.2, "exposed_communication": 0.2, "idle": 0.2}
    )
    assert find(summary, results.RUN_OVERLAP_RATIO).median == pytest.approx(0.5)
    assert find(summary, results.RUN_TRACED_STEP_SECONDS).median == 10.0
    assert find(summary, results.RUN_STEP_SECONDS).median == 0.21


def test_the_observers_share_is_the_largest_ranks(tmp_path: Path) -> None:
    assert find(ddp_summary(tmp_path), results.RUN_OBSERVER_RATIO).trials == pytest.approx((0.02, 0.02, 0.02))


def test_expected_traffic_stands_beside_what_was_counted(tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
    expected = find(summary, results.RUN_PAYLOAD_BYTES, collective="all_reduce", axis="data", account="expected")
    counted = find(summary, results.RUN_PAYLOAD_BYTES, collective="all_reduce", axis="data", account="counted")
    assert expected.median == 4 * SMALL.parameters()
    assert counted.median == 1001.0


def test_the_spread_is_the_widest_of_the_trials(tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
    assert summary.step_spread_ratio == max(
        median(abs(step - median(trial[1])) for step in trial[1]) / median(trial[1]) for trial in DDP_STEPS_S
    )


def test_the_effective_batch_is_local_times_ranks_times_parts(tmp_path: Path) -> None:
    case = replace(DDP, trials=1, options={**DDP.options, "accumulate": 2})
    (summary,) = measure_fake(tmp_path, FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), case).summaries
    assert summary.effective_batch == {"local": 1, "data_ranks": 2, "parts": 2, "total": 4}


def test_a_cpu_has_no_mfu_and_the_run_says_why(tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
    assert [estimate for estimate in summary.estimates if estimate.metric == results.RUN_MFU.name] == []
    assert any(note.startswith("MFU is absent: the peak of a CPU is unknown") for note in summary.notes)


def test_one_trial_has_no_interval_and_the_run_says_so(tmp_path: Path) -> None:
    (summary,) = measure_fake(
        tmp_path, FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}), replace(DDP, trials=1)
    ).summaries
    assert find(summary, results.RUN_STEP_SECONDS).low is None
    assert "intervals are absent: one trial has no interval" in summary.notes


def test_trials_of_several_cases_take_turns(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    measure_fake(tmp_path, engine, SINGLE, DDP)
    assert engine.orders == [(name, trial) for trial in range(3) for name in ("single", "ddp")]
    assert not engine.is_stopped  # Another call may measure more.


def test_each_run_names_those_that_took_turns_with_it(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S})
    ddp, single = measure_fake(tmp_path, engine, DDP, SINGLE).summaries
    assert (ddp.in_turn_with, single.in_turn_with) == ((single.run,), (ddp.run,))
    assert ddp_summary(tmp_path / "alone").in_turn_with == ()


def test_turns_can_be_counterbalanced_each_side_at_a_place_of_its_own(tmp_path: Path) -> None:
    """The trials are a b, b a, a b: each side's ranks are those of its own engine, and its machine is kept with it."""
    orders: list[str] = []

    class NamedEngine(FakeEngine):
        def run(self, order: TrialOrder, progress: Callable[[TrialProgress], None]) -> TrialEnded:
            orders.append(f"{self.machine().commit}{order.trial}")
            return super().run(order, progress)

    places = [
        CasePlace(engine=NamedEngine(machine, {"single": SINGLE_STEPS_S}, runs=tmp_path), machine=machine)
        for machine in (replace(make_machine(), commit=commit) for commit in "ab")
    ]
    settings = TrialSettings(limit_s=60)
    measured = measure(
        [CaseOrder(case=SINGLE, settings=settings, place=place) for place in places],
        engine=FakeEngine(make_machine(), {}),
        machine=make_machine(),
        folder=tmp_path,
        is_counterbalanced=True,
    )
    measured.close()
    assert orders == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert [summary.commit for summary in measured.summaries] == ["a", "b"]
    assert all(summary.outcome == "done" for summary in measured.summaries)


def test_a_failed_trial_ends_its_run_and_no_other_and_complete_trials_count(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S, "single": SINGLE_STEPS_S}, {("ddp", 1): CAUSE})
    single, ddp = measure_fake(tmp_path, engine, SINGLE, DDP).summaries
    assert (single.outcome, single.trials_done) == ("done", 3)
    assert (ddp.outcome, ddp.trials_done, ddp.cause) == ("failed", 1, CAUSE)
    assert engine.orders.count(("ddp", 2)) == 0


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, {("ddp", 2): KeyboardInterrupt()})
    measured = measure_fake(tmp_path, engine, DDP)
    assert measured.is_interrupted
    assert (measured.summaries[0].outcome, measured.summaries[0].trials_done) == ("interrupted", 2)


def test_a_lost_agent_is_the_cause_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    engine = FakeEngine(make_machine(), {"ddp": DDP_STEPS_S}, {("ddp", 1): InfrastructureFailed("the agent is gone")})
    (summary,) = measure_fake(tmp_path, engine, DDP).summaries
    assert (summary.outcome, summary.trials_done) == ("failed", 1)
    assert summary.cause == FailureCause(kind="agent", rank=None, step=None, text="the agent is gone")


def test_a_cut_last_line_of_a_log_costs_that_trial_and_is_noted(tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
    log = Path(summary.folder) / "rank1.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    again = summarise(Path(summary.folder), "interrupted", None)
    assert again.trials_done == 2
    assert any(note.startswith("rank1.jsonl: the last line is cut off;") for note in again.notes)


def test_a_loss_that_is_not_finite_in_the_last_step_is_absent_with_its_reason(tmp_path: Path) -> None:
    summary = ddp_summary(tmp_path)
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


def test_every_figure_of_a_run_is_finite_and_inside_its_interval(tmp_path: Path) -> None:
    for estimate in ddp_summary(tmp_path).estimates:
        assert math.isfinite(estimate.median)
        assert estimate.low is None or estimate.high is None or estimate.low <= estimate.median <= estimate.high
