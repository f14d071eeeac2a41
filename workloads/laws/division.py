"""Who holds which tensor where tensors are divided whole: the largest first, each to who has least."""

from __future__ import annotations

from collections.abc import Sequence


def divide(sizes: Sequence[int], holders: int) -> tuple[int, ...]:
    """The holder of each tensor, counted from 0; those beyond the number of tensors hold none.

    Of holders that have equally much the first gets it, and of tensors that are equally large the first goes first.
    Source: Graham 1969, Bounds on multiprocessing timing anomalies: the fullest has at most 4/3 of the best division's.

    Raises:
        ValueError: there is no holder.
    """
    if holders < 1:
        raise ValueError(f"holders is {holders}; it must be 1 or more")
    held = [0] * holders
    holder_of = [0] * len(sizes)
    for tensor in sorted(range(len(sizes)), key=lambda tensor: -sizes[tensor]):
        holder_of[tensor] = held.index(min(held))
        held[holder_of[tensor]] += sizes[tensor]
    return tuple(holder_of)
