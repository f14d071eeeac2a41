"""What a change of the step time is made of, from the traces of one run to those of another.

Every division of the step adds up to it on both sides, and so to its change, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collectors.traces.difference.change import Change, mean_ns
from collectors.traces.difference.mean_step import MeanStep, mean_step
from collectors.traces.difference.step_division import NOTHING, PARTS, Amount, Item, Part
from collectors.traces.spans import Timeline
from collectors.traces.steps.stretches import Stretch, stretches
from collectors.traces.table import Cell, Column, Table

Ranks = list[tuple[Timeline, tuple[Stretch, ...]]]

_CHANGE = (
    Column(name="before", unit="ns"),
    Column(name="after", unit="ns"),
    Column(name="change", unit="ns"),
    Column(name="share", unit="ratio"),
)
BUSY: tuple[Part, ...] = tuple(part for part in PARTS if part != "idle")


class NothingToCompare(ValueError):
    """In no trace of a side did anything run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean step before and after, and each division of its change, with the greatest share first.

    parts: all of the step. kernels, shapes: all but idle time, by the kernel, and by the operator and the sizes of
        its inputs. causes, idle: of idle time, by cause, and by what ran next too.
    collectives: of exposed communication, by collective and what a rank gave.
    notes: what was compared with what, and what was left out.
    """

    before: MeanStep
    after: MeanStep
    parts: tuple[Change, ...]
    kernels: tuple[Change, ...]
    causes: tuple[Change, ...]
    idle: tuple[Change, ...]
    collectives: tuple[Change, ...]
    shapes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def change_ns(self) -> int:
        """By how much the step grew."""
        return self.after.step_ns - self.before.step_ns

    def share(self, change: Change) -> float | None:
        """Which share of the step's change one is, below 0 where it is against it; None where the step is alike."""
        return change.change_ns / self.change_ns if self.change_ns else None

    def tables(self) -> tuple[Table, ...]:
        """The step, and each division of its change."""
        step = (self.before.step_ns, self.after.step_ns, self.change_ns)
        return (
            Table(
                name="step",
                title="The mean step before and after",
                columns=_CHANGE[:3],
                rows=(step,),
            ),
            self._table("parts", "What the change of the step is made of", self.parts, ("part",)),
            self._table("kernels", "By kernel", self.kernels, ("part", "name"), has_seen=True),
            Table(
                name="effects",
                title="Of each kernel's change: running more often, taking longer, being hidden less",
                columns=(
                    *(Column(name=name) for name in ("part", "name", "count_before", "count_after")),
                    *(
                        Column(name=name, unit="ns")
                        for name in ("mean_before", "mean_after", "change", "count", "duration", "hiding")
                    ),
                ),
                rows=tuple(_effects(change) for change in self.kernels),
                notes=("mean: of one run, without what others of its stream did inside of it",),
            ),
            self._table("causes", "Idle time, by cause", self.causes, ("cause",)),
            self._table("idle", "Idle time, by cause and what ran next", self.idle, ("cause", "name")),
            self._table(
                "collectives",
                "Exposed communication, by collective and what a rank gave",
                self.collectives,
                ("collective", "shape"),
                has_seen=True,
            ),
            self._table(
                "shapes",
                "By operator and the sizes of its inputs",
                self.shapes,
                ("part", "operator", "collective", "shape"),
                has_seen=True,
                notes=("an operator is left out where the trace does not tell which one launched the kernel",),
            ),
        )

    def _table(
        self,
        name: str,
        title: str,
        changes: Iterable[Change],
        fields: Sequence[str],
        *,
        has_seen: bool = False,
        notes: tuple[str, ...] = (),
    ) -> Table:
        seen = (Column(name="seen"),) if has_seen else ()
        return Table(
            name=name,
            title=title,
            columns=(*(Column(name=field) for field in fields), *seen, *_CHANGE),
            rows=tuple(
                (
                    *(getattr(change.item, field) or None for field in fields),
                    *((change.seen,) if has_seen else ()),
                    change.before_ns,
                    change.after_ns,
                    change.change_ns,
                    self.share(change),
                )
                for change in changes
            ),
            notes=notes,
        )


def difference(before: Sequence[Timeline], after: Sequence[Timeline]) -> Difference:
    """What changed in the mean of all whole steps of all ranks of each side.

    Where one rank of a side has no whole step, whole traces are compared instead, of all ranks of both sides.

    Raises:
        NothingToCompare: nothing ran in any trace of a side.
    """
    notes: list[str] = []
    sides = [_at_work(timelines, name, notes) for timelines, name in ((before, "before"), (after, "after"))]
    part = "step" if _have_steps(sides, notes) else "trace"
    one, other = (
        mean_step([(timeline, [found for found in parts if found.part == part]) for timeline, parts in ranks])
        for ranks in sides
    )
    notes[:0] = [f"{name}: the mean of {_counted(mean, part)}" for name, mean in (("before", one), ("after", other))]
    if len({timeline.is_device for ranks in sides for timeline, _ in ranks}) > 1:
        notes.append(
            "some traces are of a device and some of a host: kernels of the one are not operators of the other"
        )
    notes.append("share: of the change in step time; below 0 is against it")
    return Difference(
        before=one,
        after=other,
        parts=_changes(one, other, PARTS, ()),
        kernels=_changes(one, other, BUSY, ("name",)),
        causes=_changes(one, other, ("idle",), ("cause",)),
        idle=_changes(one, other, ("idle",), ("cause", "name")),
        collectives=_changes(one, other, ("exposed_communication",), ("collective", "shape")),
        shapes=_changes(one, other, BUSY, ("operator", "collective", "shape")),
        notes=tuple(notes),
    )


def _at_work(timelines: Sequence[Timeline], side: str, notes: list[str]) -> Ranks:
    """Those in which something ran, with their stretches."""
    found = [(timeline, stretches(timeline)) for timeline in timelines]
    notes += [f"{side}: rank {timeline.rank} is left out: nothing ran" for timeline, parts in found if not parts]
    ranks = [(timeline, parts) for timeline, parts in found if parts]
    if not ranks:
        raise NothingToCompare(
            f"{side}: no trace of the {len(found)} holds a span that computes, communicates or copies; "
            "give traces that were taken while steps ran"
        )
    return ranks


def _have_steps(sides: Sequence[Ranks], notes: list[str]) -> bool:
    """Whether every rank of both sides has a whole step; where one has none, steps have nothing to compare with."""
    lacking = [
        f"rank {timeline.rank} {side}"
        for side, ranks in zip(("before", "after"), sides, strict=True)
        for timeline, parts in ranks
        if not any(found.part == "step" for found in parts)
    ]
    if lacking:
        notes.append(f"no whole step in the trace of {', '.join(lacking)}: whole traces are compared, not steps")
    return not lacking


def _counted(mean: MeanStep, part: str) -> str:
    return f"{mean.steps} whole {part}{'s' * (mean.steps > 1)} of {len(mean.ranks)} rank{'s' * (len(mean.ranks) > 1)}"


def _changes(one: MeanStep, other: MeanStep, parts: Sequence[Part], fields: Sequence[str]) -> tuple[Change, ...]:
    """Those of the parts of a step, put together over what differs in these fields alike; the greatest share first."""
    before, after = (_together(mean, parts, fields) for mean in (one, other))
    found = [
        Change(item=item, before=before.get(item), after=after.get(item)) for item in dict.fromkeys([*before, *after])
    ]
    sign = -1 if other.step_ns < one.step_ns else 1
    return tuple(sorted(found, key=lambda change: (-sign * change.change_ns, change.item)))


def _together(mean: MeanStep, parts: Sequence[Part], fields: Sequence[str]) -> dict[Item, Amount]:
    found: dict[Item, Amount] = {}
    for item, amount in mean.amounts.items():
        if item.part in parts:
            wider = Item(part=item.part, **{field: getattr(item, field) for field in fields})
            found[wider] = found.get(wider, NOTHING) + amount
    return found


def _effects(change: Change) -> tuple[Cell, ...]:
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
