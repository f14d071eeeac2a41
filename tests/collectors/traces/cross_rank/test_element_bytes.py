"""Buffers are as large as their elements say."""

from __future__ import annotations

import pytest
import torch

from collectors.traces.cross_rank.collective_times import buffer_bytes
from collectors.traces.timeline import Call


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool"])
def test_elements_are_as_large_as_torch_says(dtype: str) -> None:
    call = Call(collective="all_gather", dtype=dtype, given_elements=3, filled_elements=12)
    assert buffer_bytes(call) == 12 * getattr(torch, dtype).itemsize


def test_a_dtype_that_is_not_known_has_no_bytes() -> None:
    assert buffer_bytes(Call(collective="all_reduce", dtype="float3", given_elements=3)) is None
