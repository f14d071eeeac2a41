"""Lists of ranks in words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby


def listed(ranks: Iterable[int]) -> str:
    """Return ranks in words: "0 to 6, 9" for 0, 1, ... 6 and 9; there may be thousands."""
    words = []
    for _, run in groupby(enumerate(sorted(ranks)), lambda numbered: numbered[1] - numbered[0]):
        numbers = [str(rank) for _, rank in run]
        words += numbers if len(numbers) < 3 else [f"{numbers[0]} to {numbers[-1]}"]
    return ", ".join(words)
