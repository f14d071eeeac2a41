"""On slow links, a ring hides as much communication behind attention as the law says, whatever the links' rate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

import msgspec
import pytest

from tests.slow.ranks.boxed_ranks import run_ranks
from tests.slow.ranks.ring_rank import Measured, Passes, RingOrder
from tests.support.netbox import netbox
from tests.workloads.context_parallel.ring_time import RingTime, backward_hops, forward_hops, ring_time

pytestmark = pytest.mark.alone

RANKS = 3
ATTENTION_S = 0.7
TOLERANCE_RATIO = 0.15

# A block of 4 MiB takes half as long as attention to it on the first link, and longer on the second; in backward its
# gradients come with it. Sums and copies of a few milliseconds, which the law leaves out, count for little.
RATES_MBIT = (100.0, 40.0)

Pass = Literal["forward", "backward"]
EACH_PASS = pytest.mark.parametrize("name", ["forward", "backward"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the ranks of one box measured, by rank."""

    ranks: tuple[Measured, ...]

    def law(self, name: Pass, *, is_overlapped: bool) -> RingTime:
        """What theory expects of each rank: of the links, the time of one block is known."""
        attention_s = [[ATTENTION_S] * RANKS] * RANKS
        block_s = statistics.median(rank.block_s for rank in self.ranks)
        hops = (
            forward_hops(attention_s, block_s=block_s)
            if name == "forward"
            else backward_hops(attention_s, block_s=block_s, gradients_s=block_s)
        )
        return ring_time(hops, is_overlapped=is_overlapped)[0]


def pass_s(passes: Passes, name: Pass) -> float:
    return passes.forward_s if name == "forward" else passes.backward_s


@pytest.fixture(scope="module", params=RATES_MBIT, ids=lambda rate: f"{rate:.0f} mbit")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """All measurements in one box, one after another."""
    with netbox(nodes=RANKS, rate_mbit=request.param) as box:
        answered = run_ranks(
            box,
            "tests.slow.ranks.ring_rank",
            tmp_path_factory.mktemp("ranks"),
            lambda order: RingOrder(
                rank=order.rank,
                ranks=order.ranks,
                store_address=order.store_address,
                answer=order.answer,
                attention_s=ATTENTION_S,
            ),
        )
    return Answers(ranks=tuple(msgspec.json.decode(answer, type=Measured) for answer in answered))


@EACH_PASS
def test_a_pass_takes_as_long_as_the_law_says(answers: Answers, name: Pass) -> None:
    for rank in answers.ranks:
        for is_overlapped, passes in ((True, rank.overlapped), (False, rank.waiting)):
            law = answers.law(name, is_overlapped=is_overlapped)
            assert pass_s(passes, name) == pytest.approx(law.elapsed_s, rel=TOLERANCE_RATIO)


@EACH_PASS
def test_as_much_is_hidden_as_the_law_says(answers: Answers, name: Pass) -> None:
    law = answers.law(name, is_overlapped=True)
    for rank in answers.ranks:
        exposed_s = pass_s(rank.overlapped, name) - law.attention_s
        assert 1 - exposed_s / law.communication_s == pytest.approx(law.hidden_ratio, rel=TOLERANCE_RATIO)


def test_the_trace_shows_as_much_hidden_as_the_law_says(answers: Answers) -> None:
    law = answers.law("forward", is_overlapped=True)
    for rank in answers.ranks:
        assert rank.overlapped.traced_overlap_ratio == pytest.approx(law.hidden_ratio, rel=TOLERANCE_RATIO)


def test_without_overlap_the_trace_shows_nothing_hidden(answers: Answers) -> None:
    assert answers.law("forward", is_overlapped=False).hidden_ratio == 0
    for rank in answers.ranks:
        assert rank.waiting.traced_overlap_ratio == pytest.approx(0, abs=0.02)
