"""The rank that stands out from its peers in a run, and whether it did so before the change."""

from __future__ import annotations

from dataclasses import dataclass

from bench.results.estimate import of_metric
from bench.results.watched.details import WatchedDetails
from bench.store.summary import Summary
from collectors.metrics.results import RUN_STRAGGLER_RATIO, RUN_TRACED_STEP_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Standout:
    """The straggler of a run, as found by `bench.results.stragglers`.

    cause: what it does while others wait. cost_ratio: share of the traced time for which it delays all others.
    cost_before_ratio: the same in the good run; None if this rank was no straggler there. text: all this as a sentence.
    """

    rank: str
    cause: str
    cost_ratio: float
    cost_before_ratio: float | None
    text: str


def find_standout(good: Summary | None, bad: Summary) -> Standout | str:
    """Return the straggler of the bad run (for a watched run, the late rank), or why there is none."""
    if bad.watched is not None:
        return _late_rank(good, bad.watched)
    stragglers = of_metric(bad.estimates, RUN_STRAGGLER_RATIO)
    if not stragglers:
        verdicts = ("no straggler", "straggler: likely ", "waits and stragglers are absent")
        notes = [note for note in bad.notes if note.startswith(verdicts)]
        if notes:
            return notes[0]
        if bad.case.ranks == 1:
            return "a lone rank has no peers"
        if of_metric(bad.estimates, RUN_TRACED_STEP_SECONDS):
            return "which rank stands out is unknown: the windows of its ranks were not joined"
        return "which rank stands out is unknown: no step was traced; set trace_steps = 3 in the suite"
    straggler = stragglers[0]
    others = () if good is None else of_metric(good.estimates, RUN_STRAGGLER_RATIO)
    before = next((other for other in others if other.labels["rank"] == straggler.labels["rank"]), None)
    text = next(
        (
            note
            for note in bad.notes
            if note.startswith(f"rank {straggler.labels['rank']} ") and "holds the others up" in note
        ),
        f"rank {straggler.labels['rank']} holds the others up by {straggler.labels['cause']}",
    )
    was = "" if good is None else "; it did before" if before is not None else "; it did not before"
    return Standout(
        rank=straggler.labels["rank"],
        cause=straggler.labels["cause"],
        cost_ratio=straggler.median,
        cost_before_ratio=None if before is None else before.median,
        text=f"{text}{was}",
    )


def _late_rank(good: Summary | None, watched: WatchedDetails) -> Standout | str:
    late = watched.late
    if late.rank is None or late.phase is None or late.step_ratio is None:
        return f"which rank is late is unsure: {late.reason}"
    earlier = None if good is None or good.watched is None else good.watched.late
    is_same = earlier is not None and (earlier.rank, earlier.phase) == (late.rank, late.phase)
    was = "" if earlier is None else "; it was before" if is_same else "; it was not before"
    return Standout(
        rank=str(late.rank),
        cause=late.phase,
        cost_ratio=late.step_ratio,
        cost_before_ratio=earlier.step_ratio if earlier is not None and is_same else None,
        text=f"{late.reason}{was}",
    )
