"""Which baseline is one, for which scaling, and what efficiency it gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.case import one_rank_baseline
from bench.errors import Misuse
from bench.results.efficiency import Scaling, scaling_between, scaling_efficiency
from tests.bench.made.examples import make_case


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_our_own_baseline_is_recognised(scaling: Scaling) -> None:
    case = make_case("ddp", ranks=4, batch=16)
    baseline = one_rank_baseline(case, scaling)
    assert baseline is not None
    assert scaling_between(case, baseline) == scaling


def test_a_baseline_of_several_ranks_scales_by_their_number() -> None:
    assert scaling_between(make_case(ranks=8, batch=32), make_case(ranks=2, batch=8)) == "weak"
    assert scaling_between(make_case(ranks=8, batch=32), make_case(ranks=2, batch=32)) == "strong"


def test_perfect_scaling_is_one() -> None:
    case, baseline = make_case(ranks=4, batch=16), make_case("single", ranks=1, batch=4)
    found = scaling_efficiency(case, (396.0, 400.0, 404.0), baseline, (99.0, 100.0, 101.0), baseline_run="run-0")
    assert (found.scaling, found.baseline_run, found.baseline_ranks) == ("weak", "run-0", 1)
    assert found.ratio.value == 1.0
    assert found.ratio.low is not None
    assert found.ratio.low < 1.0


def test_a_baseline_of_several_ranks_counts_for_each_of_them() -> None:
    found = scaling_efficiency(make_case(ranks=8, batch=32), (300.0,), make_case(ranks=2), (100.0,), baseline_run="b")
    assert found.ratio.value == 0.75
    assert found.baseline_ranks == 2


def test_another_batch_is_refused_with_those_that_fit() -> None:
    with pytest.raises(Misuse, match=r"batch 5, which is neither .* it may be 4 \(weak\) or 16 \(strong\)"):
        scaling_between(make_case(ranks=4, batch=16), make_case("single", ranks=1, batch=5))


def test_a_baseline_with_as_many_ranks_is_refused() -> None:
    with pytest.raises(Misuse, match="does not have fewer ranks than the run, which has 2"):
        scaling_between(make_case(ranks=2), make_case(ranks=2))


def test_another_workload_is_refused_with_what_differs() -> None:
    case = make_case(ranks=4, batch=16)
    baseline = make_case("single", ranks=1, batch=16)
    other = replace(
        baseline,
        model=replace(baseline.shape, layers=5),
        precision="bf16",
        threads=2,
        options={**baseline.options, "checkpoint": "full"},
    )
    with pytest.raises(Misuse) as refused:
        scaling_between(case, other)
    for part in ("layers is 5, the run's is 2", "precision is bf16", "threads is 2", "option checkpoint is full"):
        assert part in str(refused.value)


def test_accumulation_may_differ_since_it_only_says_how_a_batch_is_carried_out() -> None:
    baseline = make_case("single", ranks=1, batch=16)
    baseline = replace(baseline, options={**baseline.options, "accumulate": 4})
    assert scaling_between(make_case(ranks=4, batch=16), baseline) == "strong"


def test_a_baseline_of_before_an_option_has_its_default() -> None:
    case, single = make_case(ranks=4, batch=16), make_case("single", ranks=1, batch=4)
    old = replace(single, options={name: value for name, value in single.options.items() if name != "attention"})
    assert scaling_between(case, old) == "weak"
    pinned = replace(case, options={**case.options, "attention": "math"})
    with pytest.raises(Misuse, match="option attention is auto, the run's is math"):
        scaling_between(pinned, old)
