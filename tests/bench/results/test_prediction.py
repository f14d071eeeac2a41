"""The efficiency that the cost model expects: one rank's step, and transfers that it cannot hide on a known link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.case import Case
from bench.results.efficiency import Scaling, expected_efficiency
from bench.results.estimate import Estimate, estimate
from collectors.metrics.results import RUN_PHASE_SECONDS, RUN_TOKENS_PER_SECOND
from tests.bench.made.examples import make_case
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link
from workloads.cost_models.interconnect import Interconnect, NetworkLevel, one_level

ALONE = make_case("single", ranks=1, batch=4)


def exposed(ranks: int = 2, batch: int = 8) -> Case:
    """All of its transfer comes after backward."""
    case = make_case("ddp", ranks=ranks, batch=batch)
    return replace(case, options={**case.options, "overlap": False})


def link_of_one_second(case: Case) -> Link:
    """On which the ring of two ranks takes a second: each sends as many bytes as the tensor has."""
    assert case.ranks == 2
    (transfer,) = case.spec().transfers(case)
    return Link(bandwidth_bytes_per_second=transfer.payload_bytes)


def alone(*steps_s: float, case: Case = ALONE) -> list[Estimate]:
    return [
        estimate(RUN_TOKENS_PER_SECOND, [case.shape.tokens / step_s for step_s in steps_s]),
        estimate(RUN_PHASE_SECONDS, [0.3 * step_s for step_s in steps_s], phase="forward"),
        estimate(RUN_PHASE_SECONDS, [0.6 * step_s for step_s in steps_s], phase="backward"),
    ]


def expected(
    case: Case,
    estimates: Sequence[Estimate],
    *,
    base: Case = ALONE,
    scaling: Scaling = "weak",
    link: Link | None = None,
) -> Estimate | Absent:
    link = link or link_of_one_second(exposed())
    interconnect = one_level(link, case.ranks)
    return expected_efficiency(case, base, estimates, interconnect, scaling=scaling, baseline="beside")


def test_as_much_transfer_as_computing_halves_the_efficiency() -> None:
    found = expected(exposed(), alone(1.0))
    assert isinstance(found, Estimate)
    assert found.median == pytest.approx(0.5)
    assert found.labels == {"scaling": "weak", "baseline": "beside"}


def test_in_strong_scaling_half_the_computing_stands_beside_the_same_transfer() -> None:
    base = make_case("single", ranks=1, batch=8)
    found = expected(exposed(), alone(1.0, case=base), base=base, scaling="strong")
    assert isinstance(found, Estimate)
    assert found.median == pytest.approx(0.5 / (0.5 + 1.0))


def test_a_link_without_limit_loses_nothing() -> None:
    found = expected(exposed(), alone(1.0), link=Link(bandwidth_bytes_per_second=1e30))
    assert isinstance(found, Estimate)
    assert found.median == pytest.approx(1.0)


def test_buckets_that_backward_hides_are_not_lost() -> None:
    """k equal buckets of C seconds behind B of backward: max(B + C / k, B / k + C) in place of B."""
    case = make_case("ddp", ranks=2, batch=8)
    case = replace(case, options={**case.options, "bucket_mb": 0.001})
    (transfer,) = case.spec().transfers(case)
    assert transfer.calls > 1
    found = expected(case, alone(10.0))
    assert isinstance(found, Estimate)
    behind_s = max(6.0 + 1.0 / transfer.calls, 6.0 / transfer.calls + 1.0) - 6.0
    assert found.median == pytest.approx(10 / (10 + behind_s))


def test_the_interval_is_that_of_the_one_ranks_trials() -> None:
    found = expected(exposed(), alone(0.9, 1.0, 1.1))
    assert isinstance(found, Estimate)
    assert found.trials == pytest.approx((0.9 / 1.9, 0.5, 1.1 / 2.1))
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.9 / 1.9 < 1.1 / 2.1 < found.high


@pytest.mark.parametrize(
    ("case", "base", "estimates", "reason"),
    [
        (exposed(4, 16), exposed(), alone(1.0), "the baseline has 2 ranks"),
        (exposed(), ALONE, alone(1.0)[:1], "does not record how long forward and backward take"),
    ],
)
def test_what_the_cost_model_cannot_tell_is_absent_with_the_reason(
    case: Case, base: Case, estimates: Sequence[Estimate], reason: str
) -> None:
    found = expected(case, estimates, base=base)
    assert isinstance(found, Absent)
    assert reason in found.reason


def test_a_pipeline_loses_its_bubble_too() -> None:
    """Two stages and four microbatches of equal stages add a quarter of the computing; the rest of the step scales."""
    case = make_case("gpipe", ranks=2, batch=8)
    assert case.options["microbatches"] == 4
    head = 6 * case.shape.width * case.shape.vocabulary * case.shape.tokens / case.shape.flops_per_step()
    assert head < 0.5
    found = expected(case, alone(1.0), link=Link(bandwidth_bytes_per_second=1e30))
    assert isinstance(found, Estimate)
    # The last stage has the head: it computes all the time, but for the fill and drain of the first stage's microbatch.
    first, last = 2 * (1 - head) / 2, 2 * (1 + head) / 2
    assert found.median == pytest.approx(1 / (1 + 0.9 * (last + first / 4 - 1)))


def test_the_level_that_ranks_cross_must_be_known() -> None:
    reason = "nothing was measured across nodes"
    node = NetworkLevel(name="node", ranks=1, link=link_of_one_second(exposed()))
    across = NetworkLevel(name="cluster", ranks=2, link=Absent(reason=reason))
    links = Interconnect(levels=(node, across))
    found = expected_efficiency(exposed(), ALONE, alone(1.0), links, scaling="weak", baseline="beside")
    assert found == Absent(reason=reason)
