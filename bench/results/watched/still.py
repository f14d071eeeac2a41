"""Where the ranks of a watched job stood when steps stopped, and which rank the others waited for.

Ranks wait for the one that is behind: it has ended fewer steps, completed fewer calls of backward in this step, or is
in an earlier phase. If several are equally far behind, no rank is named; their Flight Records may show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.errors import plural
from bench.results.watched.rank_files import Still

BEFORE_BACKWARD = "before backward"
"""Of a step whose batch comes from no DataLoader of torch: whether the rank loads, logs or computes is unknown."""
ORDER = ("data", BEFORE_BACKWARD, "backward", "after backward", "optimizer")
"""Phases in the order in which a step passes through them."""
SHOWN = 3
"""Ranks whose places are listed if none is behind."""
LONGEST_PLACE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StillRank:
    """Where one rank stood. still_s: time since its last step or batch. limit_s: from it on, its job counts as stalled.

    steps: number that it had ended. phase: one of `ORDER`. where: the innermost line of the script; None if unknown.
    has_gone_on: whether a step came afterwards, or the process ended normally.
    """

    rank: int
    still_s: float
    limit_s: float
    steps: int
    phase: str = "before backward"
    backward_calls: int = 0
    where: str | None = None
    has_gone_on: bool = False

    @classmethod
    def of(cls, rank: int, line: Still, *, has_gone_on: bool = False) -> StillRank:
        """Return the place from a rank's line."""
        return cls(
            rank=rank,
            still_s=1e-9 * line.still_ns,
            limit_s=1e-9 * line.limit_ns,
            steps=line.steps,
            phase=line.phase,
            backward_calls=line.backward_calls,
            where=None if line.where is None else line.where[:LONGEST_PLACE],
            has_gone_on=has_gone_on,
        )

    @property
    def is_stalled(self) -> bool:
        """Whether it stood still for its job's limit or longer."""
        return self.still_s >= self.limit_s


def behind(ranks: Iterable[StillRank], *, world_size: int) -> StillRank | None:
    """Return the rank that all others wait for; None if several are equally far behind, or a rank did not report."""
    ordered = sorted(ranks, key=_position)
    if len(ordered) < max(2, world_size) or _position(ordered[0]) == _position(ordered[1]):
        return None
    return ordered[0]


def _position(rank: StillRank) -> tuple[int, int, int]:
    order = ORDER.index(rank.phase) if rank.phase in ORDER else 1
    # A call of backward that has not ended does not count.
    return rank.steps, rank.backward_calls - (rank.phase == "backward"), order


def place_words(rank: StillRank) -> str:
    """Return where a rank stands: "rank 1 in backward at train.py:31 in main"."""
    return f"rank {rank.rank} {phase_words(rank.phase)}" + ("" if rank.where is None else f" at {rank.where}")


def phase_words(phase: str) -> str:
    """Return a phase as a place: "in backward", "before backward"."""
    return phase if phase.startswith(("before", "after")) else f"in {phase}"


def still_words(ranks: Mapping[int, StillRank], *, world_size: int) -> str:
    """Return where the ranks stand, in a few words: the rank that is behind, else the first few."""
    named = behind(ranks.values(), world_size=world_size)
    if named is not None:
        return f"{place_words(named)}; {plural(len(ranks) - 1, 'other rank')} ahead"
    shown = [ranks[rank] for rank in sorted(ranks)][:SHOWN]
    more = len(ranks) - len(shown)
    silent = world_size - len(ranks)
    words = [place_words(rank) for rank in shown]
    words += [f"{plural(more, 'more rank')}"] if more else []
    words += [f"no report from {plural(silent, 'rank')}"] if silent > 0 else []
    return ", ".join(words)


def duration_words(time_s: float) -> str:
    """Return a time in whole minutes, or in seconds below two minutes: "4 min", "70 s"."""
    return f"{time_s:.0f} s" if time_s < 120 else f"{time_s / 60:.0f} min"
