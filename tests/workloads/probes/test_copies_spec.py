"""What `copies` measures on each device, what it takes, and what it refuses."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.workloads.probes.small_probes import small_probe
from workloads.probes.cost_model import CopyKind
from workloads.probes.spec import KINDS, CopiesSpec, size_bytes
from workloads.spec import Device


def test_every_kind_is_measured_on_one_device() -> None:
    assert sorted(kind for kinds in KINDS.values() for kind in kinds) == sorted(get_args(CopyKind))


@pytest.mark.parametrize(("device", "count"), [("cpu", 2), ("cuda", 4)])
def test_each_kind_is_one_measurement(device: Device, count: int) -> None:
    assert CopiesSpec().measurements(small_probe(CopiesSpec(), device=device)) == count


@pytest.mark.parametrize(("device", "cache_bytes"), [("cpu", 64 * 2**20), ("cuda", 256 * 2**20)])
def test_buffers_are_four_times_the_cache_that_they_are_meant_for(device: Device, cache_bytes: int) -> None:
    """STREAM's rule for the size of its arrays."""
    assert size_bytes(small_probe(CopiesSpec(), device=device)) == 4 * cache_bytes


@pytest.mark.parametrize(("device", "buffers"), [("cpu", 3), ("cuda", 2)])
def test_a_rank_holds_the_buffers_of_one_kind(device: Device, buffers: int) -> None:
    assert (
        CopiesSpec().working_bytes(small_probe(CopiesSpec(), {"size_bytes": 4000}, device=device), 0) == buffers * 4000
    )


def test_a_size_of_broken_elements_is_refused_with_one_that_is_whole() -> None:
    refused = CopiesSpec().refusals(small_probe(CopiesSpec(), {"size_bytes": 1022}))
    assert refused == [
        "option size_bytes is 1022, which is not a multiple of 4, the bytes of an element in fp32; 1024 would fit",
    ]
    assert CopiesSpec().refusals(small_probe(CopiesSpec(), {"size_bytes": 1022}, precision="bf16")) == []


def test_the_defaults_run_on_any_number_of_ranks() -> None:
    for ranks in (1, 2, 8):
        setup = small_probe(CopiesSpec(), ranks=ranks)
        assert CopiesSpec().refusals(setup) == []
        assert CopiesSpec().mesh(setup) == {"data": ranks}
