"""On a slow link, ddp hides as much communication as the law says; it would not if its hooks waited."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from tests.slow.ranks.boxed_ranks import run_ranks
from tests.slow.ranks.sleeping_rank import Measured, SleepingOrder, Steps, Variant, ddp_setup
from tests.support.netbox import netbox
from workloads.cost_models.communication import Link, wire_bytes
from workloads.cost_models.interconnect import one_level
from workloads.cost_models.step_time import ComputeTime, StepTime, step_time
from workloads.registry import spec_of

pytestmark = pytest.mark.alone

RANKS = 2
RATE_MBIT = 200
TOLERANCE_RATIO = 0.15
HIDDEN: Variant = "overlap"
LESS_HIDDEN: Variant = "large_buckets"
NOT_HIDDEN: Variant = "after_backward"
WAITING: Variant = "waiting_hook"

# Backward of a block: all gradients take a third of a second, so that of 8 blocks takes less, or more.
SLEEPS_S = {"communication lasts longer": 0.025, "computation lasts longer": 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the ranks of one box measured, by rank."""

    ranks: tuple[Measured, ...]

    def law(self, variant: Variant) -> StepTime:
        """What theory expects: of the link, one all_reduce is known; of the computing, what it takes alone."""
        first = self.ranks[0]
        [transfer] = spec_of("ddp").transfers(ddp_setup(RANKS, variant))
        alone = ComputeTime(
            forward_s=first.alone.forward_s,
            backward_s=first.alone.backward_s,
            optimizer_s=first.alone.optimizer_s,
        )
        sent_bytes = wire_bytes(transfer, RANKS, "gloo")
        return step_time(
            alone,
            [transfer],
            axes={"data": RANKS},
            interconnect=one_level(Link(bandwidth_bytes_per_second=sent_bytes / first.all_reduce_s), RANKS),
            backend="gloo",
        )

    def steps(self, variant: Variant) -> list[Steps]:
        return [rank.variants[variant] for rank in self.ranks]

    def step_to_law(self, variant: Variant, law: Variant) -> list[float]:
        """Each rank's step, as a ratio of what the law expects of a variant."""
        return [steps.step_s / self.law(law).step_s for steps in self.steps(variant)]


@pytest.fixture(scope="module", params=list(SLEEPS_S.values()), ids=list(SLEEPS_S))
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """All variants in one box, one after another."""
    with netbox(nodes=RANKS, rate_mbit=RATE_MBIT) as box:
        answered = run_ranks(
            box,
            "tests.slow.ranks.sleeping_rank",
            tmp_path_factory.mktemp("ranks"),
            lambda order: SleepingOrder(
                rank=order.rank,
                ranks=order.ranks,
                store_address=order.store_address,
                answer=order.answer,
                sleep_s=request.param,
                variants=(HIDDEN, LESS_HIDDEN, NOT_HIDDEN, WAITING),
            ),
        )
    return Answers(ranks=tuple(msgspec.json.decode(answer, type=Measured) for answer in answered))


@pytest.mark.parametrize("variant", [HIDDEN, LESS_HIDDEN, NOT_HIDDEN])
def test_a_step_takes_as_long_as_the_law_says(answers: Answers, variant: Variant) -> None:
    for ratio in answers.step_to_law(variant, variant):
        assert ratio == pytest.approx(1, rel=TOLERANCE_RATIO)


@pytest.mark.parametrize("variant", [HIDDEN, LESS_HIDDEN])
def test_the_trace_shows_as_much_hidden_as_the_law_says(answers: Answers, variant: Variant) -> None:
    for steps in answers.steps(variant):
        assert steps.traced_overlap_ratio == pytest.approx(answers.law(variant).hidden_ratio, rel=TOLERANCE_RATIO)


def test_backward_grows_by_what_the_law_leaves_exposed(answers: Answers) -> None:
    law = answers.law(HIDDEN)
    for rank, steps in zip(answers.ranks, answers.steps(HIDDEN), strict=True):
        hidden_ratio = 1 - (steps.backward_s - rank.alone.backward_s) / law.communication_s
        assert hidden_ratio == pytest.approx(law.hidden_ratio, rel=TOLERANCE_RATIO)


def test_without_overlap_the_trace_shows_nothing_hidden(answers: Answers) -> None:
    assert answers.law(NOT_HIDDEN).hidden_ratio == 0
    for steps in answers.steps(NOT_HIDDEN):
        assert steps.traced_overlap_ratio == pytest.approx(0, abs=0.02)


def test_hooks_that_wait_miss_the_law_of_overlap(answers: Answers) -> None:
    for ratio in answers.step_to_law(WAITING, HIDDEN):
        assert ratio > 1 + TOLERANCE_RATIO
    for steps in answers.steps(WAITING):
        assert steps.traced_overlap_ratio == pytest.approx(0, abs=0.02)
