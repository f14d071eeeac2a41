"""Which gradients travel together, where they are laid end to end in buckets."""

from __future__ import annotations

from collections.abc import Sequence


def fill_buckets(sizes: Sequence[int], bucket_bytes: int) -> list[range]:
    """The places of each bucket's tensors: as many, one after another, as it holds; one that is larger goes alone.

    sizes: bytes of each tensor.

    Raises:
        ValueError: a bucket has no byte.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; it must be 1 or more")
    buckets: list[range] = []
    begin, filled_bytes = 0, 0
    for place, size_bytes in enumerate(sizes):
        if place > begin and filled_bytes + size_bytes > bucket_bytes:
            buckets.append(range(begin, place))
            begin, filled_bytes = place, 0
        filled_bytes += size_bytes
    return [*buckets, range(begin, len(sizes))] if sizes else []
