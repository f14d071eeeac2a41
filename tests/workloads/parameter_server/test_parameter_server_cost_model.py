"""Who holds which weights, and what passes the links, against answers made by hand and textbook all-reduces."""

from __future__ import annotations

import pytest

from tests.workloads.training.setups import SMALL
from workloads.cost_models.shape import Shape
from workloads.parameter_server.cost_model import (
    ServerLoad,
    StepTraffic,
    busiest_bytes,
    server_traffic,
    shares,
    worker_traffic,
)
from workloads.probes.cost_model import cost

WEIGHTS_BYTES = 4 * SMALL.parameters()

# One block: q and o 4 x 4, k and v 2 x 4, gate and up 6 x 4, down 4 x 6; embedding and head 5 x 4; three norms of 4.
TINY = Shape(layers=1, width=4, heads=2, kv_heads=1, mlp_width=6, vocabulary=5, sequence=2, batch=1)


@pytest.mark.parametrize("servers", [0, 13])
def test_a_server_without_a_tensor_is_refused(servers: int) -> None:
    with pytest.raises(ValueError, match=rf"^servers is {servers}; 12 tensors can be divided over 1 to 12$"):
        shares(TINY, servers)


def test_two_servers_share_a_tiny_model() -> None:
    """In elements: 24 x 3, 20 x 2, 16 x 2, 8 x 2 and 4 x 3, by turns."""
    assert shares(TINY, 2) == (ServerLoad(size_bytes=4 * 88, tensors=6), ServerLoad(size_bytes=4 * 84, tensors=6))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_server_receives_what_all_workers_send_and_sends_what_they_receive(workers: int) -> None:
    (share,) = shares(SMALL, 1)
    worker = worker_traffic(SMALL)
    assert worker == StepTraffic(sent_bytes=WEIGHTS_BYTES, received_bytes=WEIGHTS_BYTES)
    expected = StepTraffic(sent_bytes=workers * worker.received_bytes, received_bytes=workers * worker.sent_bytes)
    assert server_traffic(share, workers) == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_two_servers_have_half_of_the_traffic_each_but_for_a_tensor(workers: int) -> None:
    first, second = (server_traffic(share, workers).received_bytes for share in shares(SMALL, 2))
    assert first + second == workers * WEIGHTS_BYTES
    largest_bytes = 4 * SMALL.width * SMALL.mlp_width
    assert abs(first - second) <= workers * largest_bytes


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_one_server_costs_what_the_textbooks_all_reduce_by_a_server_does(workers: int) -> None:
    """There rank 0 is the server, and its steps, in and out, are two."""
    textbook = cost("parameter_server", workers + 1, SMALL.parameters(), 4)
    assert 2 * busiest_bytes(SMALL, servers=1, workers=workers) == textbook.critical_bytes
    assert busiest_bytes(SMALL, servers=1, workers=workers) == textbook.peak_node_bytes


def test_with_more_servers_than_workers_a_workers_link_is_the_busiest() -> None:
    assert busiest_bytes(SMALL, servers=3, workers=1) == WEIGHTS_BYTES
