"""What a spec tells the laws is checked where it is said."""

from __future__ import annotations

import pytest

from workloads.cost_models.terms import Transfer, bucket_count


@pytest.mark.parametrize(("payload_bytes", "buckets"), [(0, 1), (1, 1), (100, 1), (101, 2), (250, 3)])
def test_the_last_bucket_may_be_smaller(payload_bytes: int, buckets: int) -> None:
    assert bucket_count(payload_bytes, 100) == buckets


def test_a_bucket_without_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="bucket_bytes is 0; it must be 1 or more"):
        bucket_count(100, 0)


def test_a_transfer_has_at_least_one_call() -> None:
    with pytest.raises(ValueError, match="calls is 0; it must be 1 or more"):
        Transfer(collective="all_reduce", axis="data", payload_bytes=1, calls=0)
