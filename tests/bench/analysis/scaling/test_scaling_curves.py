"""Which cases of a suite run make a curve, which of weak and which of strong scaling, and what each point has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.analysis.scaling.curves import ScalingCurve, curves_of, not_measured
from bench.analysis.scaling.laws import NoScalingFit, ScalingFit
from bench.results.efficiency import Loss
from bench.store.summary import Summary
from tests.bench.made.examples import make_case, make_probe
from tests.bench.made.scaled import MadeEnd, ended, scaled_run, strong_runs, weak_runs, with_baseline


def _one(*runs: Summary) -> ScalingCurve:
    (curve,) = curves_of(ended(*runs))
    return curve


def test_weak_efficiency_is_the_base_step_over_the_step() -> None:
    curve = _one(*weak_runs())
    assert (curve.name, curve.scaling, curve.base.ranks) == ("weak", "weak", 1)
    efficiencies = [point.efficiency.value for point in curve.points if point.efficiency is not None]
    assert efficiencies == pytest.approx([100 / 110, 100 / 120])
    assert [point.ideal_speed_up for point in curve.points] == [1, 2, 4]
    speed_ups = [point.speed_up.value for point in curve.points if point.speed_up is not None]
    assert speed_ups == pytest.approx([200 / 110, 400 / 120])


def test_strong_efficiency_counts_the_ranks() -> None:
    curve = _one(*strong_runs())
    assert curve.scaling == "strong"
    efficiencies = [point.efficiency.value for point in curve.points if point.efficiency is not None]
    assert efficiencies == pytest.approx([1.0 / (0.55 * 2), 1.0 / (0.325 * 4)])


def test_the_law_of_a_made_curve_is_found_again() -> None:
    amdahl, usl = _one(*strong_runs()).fits
    assert isinstance(amdahl, ScalingFit)
    assert amdahl.parameters["serial_fraction"].value == pytest.approx(0.1, rel=1e-3)
    assert amdahl.most_speed_up.value == pytest.approx(10.0, rel=1e-3)
    assert isinstance(usl, ScalingFit)
    assert [one.law for one in _one(*weak_runs()).fits] == ["gustafson", "usl"]


def test_what_was_lost_is_told_of_each_point_but_the_base() -> None:
    base, second, _ = _one(*weak_runs()).points
    assert base.loss is None
    assert isinstance(second.loss, Loss)
    lost_s = {part.name: part.lost_s for part in second.loss.parts}
    assert lost_s.pop("exposed_communication") == pytest.approx(0.010)
    assert lost_s == pytest.approx(dict.fromkeys(lost_s, 0.0), abs=1e-9)


def test_intervals_come_from_the_trials() -> None:
    _, second, _ = _one(*weak_runs()).points
    assert second.efficiency is not None
    assert second.efficiency.low is not None
    assert second.efficiency.low < second.efficiency.value


def test_weak_and_strong_cases_of_one_strategy_are_two_curves() -> None:
    weak, strong = curves_of(ended(*weak_runs(), *strong_runs()))
    assert (weak.name, weak.scaling, len(weak.points)) == ("weak", "weak", 3)
    assert (strong.name, strong.scaling, len(strong.points)) == ("strong", "strong", 3)


def test_a_case_of_both_scalings_stands_on_both_curves() -> None:
    """16 sequences on 4 ranks are 4 a rank, and as many as on one rank."""
    lone = [scaled_run(f"more[ranks={ranks}]", make_case(ranks=ranks, batch=16), 0.4 / ranks) for ranks in (1, 2)]
    weak, strong = curves_of(ended(*weak_runs(), *lone))
    assert [point.name for point in weak.points] == ["weak[ranks=1]", "weak[ranks=2]", "weak[ranks=4]"]
    assert (strong.scaling, strong.name) == ("strong", "more and weak")
    assert [point.name for point in strong.points] == ["more[ranks=1]", "more[ranks=2]", "weak[ranks=4]"]


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"threads": 2},
        {"trace_steps": 5},
        {"options": {**make_case().options, "bucket_mb": 1}},
    ],
)
def test_cases_that_differ_in_anything_else_are_another_curve(changes: dict[str, object]) -> None:
    others = [replace(run, run=f"other-{run.run}") for run in weak_runs(**changes)]
    found = curves_of(ended(*weak_runs(), *others))
    assert [len(curve.points) for curve in found] == [3, 3]
    assert {point.name.startswith("other-") for point in found[0].points} == {False}


def test_cases_on_other_hardware_are_another_curve() -> None:
    one, two, four = weak_runs()
    assert len(_one(one, two, replace(four, hardware="another CPU, 2 cores")).points) == 2


def test_accumulation_and_nodes_may_change_along_a_curve() -> None:
    one, two, four = strong_runs()
    case = replace(four.case, nodes=2, options={**four.case.options, "accumulate": 2})
    assert len(_one(one, two, replace(four, case=case)).points) == 3


def test_of_two_cases_with_the_same_ranks_that_of_the_larger_table_stands_on_the_curve() -> None:
    """Both have 64 sequences on 4 ranks: the other one accumulates, as no two cases of a suite are the same."""
    other = make_case(ranks=4, batch=64, options={**make_case().options, "accumulate": 2})
    curve = _one(scaled_run("weak[ranks=4]", other, 0.5), *strong_runs())
    assert [point.name for point in curve.points] == ["strong[ranks=1]", "strong[ranks=2]", "strong[ranks=4]"]


def test_cases_of_one_number_of_ranks_are_no_curve() -> None:
    runs = [scaled_run(name, make_case(batch=batch), 0.1) for name, batch in (("a", 8), ("b", 16))]
    assert curves_of(ended(*runs)) == ()
    assert curves_of(ended(scaled_run("lone", make_case(), 0.1))) == ()


def test_batches_that_fit_no_scaling_are_no_curve() -> None:
    runs = [scaled_run(f"c[ranks={ranks}]", make_case(ranks=ranks, batch=b), 0.1) for ranks, b in ((1, 4), (2, 12))]
    assert curves_of(ended(*runs)) == ()


def test_probes_are_no_curve() -> None:
    runs = [scaled_run("a", make_case(), 0.1)] + [
        replace(scaled_run(f"p{ranks}", make_case(), 0.1), case=make_probe(ranks=ranks)) for ranks in (2, 4)
    ]
    assert curves_of(ended(*runs)) == ()


def test_names_keep_what_all_cases_share() -> None:
    runs = [replace(run, run=run.run.replace("]", ",precision=fp32]").replace("weak[", "ddp[")) for run in weak_runs()]
    assert _one(*runs).name == "ddp[precision=fp32]"


# Points that are not there


def test_a_case_that_failed_is_named_and_the_others_stay() -> None:
    one, two, four = weak_runs()
    failed = MadeEnd(name="weak[ranks=2]", outcome="failed", reason="rank 1 was killed", summary=two)
    (curve,) = curves_of([*ended(one), failed, *ended(four)])
    assert [point.ranks for point in curve.points] == [1, 4]
    assert curve.left_out == ("weak[ranks=2]: failed: rank 1 was killed",)
    assert isinstance(curve.fits[1], NoScalingFit)


def test_a_case_that_never_ran_is_named_where_its_table_makes_a_curve() -> None:
    skipped = MadeEnd(name="weak[ranks=8]", outcome="skipped", reason="it needs 8 GPUs")
    other = MadeEnd(name="strange[ranks=8]", outcome="skipped", reason="it needs 8 GPUs")
    (curve,) = curves_of([*ended(*weak_runs()), skipped, other, MadeEnd(name="weak[ranks=16]", outcome=None)])
    assert curve.left_out == ("weak[ranks=8]: skipped: it needs 8 GPUs", "weak[ranks=16]: did not run")
    assert len(not_measured([skipped, other, *ended(*weak_runs())])) == 2


def test_where_the_fewest_ranks_failed_the_next_are_the_base() -> None:
    one, two, four = weak_runs()
    (curve,) = curves_of([MadeEnd(name=one.run, outcome="timed_out", reason="slow", summary=one), *ended(two, four)])
    assert curve.base.ranks == 2
    assert curve.left_out == ("weak[ranks=1]: timed out: slow",)


def test_a_fire_drill_is_no_point_and_no_failure() -> None:
    one, two, four = weak_runs()
    drill = MadeEnd(name="drill", outcome="done", summary=replace(two, outcome="failed"))
    (curve,) = curves_of([*ended(one, four), drill])
    assert [point.ranks for point in curve.points] == [1, 4]
    assert curve.left_out == ()


# Bases of another strategy


def test_a_baseline_of_another_strategy_that_the_suite_declares_is_the_base() -> None:
    _, two, four = weak_runs()
    single = scaled_run("single", make_case("single", 1, 4), 0.095)
    curve = _one(single, with_baseline(two, single), with_baseline(four, single))
    assert [point.name for point in curve.points] == ["single", "weak[ranks=2]", "weak[ranks=4]"]
    assert curve.notes == ("the base is single, single on 1, as the suite declares",)
    efficiency = curve.points[2].efficiency
    assert efficiency is not None
    assert efficiency.value == pytest.approx(95 / 120)


def test_points_of_several_commits_are_told() -> None:
    one, two, four = weak_runs()
    curve = _one(replace(one, commit="a" * 40), replace(two, commit="b" * 40), replace(four, commit="b" * 40))
    assert curve.notes == (f"its cases were measured by several commits: {'a' * 12}, {'b' * 12}",)
