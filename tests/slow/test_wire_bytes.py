"""What leaves and reaches a node during gloo's collectives is what the law says."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from tests.slow.ranks.boxed_ranks import run_ranks
from tests.slow.ranks.collective_rank import PAYLOAD_BYTES, Passed
from tests.support.netbox import netbox
from workloads.cost_models.communication import wire_bytes
from workloads.cost_models.terms import Collective, Transfer

pytestmark = pytest.mark.slow

HEADERS_RATIO = 0.02  # The kernel counts a header for each 64 KiB that it hands to the link.
CHATTER_BYTES = 4096  # Barriers, and acknowledgements of what is received.


@pytest.fixture(scope="module", params=[2, 3, 4])
def counted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[Collective, list[Passed]]]:
    """What passed by collective, call by call, for each rank."""
    with netbox(nodes=request.param, rate_mbit=None) as box:
        answers = run_ranks(
            box, "tests.slow.ranks.collective_rank", tmp_path_factory.mktemp("ranks"), lambda order: order
        )
    return [msgspec.json.decode(answer, type=dict[Collective, list[Passed]]) for answer in answers]


@pytest.mark.parametrize("collective", get_args(Collective))
def test_the_busiest_rank_sends_or_receives_the_bytes_of_the_law(
    collective: Collective, counted: list[dict[Collective, list[Passed]]]
) -> None:
    transfer = Transfer(collective=collective, axis="data", payload_bytes=PAYLOAD_BYTES)
    expected_bytes = wire_bytes(transfer, len(counted), "gloo")
    calls = zip(*(rank[collective] for rank in counted), strict=True)
    # Where an acknowledgement is late, as on a busy machine, the kernel sends again what has arrived: not in each call.
    busiest_bytes = min(max(max(rank.sent_bytes, rank.received_bytes) for rank in call) for call in calls)
    assert expected_bytes <= busiest_bytes <= expected_bytes * (1 + HEADERS_RATIO) + CHATTER_BYTES
