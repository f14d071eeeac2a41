"""What passes the nodes of a parameter server in a step is what the law says, and more than an all_reduce's."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from tests.slow.ranks.boxed_ranks import Order, run_ranks
from tests.slow.ranks.collective_rank import Passed
from tests.slow.ranks.pushing_rank import SHAPE, StepOrder
from tests.support.netbox import netbox
from workloads.parameter_server.cost_model import StepTraffic, server_traffic, shares, worker_traffic
from workloads.spec import OptionValue

pytestmark = pytest.mark.slow

OVERHEAD_RATIO = 0.04
"""Headers, for each 64 KiB that the kernel hands to the link; acknowledgements; names and shapes of tensors."""


def passed_in_a_step(strategy: str, ranks: int, options: Mapping[str, OptionValue], folder: Path) -> list[Passed]:
    """By rank, each on a node of its own."""

    def with_strategy(order: Order) -> StepOrder:
        return StepOrder(**msgspec.structs.asdict(order), strategy=strategy, options=dict(options))

    with netbox(nodes=ranks, rate_mbit=None) as box:
        answers = run_ranks(box, "tests.slow.ranks.pushing_rank", folder, with_strategy)
    return [msgspec.json.decode(answer, type=Passed) for answer in answers]


@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (1, 2), (1, 3), (2, 2)])
def test_every_node_sends_and_receives_the_bytes_of_the_law(servers: int, workers: int, tmp_path: Path) -> None:
    expected: list[StepTraffic] = [server_traffic(share, workers) for share in shares(SHAPE, servers)]
    expected += [worker_traffic(SHAPE)] * workers
    counted = passed_in_a_step("parameter_server", servers + workers, {"servers": servers}, tmp_path)
    for passed, traffic in zip(counted, expected, strict=True):
        assert 1 <= passed.sent_bytes / traffic.sent_bytes <= 1 + OVERHEAD_RATIO
        assert 1 <= passed.received_bytes / traffic.received_bytes <= 1 + OVERHEAD_RATIO


def test_a_server_sends_more_than_any_rank_of_an_all_reduce(tmp_path: Path) -> None:
    """W workers of P bytes: the server sends W P, a rank of the ring 2 (W - 1) / W P."""
    workers = 3
    server, *_ = passed_in_a_step("parameter_server", 1 + workers, {}, tmp_path)
    ring = passed_in_a_step("ddp", workers, {}, tmp_path)
    busiest_bytes = max(passed.sent_bytes for passed in ring)
    expected = Fraction(workers**2, 2 * (workers - 1))
    assert server.sent_bytes / busiest_bytes == pytest.approx(expected, rel=OVERHEAD_RATIO)
