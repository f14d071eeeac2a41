"""What is wanted of a node's collectors: how often they are asked, and so how long they may take, and how much."""

from __future__ import annotations

from dataclasses import dataclass

_ALL_RATIO = 0.9
"""Share of a beat for which all collectors together are waited for; the rest is for what is done with their answers."""
_PART_RATIO = 0.8
"""Share of a beat in which a collector's parts must answer, so that it can say itself which of them is late."""
_HOLD_BEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """beat_s: between two askings. per_nvlink: the bytes of each NVLink, too."""

    beat_s: float = 1.0
    per_nvlink: bool = False

    def all_within_s(self, longest_s: float) -> float:
        """How long all collectors together are waited for: no longer than that, and less than a beat."""
        return min(longest_s, _ALL_RATIO * self.beat_s)

    def part_within_s(self, longest_s: float) -> float:
        """How long a collector waits for its parts, such as GPUs: less than it is waited for itself."""
        return min(longest_s, _PART_RATIO * self.beat_s)

    def held_s(self, shortest_s: float) -> float:
        """How long the last answer of what is late is shown: no shorter than that, and for some beats."""
        return max(shortest_s, _HOLD_BEATS * self.beat_s)


USUAL = Wanted()
