"""Stories that textbooks tell of slow runs, made by the laws themselves: the diagnosis tells each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.analysis.diagnose.levers import changed
from bench.analysis.diagnose.observed import Observed
from bench.analysis.diagnose.rule import diagnose, likely_limit
from bench.case import Case
from bench.results.efficiency import scaling_efficiency
from bench.results.estimate import estimate
from collectors.metrics import results
from tests.bench.made.diagnosed import case_of, observed_of, pipelined, predicted
from tests.bench.made.scaled import SPREAD, Made
from workloads.cost_models.communication import Link


def _by_the_law(case: Case, compute_s: float, link: Link, base: Case, base_compute_s: float) -> Observed:
    """A run that takes as long as the law says, with its efficiency against a base that does so, too."""
    step, before = predicted(case, compute_s, link), predicted(base, base_compute_s, link)
    made = Made(step_s=step.step_s, compute_s=compute_s, exposed_s=step.exposed_s)
    rates = [
        [one.shape.tokens / (time.step_s * factor) for factor in SPREAD] for one, time in ((case, step), (base, before))
    ]
    efficiency = scaling_efficiency(case, rates[0], base, rates[1], "the-base", is_beside=True)
    return observed_of(case, made, link=link, scaling=(efficiency,))


def test_four_ranks_that_are_slower_than_two_are_bound_by_communication() -> None:
    """Strong scaling over a link of high latency: each rank computes half as long, and many buckets take thrice."""
    link = Link(bandwidth_bytes_per_second=100e6, latency_s=4e-3)
    two, four = (case_of(ranks=ranks, options={"bucket_mb": 0.1}) for ranks in (2, 4))
    assert predicted(four, 0.1, link).step_s > 2 * predicted(two, 0.2, link).step_s
    found = diagnose(_by_the_law(four, 0.1, link, two, 0.2))
    assert (found.limit.kind, found.is_sure) == ("exposed_communication", True)
    assert "as the model predicts for this setup" in found.reason
    (speed_up,) = [line for line in found.facts if line.startswith("speed-up")]
    assert speed_up.startswith("speed-up 0.5 of 2 against 2 ranks (strong scaling, the-base): slower than with fewer")
    # Larger buckets pay the latency less often.
    assert any(float(lever.settings.get("bucket_mb", 0)) > 0.1 for lever in found.limit.levers)


def test_a_pipeline_with_one_block_pegged_is_1_2_times_as_fast_as_one_rank_and_no_cut_helps() -> None:
    case = case_of("gpipe", options={"microbatches": 16})
    found = diagnose(pipelined(case, [1.0, 1.0, 1.0, 13.9]))
    assert (found.limit.kind, found.is_sure) == ("imbalance", True)
    evidence = "\n".join(found.limit.evidence)
    assert "stage 3 on pipeline rank 3 is the slowest" in evidence
    assert "its 4 ranks are 1.2 times as fast as one, and no other cut of its blocks" in evidence
    # The same by hand: 16 microbatches of 16.9 s, in the last stage's 16 x 13.9 s after 3 stages of 1 s.
    assert pytest.approx(1.2, abs=0.01) == 16 * 16.9 / (16 * 13.9 + 3)


def test_a_six_fold_speed_up_on_eight_ranks_is_capped_by_what_two_levers_narrow() -> None:
    """Weak scaling: one bucket holds all gradients, and leaves when backward has ended."""
    link = Link(bandwidth_bytes_per_second=64e6, latency_s=1e-4)
    one, eight = case_of(ranks=1, batch=2), case_of(ranks=8)
    found = diagnose(_by_the_law(eight, 0.3, link, one, 0.3))
    assert found.limit.kind == "exposed_communication"
    (speed_up,) = [line for line in found.facts if line.startswith("speed-up")]
    assert speed_up.startswith("speed-up 6.0 of 8 against 1 rank (weak scaling, the-base); without exposed")
    assert speed_up.endswith("at most 8.0")
    first, second = found.limit.levers[:2]
    assert {*first.settings} == {"bucket_mb"}
    assert {*second.settings} == {"compress"}
    now_s = predicted(eight, 0.3, link).step_s
    for lever in (first, second):
        narrowed = predicted(changed(eight, lever.settings), 0.3, link)
        assert narrowed.step_s < 0.95 * now_s
        assert lever.expected == pytest.approx(narrowed.exposed_s / now_s, rel=0.02)


def test_gpus_whose_use_is_a_saw_tooth_wait_for_data() -> None:
    """All ranks stop between steps at once: nothing runs, and no collective waits."""
    case = replace(case_of(), device="cuda", backend="nccl")
    made = Made(step_s=0.2, compute_s=0.08, exposed_s=0.01, data_s=0.11)
    waits = estimate(results.RUN_DATA_WAIT_SECONDS, [0.19 * factor for factor in SPREAD])
    found = diagnose(observed_of(case, made, waits, link=Link(bandwidth_bytes_per_second=1e11)))
    assert (found.limit.kind, found.is_sure) == ("input", True)
    assert "the host waits 190 ms for a batch, 95 % of a step" in found.limit.evidence
    assert likely_limit(found) == "input 55 % of the step, model predicts 0 %"
