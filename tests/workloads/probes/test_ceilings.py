"""What a product and a copy are counted as, by hand and by the rules of STREAM."""

from __future__ import annotations

from typing import get_args

import pytest

from workloads.probes.cost_model import BUFFERS_TOUCHED, CopyKind, matmul_flops, moved_bytes


def test_each_element_of_a_product_costs_k_multiplications_and_k_additions() -> None:
    """2 by 5 times 5 by 3: 6 elements of 5 multiplications and 5 additions."""
    assert matmul_flops(m=2, n=3, k=5) == 60


def test_stream_counts_16_bytes_of_a_copied_double_and_24_of_a_triad() -> None:
    """McCalpin 1995, table of the kernels."""
    assert moved_bytes("memory_copy", 8) == 16
    assert moved_bytes("memory_triad", 8) == 24


def test_a_gpu_reads_and_writes_what_it_copies_within_itself() -> None:
    assert moved_bytes("device_copy", 1000) == 2000


@pytest.mark.parametrize("kind", ["host_to_device", "device_to_host", "host_to_device_pageable"])
def test_a_byte_crosses_the_bus_once(kind: str) -> None:
    assert moved_bytes(kind, 1000) == 1000


def test_every_kind_is_counted() -> None:
    assert set(BUFFERS_TOUCHED) == set(get_args(CopyKind))


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r'copy "memset" is unknown; it may be memory_copy, memory_triad, .*pageable'):
        moved_bytes("memset", 8)
