"""Which of a rank's queries meet which of another's keys, without the pairs that the mask takes out whole."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.laws.ring_attention import Layout

ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Queries of this rank with keys of the source, both by their place among a rank's positions.

    is_causal: query i sees keys 0 to i; else each sees all.
    """

    queries: slice
    keys: slice
    is_causal: bool


def block_with(source: int, layout: Layout, *, is_causal: bool, positions: int, rank: int) -> Block | None:
    """What a rank computes when it holds the source's keys; None where it has no query that sees one.

    positions: of each rank, in rising order.
    """
    everything = Block(queries=ALL, keys=ALL, is_causal=False)
    if not is_causal:
        return everything
    if source == rank:
        return Block(queries=ALL, keys=ALL, is_causal=True)
    if layout == "plain":
        return everything if source < rank else None
    # Of two chunks a rank holds one from the front and one from the end. An earlier rank's lie around ours, so that all
    # our queries see its first and none its second; a later rank's lie between ours, so that our last see both.
    first, second = slice(0, positions // 2), slice(positions // 2, positions)
    if source < rank:
        return Block(queries=ALL, keys=first, is_causal=False)
    return Block(queries=second, keys=ALL, is_causal=False)
