"""The parts of a change in step time, between the traces of two runs.

Each division (by part, kernel, cause ...) adds up on both sides to the divided time, and so to its change, to the
nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import Literal

from collectors.traces.analyzers.step_division import NOTHING, PARTS, Item, ItemTime, StepPart, amounts_of
from collectors.traces.steps import StepInterval, step_intervals
from collectors.traces.table import Cell, Table, table_of
from collectors.traces.timeline import Timeline

# The change of an item of a step, and its effects: count, duration and hiding.

Presence = Literal["both", "new", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemChange:
    """The change of an item, per step.

    before, after: None if it did not occur; exposed times are whole nanoseconds.
    Three effects add up to the change of its exposed time: how often it ran (count), how long each run took (duration),
    and how much of it was hidden behind parts with precedence (hiding).
    """

    item: Item
    before: ItemTime | None
    after: ItemTime | None

    @property
    def seen(self) -> Presence:
        """The sides on which it occurred: both, only after ("new") or only before ("gone")."""
        if self.before is None:
            return "new"
        return "gone" if self.after is None else "both"

    @property
    def before_ns(self) -> int:
        """Its exposed time before."""
        return 0 if self.before is None else int(self.before.exposed_ns)

    @property
    def after_ns(self) -> int:
        """Its exposed time after."""
        return 0 if self.after is None else int(self.after.exposed_ns)

    @property
    def change_ns(self) -> int:
        """The growth of its exposed time."""
        return self.after_ns - self.before_ns

    @property
    def count_effect_ns(self) -> int:
        """The cost of running more or less often, at the mean of both durations; all work of a new or gone item.

        Example: 10 runs of 2 us became 12 runs of 3 us, so 20 us of work became 36 us. Count effect: 2 x 2.5 = 5 us;
        duration effect: 1 x 11 = 11 us.
        """
        before, other = _work_and_count(self.before), _work_and_count(self.after)
        if not (before[1] and other[1]):
            return round(other[0] - before[0])
        return round((other[1] - before[1]) * (before[0] / before[1] + other[0] / other[1]) / 2)

    @property
    def duration_effect_ns(self) -> int:
        """The cost of longer or shorter runs, at the mean of both counts."""
        return round(_work_and_count(self.after)[0] - _work_and_count(self.before)[0]) - self.count_effect_ns

    @property
    def hiding_effect_ns(self) -> int:
        """The cost of being hidden less."""
        return self.change_ns - self.count_effect_ns - self.duration_effect_ns


def mean_ns(amount: ItemTime | None) -> int | None:
    """Return the mean duration of a span; None if none started."""
    work_ns, count = _work_and_count(amount)
    return round(work_ns / count) if count else None


def _work_and_count(amount: ItemTime | None) -> tuple[Fraction, Fraction]:
    return (Fraction(0), Fraction(0)) if amount is None else (Fraction(amount.work_ns), Fraction(amount.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """The mean step of a run: over the steps of each rank, then over ranks, all with equal weight.

    ranks: the averaged ranks. steps: number of steps, over all ranks.
    amounts: by item; exposed times are whole nanoseconds and add up to step_ns.
    """

    ranks: tuple[int, ...]
    steps: int
    step_ns: int
    amounts: Mapping[Item, ItemTime]


def mean_step(ranks: Sequence[tuple[Timeline, Sequence[StepInterval]]]) -> MeanStep:
    """Return the mean over the step intervals of each timeline; each must have at least one."""
    amounts: dict[Item, ItemTime] = {}
    for timeline, steps in ranks:
        share = Fraction(1, len(ranks) * len(steps))
        for item, amount in amounts_of(timeline, steps).items():
            amounts[item] = amounts.get(item, NOTHING) + amount * share
    rounded = _in_whole_ns(amounts)
    return MeanStep(
        ranks=tuple(timeline.rank for timeline, _ in ranks),
        steps=sum(len(steps) for _, steps in ranks),
        step_ns=sum(int(amount.exposed_ns) for amount in rounded.values()),
        amounts=rounded,
    )


def _in_whole_ns(amounts: Mapping[Item, ItemTime]) -> dict[Item, ItemTime]:
    """Return the amounts with exposed times in whole nanoseconds, each off by less than 1 ns.

    They add up to the rounded total, since we round the running sum over the sorted items: 0.4, 0.4 and 0.4 have the
    running sums 0.4, 0.8 and 1.2, rounded 0, 1 and 1, and become 0, 1 and 0.
    """
    rounded = {}
    exact_ns, assigned_ns = Fraction(0), 0
    for item in sorted(amounts):
        exact_ns += amounts[item].exposed_ns
        own_ns = floor(exact_ns + Fraction(1, 2)) - assigned_ns
        assigned_ns += own_ns
        rounded[item] = replace(amounts[item], exposed_ns=own_ns)
    return rounded


RanksWithIntervals = list[tuple[Timeline, tuple[StepInterval, ...]]]

BUSY: tuple[StepPart, ...] = tuple(part for part in PARTS if part != "idle")


class NothingToCompare(ValueError):
    """Nothing ran in any trace of a side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """A mean step before and after, and the divisions of its change, each with the largest share first.

    parts: of the whole step. kernels, shapes: of all but idle time, by kernel, and by operator and input sizes.
    causes, idle: of idle time, by cause, and by cause and the work that followed.
    collectives: of exposed communication, by collective and a rank's input elements.
    notes: what was compared, and what was left out.
    """

    before: MeanStep
    after: MeanStep
    parts: tuple[ItemChange, ...]
    kernels: tuple[ItemChange, ...]
    causes: tuple[ItemChange, ...]
    idle: tuple[ItemChange, ...]
    collectives: tuple[ItemChange, ...]
    shapes: tuple[ItemChange, ...]
    notes: tuple[str, ...] = ()

    @property
    def change_ns(self) -> int:
        """The growth of the step."""
        return self.after.step_ns - self.before.step_ns

    def share(self, change: ItemChange) -> float | None:
        """Return a change's share of the step's change, negative if opposite; None if the step did not change."""
        return change.change_ns / self.change_ns if self.change_ns else None

    def tables(self) -> tuple[Table, ...]:
        """Return the step and each division of its change."""
        return (
            table_of(
                "step",
                "The mean step before and after",
                "before_ns after_ns change_ns",
                [(self.before.step_ns, self.after.step_ns, self.change_ns)],
            ),
            self._table("parts", "Parts of the change of the step", self.parts, "part"),
            self._table("kernels", "By kernel", self.kernels, "part name seen"),
            table_of(
                "effects",
                "Each kernel's change: running more often, taking longer, being less hidden",
                "part name count_before count_after mean_before_ns mean_after_ns"
                " change_ns count_ns duration_ns hiding_ns",
                map(_effects, self.kernels),
                "mean: of one run, without other spans of its stream inside it",
            ),
            self._table("causes", "Idle time, by cause", self.causes, "cause"),
            self._table("idle", "Idle time, by cause and what ran next", self.idle, "cause name"),
            self._table(
                "collectives",
                "Exposed communication, by collective and the shape of a rank's input",
                self.collectives,
                "collective shape seen",
            ),
            self._table(
                "shapes",
                "By operator and the sizes of its inputs",
                self.shapes,
                "part operator collective shape seen",
                "operators are left out where the trace does not show which one launched the kernel",
            ),
        )

    def _table(self, name: str, title: str, changes: Iterable[ItemChange], fields: str, *notes: str) -> Table:
        """Return the table of a division. fields: of an `Item`, and "seen"."""
        rows = (
            (
                *(change.seen if field == "seen" else getattr(change.item, field) or None for field in fields.split()),
                change.before_ns,
                change.after_ns,
                change.change_ns,
                self.share(change),
            )
            for change in changes
        )
        return table_of(name, title, f"{fields} before_ns after_ns change_ns share_ratio", rows, *notes)


def difference(before: Sequence[Timeline], after: Sequence[Timeline]) -> StepDifference:
    """Return the change between the mean steps of both sides, over all whole steps of all ranks.

    If any rank has no whole step, the whole traces of all ranks on both sides are compared instead.

    Raises:
        NothingToCompare: nothing ran in any trace of a side.
    """
    notes: list[str] = []
    sides = [_at_work(timelines, name, notes) for timelines, name in ((before, "before"), (after, "after"))]
    part = "step" if _have_steps(sides, notes) else "trace"
    mean_before, mean_after = (
        mean_step([(timeline, [interval for interval in parts if interval.part == part]) for timeline, parts in ranks])
        for ranks in sides
    )
    notes[:0] = [
        f"{name}: the mean of {mean.steps} whole {part}{'s' * (mean.steps > 1)}"
        f" of {len(mean.ranks)} rank{'s' * (len(mean.ranks) > 1)}"
        for name, mean in (("before", mean_before), ("after", mean_after))
    ]
    if len({timeline.is_device for ranks in sides for timeline, _ in ranks}) > 1:
        notes.append("some traces have a device and some only a host: kernels are not comparable with operators")
    notes.append("share: of the change in step time; negative if opposite to it")
    return StepDifference(
        before=mean_before,
        after=mean_after,
        parts=_changes(mean_before, mean_after, PARTS, ()),
        kernels=_changes(mean_before, mean_after, BUSY, ("name",)),
        causes=_changes(mean_before, mean_after, ("idle",), ("cause",)),
        idle=_changes(mean_before, mean_after, ("idle",), ("cause", "name")),
        collectives=_changes(mean_before, mean_after, ("exposed_communication",), ("collective", "shape")),
        shapes=_changes(mean_before, mean_after, BUSY, ("operator", "collective", "shape")),
        notes=tuple(notes),
    )


def _at_work(timelines: Sequence[Timeline], side: str, notes: list[str]) -> RanksWithIntervals:
    """Return the timelines in which something ran, with their step intervals."""
    with_parts = [(timeline, step_intervals(timeline)) for timeline in timelines]
    notes += [f"{side}: rank {timeline.rank} is left out: nothing ran" for timeline, parts in with_parts if not parts]
    ranks = [(timeline, parts) for timeline, parts in with_parts if parts]
    if not ranks:
        raise NothingToCompare(
            f"{side}: no trace of the {len(with_parts)} holds a span that computes, communicates or copies; "
            "give traces that were taken while steps ran"
        )
    return ranks


def _have_steps(sides: Sequence[RanksWithIntervals], notes: list[str]) -> bool:
    """Return whether every rank on both sides has a whole step; add a note on those without."""
    lacking = [
        f"rank {timeline.rank} {side}"
        for side, ranks in zip(("before", "after"), sides, strict=True)
        for timeline, parts in ranks
        if not any(interval.part == "step" for interval in parts)
    ]
    if lacking:
        notes.append(f"no whole step in the trace of {', '.join(lacking)}: whole traces are compared, not steps")
    return not lacking


def _changes(
    first: MeanStep, other: MeanStep, parts: Sequence[StepPart], fields: Sequence[str]
) -> tuple[ItemChange, ...]:
    """Return the changes of these parts, summed over all items with the same fields; the largest share first."""
    before: dict[Item, ItemTime] = {}
    after: dict[Item, ItemTime] = {}
    for mean, sums in ((first, before), (other, after)):
        for item, amount in mean.amounts.items():
            if item.part in parts:
                wider = Item(part=item.part, **{field: getattr(item, field) for field in fields})
                sums[wider] = sums.get(wider, NOTHING) + amount
    changes = [ItemChange(item=item, before=before.get(item), after=after.get(item)) for item in before | after]
    sign = -1 if other.step_ns < first.step_ns else 1
    return tuple(sorted(changes, key=lambda change: (-sign * change.change_ns, change.item)))


def _effects(change: ItemChange) -> tuple[Cell, ...]:
    return (
        change.item.part,
        change.item.name,
        *(0.0 if amount is None else float(amount.count) for amount in (change.before, change.after)),
        mean_ns(change.before),
        mean_ns(change.after),
        change.change_ns,
        change.count_effect_ns,
        change.duration_effect_ns,
        change.hiding_effect_ns,
    )
