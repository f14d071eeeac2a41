"""Where the time of a slower step went, kernel by kernel where there are traces, and the rank that stands out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.gate.cause.likely import likely, time_words
from bench.gate.cause.standout import Standout, find_standout
from bench.gate.cause.where import StepChange, TraceChange, step_change, trace_change
from bench.results.estimate import estimate_share
from bench.results.timelines import save_timeline
from bench.store.summary import Summary
from collectors.metrics.results import RUN_STRAGGLER_RATIO
from tests.bench.made.examples import make_case, make_probe, make_summary
from tests.bench.made.scaled import Made, made_estimates
from tests.bench.made.windows import STEP_NS, made_windows

CASE = make_case("ddp", 2)
GOOD = Made(step_s=0.1, compute_s=0.08, exposed_s=0.01, waiting_s=0.004, idle_s=0.006)


def _summary(made: Made, *, is_traced: bool = True, **changes: Any) -> Summary:
    return make_summary(case=CASE, estimates=tuple(made_estimates(CASE, made, is_traced=is_traced)), **changes)


def _step(good: Summary, bad: Summary) -> StepChange:
    found = step_change([good], [bad])
    assert isinstance(found, StepChange)
    return found


def test_the_part_that_grew_is_the_main_one_and_the_parts_add_up() -> None:
    found = _step(_summary(GOOD), _summary(replace(GOOD, step_s=0.12, exposed_s=0.03)))
    assert found.main is not None
    assert found.main.name == "exposed communication"
    assert found.main.change_s == pytest.approx(0.02, abs=0.002)
    assert found.step.change_s == pytest.approx(0.02)
    assert sum(one.change_s for one in found.parts) == pytest.approx(found.step.change_s)
    assert time_words(found).startswith("exposed communication +20.0 ms of +20.0 ms [")


def test_a_part_that_shrank_explains_no_growth() -> None:
    found = _step(_summary(GOOD), _summary(replace(GOOD, step_s=0.115, compute_s=0.1, exposed_s=0.005)))
    assert found.main is not None
    assert found.main.name == "compute"


def test_an_improvement_is_divided_alike() -> None:
    found = _step(_summary(replace(GOOD, step_s=0.12, exposed_s=0.03)), _summary(GOOD))
    assert found.main is not None
    assert found.main.name == "exposed communication"
    assert found.main.change_s < 0


def test_a_small_part_explains_no_large_change_though_it_grew_beyond_doubt() -> None:
    found = _step(_summary(GOOD), _summary(replace(GOOD, step_s=0.14, compute_s=0.09)))
    assert "compute" in {one.name for one in found.parts if one.is_shown}
    assert found.main is None


def test_nights_before_and_reruns_add_their_trials() -> None:
    slow = replace(GOOD, step_s=0.12, exposed_s=0.03)
    alone = _step(_summary(GOOD), _summary(slow))
    pooled = step_change([_summary(GOOD)] * 3, [_summary(slow)] * 2)
    assert isinstance(pooled, StepChange)
    assert (alone.good_trials, alone.bad_trials, pooled.good_trials, pooled.bad_trials) == (3, 3, 9, 6)
    assert pooled.step.change_s == pytest.approx(alone.step.change_s)
    widths = [(one.step.high_s or 0) - (one.step.low_s or 0) for one in (alone, pooled)]
    assert widths[1] < widths[0]


def test_a_night_that_tells_less_adds_no_trials() -> None:
    untraced = _summary(GOOD, is_traced=False)
    found = step_change([_summary(GOOD), untraced], [_summary(replace(GOOD, step_s=0.12, exposed_s=0.03))])
    assert isinstance(found, StepChange)
    assert (found.good_trials, found.bad_trials) == (3, 3)
    assert found.main is not None


def test_noise_is_no_main_part() -> None:
    found = _step(_summary(GOOD), _summary(replace(GOOD, step_s=0.1005, compute_s=0.0805)))
    assert found.main is None
    assert time_words(found).endswith("no part stands out")


def test_without_traces_the_parts_are_unknown_and_the_step_is_told() -> None:
    found = _step(_summary(GOOD, is_traced=False), _summary(replace(GOOD, step_s=0.12), is_traced=False))
    assert found.main is None
    assert "compute" in found.absent
    assert time_words(found).endswith("of unknown parts, as no step was traced")
    assert likely((), found, onset_ns=0).line.endswith("nothing that is recorded changed")


def test_a_probe_has_no_parts() -> None:
    probe = make_summary(case=make_probe())
    assert step_change([probe], [probe]) == "a probe has no steps"


def test_a_run_without_throughput_says_so() -> None:
    assert step_change([_summary(GOOD)], [make_summary(case=CASE, estimates=())]) == f"{CASE.title} has no throughput"


# Traces


def _windows(folder: Path, late_ns: int, ranks: int = 2) -> Path:
    for timeline in made_windows([(1, late_ns), (1, late_ns)], ranks=ranks, step_ns=STEP_NS + late_ns):
        save_timeline(timeline, folder, 0)
    return folder


def test_traces_tell_which_kernels_changed(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    found = trace_change(_windows(tmp_path / "good", 0), _windows(tmp_path / "bad", 200_000))
    assert isinstance(found, TraceChange)
    assert found.step_s == pytest.approx(
        200e-6 * 2 / 3, rel=0.5
    )  # Of two steps with the change in them, and one before.
    assert {one.name for one in found.kernels} == {"gemm", "ncclDevKernel_AllReduce"}
    (collective,) = found.collectives
    assert (collective.part, collective.seen) == ("exposed_communication", "both")
    assert collective.name.startswith("all_reduce ")
    assert found.notes == ()


def test_ranks_that_one_side_lacks_are_left_out_and_told(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    found = trace_change(_windows(tmp_path / "good", 0), _windows(tmp_path / "bad", 200_000, ranks=3))
    assert isinstance(found, TraceChange)
    assert found.notes == ("this difference leaves out the traces of 1 more rank",)


def test_what_is_missing_for_a_difference_of_traces_is_told(tmp_path: Path) -> None:
    folder, empty = tmp_path / "bad", tmp_path / "empty"
    for one in (folder, empty):
        one.mkdir()
    _windows(folder, 0)
    assert trace_change(None, folder) == "the folder of the good run is gone, and its traces with it"
    assert trace_change(folder, None) == "the folder of the bad run is gone, and its traces with it"
    assert trace_change(empty, folder) == "the good run has no trace; set trace_steps = 3 in the suite"
    attach = "`observatory watch --attach llama-sft` traces a job while it runs"
    assert trace_change(empty, folder, watched="llama-sft") == f"the good run has no trace; {attach}"


def test_a_broken_trace_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    _windows(folder, 0)
    other = tmp_path / "good"
    (other / "trial0").mkdir(parents=True)
    (other / "trial0" / "rank0.timeline.npz").write_bytes(b"nothing")
    found = trace_change(other, folder)
    assert isinstance(found, str)
    assert found.startswith("the traces cannot be compared: ")


# The rank that stands out


def _straggling(rank: str, note: str = "") -> Summary:
    found = estimate_share(RUN_STRAGGLER_RATIO, [0.2, 0.21, 0.22], rank=rank, cause="compute")
    return make_summary(case=CASE, estimates=(found,), notes=(note,) if note else ())


def test_a_rank_that_stands_out_now_and_did_not_before_is_told() -> None:
    note = "rank 5 on node7 holds the others up by compute (gemm): it has 80 % of the lateness in traced steps"
    found = find_standout(make_summary(case=CASE), _straggling("5", note))
    assert isinstance(found, Standout)
    assert (found.rank, found.cause, found.cost_before_ratio) == ("5", "compute", None)
    assert found.text == f"{note}; it did not before"


def test_a_rank_that_stood_out_before_is_told_as_such() -> None:
    found = find_standout(_straggling("1"), _straggling("1"))
    assert isinstance(found, Standout)
    assert found.cost_before_ratio == pytest.approx(0.21)
    assert found.text == "rank 1 holds the others up by compute; it did before"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (make_summary(case=CASE, notes=("no straggler: rank 1 causes 20 %",)), "no straggler: rank 1 causes 20 %"),
        (make_summary(case=CASE, notes=("straggler: likely rank 1 (90 %)",)), "straggler: likely rank 1 (90 %)"),
        (make_summary(case=make_case("single", 1)), "a lone rank has no peers"),
        (
            make_summary(case=CASE, notes=()),
            "which rank stands out is unknown: no step was traced; set trace_steps = 3 in the suite",
        ),
        (_summary(GOOD, notes=()), "which rank stands out is unknown: the windows of its ranks were not joined"),
    ],
)
def test_without_a_straggler_the_reason_is_told(bad: Summary, why: str) -> None:
    assert find_standout(None, bad) == why
