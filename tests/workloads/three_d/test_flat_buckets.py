"""Buckets hold what comes next as long as it fits, and all tensors once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from workloads.three_d.cost_model import fill_buckets


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ((), []),
        ((4,), [range(1)]),
        ((4, 6), [range(2)]),
        ((4, 7), [range(1), range(1, 2)]),
        ((30, 1, 2), [range(1), range(1, 3)]),
        ((1, 30, 2, 8), [range(1), range(1, 2), range(2, 4)]),
    ],
)
def test_a_bucket_of_10_bytes_is_filled_until_the_next_does_not_fit(sizes: Sequence[int], buckets: list[range]) -> None:
    assert fill_buckets(sizes, 10) == buckets


def test_a_bucket_without_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="bucket_bytes is 0; it must be 1 or more"):
        fill_buckets([1], 0)
