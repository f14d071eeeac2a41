"""What the Flight Recorder counts for a transfer; tests of strategies compare it with the recorder itself."""

from __future__ import annotations

import pytest

from workloads.cost_models.communication import CommunicationBackend, recorded_bytes
from workloads.cost_models.terms import Transfer

GATHERED = Transfer(collective="all_gather", axis="shard", payload_bytes=400, calls=2)
REDUCED = Transfer(collective="reduce_scatter", axis="shard", payload_bytes=200)
AVERAGED = Transfer(collective="all_reduce", axis="replicate", payload_bytes=50)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_transfers_of_one_collective_are_added_up(backend: CommunicationBackend) -> None:
    assert recorded_bytes([GATHERED, AVERAGED, GATHERED], backend) == {"all_gather": 800, "all_reduce": 50}


@pytest.mark.parametrize(
    ("backend", "expected"),
    [("nccl", {"reduce_scatter": 200, "all_reduce": 50}), ("gloo", {"all_reduce": 250})],
)
def test_gloo_reduces_and_scatters_by_an_all_reduce(backend: CommunicationBackend, expected: dict[str, int]) -> None:
    assert recorded_bytes([REDUCED, AVERAGED], backend) == expected
