"""On a slow link, the probe `collectives` finds its speed, the exporter counts the law's bytes, and the law holds.

The link passes 256 KiB after a pause as fast as it can, so that only sizes far above tell its speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

import msgspec
import pytest

from tests.slow.ranks.boxed_ranks import run_ranks
from tests.slow.ranks.probing_rank import LARGEST_BYTES, SIZES_BYTES, Answer
from tests.support.netbox import netbox
from workloads.cost_models.communication import Link, bus_factor, collective_time_s, wire_bytes
from workloads.cost_models.terms import Collective, Transfer

pytestmark = pytest.mark.alone

RATE_MBIT = 200
CAP_BYTES_PER_SECOND = RATE_MBIT * 1e6 / 8
LEAST_SHARE = 0.90  # Headers take 5 % of the link.
CALIBRATED_BYTES = 2**21
COUNTED_RATIO = 0.02  # The kernel counts a header for each 64 KiB that it hands to the link.
LAW_RATIO = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the ranks of one box measured, by rank."""

    ranks: tuple[Answer, ...]

    def elapsed_s(self, collective: Collective, size_bytes: int) -> float:
        """As nccl-tests has it, the mean over ranks; of the sweeps the median."""
        return median(
            fmean(
                timed.elapsed_s
                for sweep in together
                for timed in sweep
                if (timed.collective, timed.size_bytes) == (collective, size_bytes)
            )
            for together in zip(*(rank.sweeps for rank in self.ranks), strict=True)
        )

    def link(self) -> Link:
        """As one size of sending tells it; latency is far below the noise of such messages, and is in the bandwidth."""
        transfer = Transfer(collective="send", axis="data", payload_bytes=CALIBRATED_BYTES)
        sent_bytes = wire_bytes(transfer, len(self.ranks), "gloo")
        return Link(bandwidth_bytes_per_second=sent_bytes / self.elapsed_s("send", CALIBRATED_BYTES))

    def bus_bandwidth(self, elapsed_s: float) -> float:
        """Of an all_reduce of the largest size."""
        return LARGEST_BYTES / elapsed_s * float(bus_factor("all_reduce", len(self.ranks)))


@pytest.fixture(scope="module", params=[2, 4])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Of one box, in which all is measured one after another."""
    with netbox(nodes=request.param, rate_mbit=RATE_MBIT) as box:
        answered = run_ranks(
            box, "tests.slow.ranks.probing_rank", tmp_path_factory.mktemp("ranks"), lambda order: order
        )
    return Answers(ranks=tuple(msgspec.json.decode(answer, type=Answer) for answer in answered))


def test_bus_bandwidth_is_the_links_less_headers(answers: Answers) -> None:
    speed = answers.bus_bandwidth(answers.elapsed_s("all_reduce", LARGEST_BYTES))
    assert LEAST_SHARE <= speed / CAP_BYTES_PER_SECOND <= 1


def test_each_nodes_exporter_counts_the_bytes_of_the_law(answers: Answers) -> None:
    transfer = Transfer(collective="all_reduce", axis="data", payload_bytes=LARGEST_BYTES)
    expected_bytes = wire_bytes(transfer, len(answers.ranks), "gloo")
    for rank in answers.ranks:
        counted_bytes = median(watched.sent_bytes / watched.calls for watched in rank.watched)
        assert expected_bytes <= counted_bytes <= expected_bytes * (1 + COUNTED_RATIO)


def test_the_exporters_bandwidth_is_the_probes(answers: Answers) -> None:
    """Bytes that left the node, over the time that the probe took for them."""
    for rank in answers.ranks:
        for watched in rank.watched:
            counted = watched.sent_bytes / watched.calls / watched.elapsed_s
            probed = answers.bus_bandwidth(watched.elapsed_s)
            assert counted == pytest.approx(probed, rel=COUNTED_RATIO)


@pytest.mark.parametrize("size_bytes", SIZES_BYTES)
def test_what_sending_tells_of_the_link_predicts_all_reduce(answers: Answers, size_bytes: int) -> None:
    expected_s = collective_time_s("all_reduce", size_bytes, len(answers.ranks), answers.link(), "gloo")
    assert answers.elapsed_s("all_reduce", size_bytes) == pytest.approx(expected_s, rel=LAW_RATIO)
