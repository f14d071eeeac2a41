"""Makes the scaling curves of a suite run from cases that differ only in ranks and, for weak scaling, in the batch.

Each curve has efficiency and speed-up relative to its fewest ranks, fitted laws, and the parts of the lost time. Weak
and strong scaling are never in one curve.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from bench.analysis.scaling.laws import LAWS, NoScalingFit, ScalingFit, WorldSize, fit
from bench.case import Case
from bench.errors import Misuse
from bench.results.efficiency import Loss, Scaling, loss_of, scaling_between, scaling_efficiency
from bench.results.estimate import Estimate, EstimatedRatio, of_metric, ratio
from bench.results.step_parts import MeasuredStep
from bench.store.summary import Summary
from collectors.metrics.results import RUN_MEAN_STEP_SECONDS, RUN_TOKENS_PER_SECOND


class CaseEnd(Protocol):
    """The facts about a case of a suite run that a curve needs: how it ended, and its measurements."""

    @property
    def name(self) -> str: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def run(self) -> str | None: ...
    @property
    def summary(self) -> Summary | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One case of a curve. name: in its suite. step: its mean step.

    efficiency, speed_up, loss: relative to the curve's base, for which they are None. loss: a text says why it is
    unknown. ideal_speed_up: the ranks divided by those of the base.
    """

    name: str
    summary: Summary
    step: Estimate
    throughput: Estimate
    efficiency: EstimatedRatio | None
    speed_up: EstimatedRatio | None
    ideal_speed_up: float
    loss: Loss | str | None

    @property
    def ranks(self) -> int:
        """Ranks of the case."""
        return self.summary.case.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """A curve of weak or strong scaling.

    name: the common part of its cases' names. points: by ranks; the first is the base of the others. left_out: cases
    that belong to the curve but have no point, each with the reason. notes: further notes for the reader.
    """

    name: str
    scaling: Scaling
    points: tuple[CurvePoint, ...]
    fits: tuple[ScalingFit | NoScalingFit, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def base(self) -> CurvePoint:
        """The point that the others are relative to."""
        return self.points[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A completely measured case."""

    name: str
    summary: Summary
    step: Estimate
    throughput: Estimate

    @property
    def table(self) -> str:
        """Its table in the suite's file: `ddp` of `ddp[ranks=2]`."""
        return self.name.partition("[")[0]

    @property
    def case(self) -> Case:
        return self.summary.case


def curves_of(ends: Iterable[CaseEnd]) -> tuple[ScalingCurve, ...]:
    """Return the curves of a suite run, in the order of its cases; empty if no two cases form one."""
    ends = list(ends)
    measured = [candidate for end in ends if (candidate := _candidate(end)) is not None]
    families: dict[str, list[_Candidate]] = {}
    for candidate in measured:
        families.setdefault(_family_of(candidate.summary), []).append(candidate)
    curves = []
    for family in families.values():
        for scaling, members in (*_groups(family, "weak"), *_groups(family, "strong")):
            if (curve := _curve(scaling, members, measured, ends)) is not None:
                curves.append(curve)
    order = {candidate.name: place for place, candidate in enumerate(measured)}
    return tuple(sorted(curves, key=lambda curve: min(order[point.name] for point in curve.points)))


def not_measured(ends: Iterable[CaseEnd]) -> tuple[str, ...]:
    """Return each case that did not succeed, and why; fire drills that ended as expected are not included."""
    return tuple(_reason_not_measured(end) for end in ends if end.outcome != "done")


def _candidate(end: CaseEnd) -> _Candidate | None:
    summary = end.summary
    if end.outcome != "done" or summary is None or summary.outcome != "done" or summary.case.model is None:
        return None
    step, rate = (of_metric(summary.estimates, metric) for metric in (RUN_MEAN_STEP_SECONDS, RUN_TOKENS_PER_SECOND))
    if not step or not rate:
        return None
    return _Candidate(name=end.name, summary=summary, step=step[0], throughput=rate[0])


def _reason_not_measured(end: CaseEnd) -> str:
    outcome = "did not run" if end.outcome is None else end.outcome.replace("_", " ")
    return f"{end.name}: {outcome}" + ("" if end.reason is None else f": {end.reason}")


# Families and their curves


def _family_of(summary: Summary) -> str:
    """Return a key of everything that the cases of a family share: all except ranks, nodes, batch and `accumulate`."""
    key = json.loads(summary.case.key())
    for name in ("ranks", "nodes"):
        key.pop(name, None)
    key["model"].pop("batch")
    key["options"].pop("accumulate", None)  # It does not change the batch: see `scaling_between`.
    return json.dumps([key, summary.case.trace_steps, summary.hardware], sort_keys=True)


def _groups(family: Iterable[_Candidate], scaling: Scaling) -> Iterator[tuple[Scaling, list[_Candidate]]]:
    """Yield groups of cases with equal work: of each training rank (weak), or of all together (strong).

    Example: ddp with (ranks, batch) = (1, 4), (2, 8), (1, 8) has the weak group (1, 4), (2, 8) and the strong group (1,
        8), (2, 8).
    """
    by_work: dict[Fraction, list[_Candidate]] = {}
    for candidate in family:
        share = candidate.case.spec().training_ranks(candidate.case) if scaling == "weak" else 1
        if share:
            by_work.setdefault(Fraction(candidate.case.shape.batch, share), []).append(candidate)
    for alike in by_work.values():
        # Of two cases that differ only in `accumulate`, the one from the table with more cases is used.
        tables = Counter(candidate.table for candidate in alike)
        by_ranks = {
            candidate.case.ranks: candidate
            for candidate in sorted(alike, key=lambda candidate: tables[candidate.table])
        }
        members = [by_ranks[ranks] for ranks in sorted(by_ranks)]
        if len(members) > 1 and all(_is_scaled(candidate, members[0], scaling) for candidate in members[1:]):
            yield scaling, members


def _is_scaled(candidate: _Candidate, base: _Candidate, scaling: Scaling) -> bool:
    try:
        return scaling_between(candidate.case, base.case) == scaling
    except Misuse:
        return False


def _curve(
    scaling: Scaling, members: Sequence[_Candidate], measured: Sequence[_Candidate], ends: Sequence[CaseEnd]
) -> ScalingCurve | None:
    name = _shared_name([member.name for member in members])
    if (other := _declared_base(scaling, members, measured)) is not None:
        members = [other, *members]
    base = members[0]
    points = tuple(_point(member, base) for member in members)
    worlds = [WorldSize(ranks=point.ranks, throughputs=point.throughput.trials) for point in points]
    tables = {member.table for member in members}
    notes = []
    if other is not None:
        notes.append(f"the base is {other.name}, {other.case.title}, as the suite declares")
    for what, values in (
        ("commits", {member.summary.commit for member in members}),
        ("versions of torch", {member.summary.torch_version for member in members}),
    ):
        if len(values) > 1:
            notes.append(
                f"its cases were measured by several {what}: {', '.join(sorted(str(value)[:12] for value in values))}"
            )
    return ScalingCurve(
        name=name,
        scaling=scaling,
        points=points,
        fits=tuple(fit(law, worlds) for law in LAWS[scaling]),
        left_out=tuple(
            _reason_not_measured(end)
            for end in ends
            if end.outcome != "done" and _belongs(end, tables, members, scaling)
        ),
        notes=tuple(notes),
    )


def _belongs(end: CaseEnd, tables: set[str], members: Sequence[_Candidate], scaling: Scaling) -> bool:
    """Whether a case that did not succeed belongs to this curve: by its workload, or by its table if it never began."""
    if end.summary is None:
        return end.name.partition("[")[0] in tables
    case = end.summary.case
    if case.model is None or _family_of(end.summary) not in {_family_of(member.summary) for member in members}:
        return False
    shares = [
        Fraction(scaled_case.shape.batch, scaled_case.spec().training_ranks(scaled_case) if scaling == "weak" else 1)
        for scaled_case in (case, members[-1].case)
    ]
    return shares[0] == shares[1]


def _declared_base(
    scaling: Scaling, members: Sequence[_Candidate], measured: Sequence[_Candidate]
) -> _Candidate | None:
    """Return the declared baseline of all members, if it is a case of another strategy; else None."""
    runs = {
        efficiency.baseline_run
        for member in members
        for efficiency in member.summary.scaling
        if efficiency.scaling == scaling
    }
    others = [candidate for candidate in measured if {candidate.summary.run} == runs and candidate not in members]
    if not others or others[0].case.ranks >= members[0].case.ranks:
        return None
    return others[0] if all(_is_scaled(member, others[0], scaling) for member in members) else None


def _shared_name(names: Sequence[str]) -> str:
    """Return the tables of these cases with the values that all share, for example `ddp[ranks=2,precision=bf16]`."""
    tables = dict.fromkeys(name.partition("[")[0] for name in names)
    values = [name.partition("[")[2].removesuffix("]").split(",") for name in names]
    shared = [value for value in values[0] if value and all(value in of_name for of_name in values[1:])]
    return " and ".join(tables) + (f"[{','.join(shared)}]" if shared else "")


def _point(candidate: _Candidate, base: _Candidate) -> CurvePoint:
    efficiency = speed_up = loss = None
    if candidate is not base:
        efficiency = scaling_efficiency(
            candidate.case, candidate.throughput.trials, base.case, base.throughput.trials, base.summary.run
        ).ratio
        speed_up = ratio(candidate.throughput, base.throughput)
        loss = loss_of(
            MeasuredStep(case=candidate.case, estimates=candidate.summary.estimates),
            MeasuredStep(case=base.case, estimates=base.summary.estimates),
        )
    return CurvePoint(
        name=candidate.name,
        summary=candidate.summary,
        step=candidate.step,
        throughput=candidate.throughput,
        efficiency=efficiency,
        speed_up=speed_up,
        ideal_speed_up=candidate.case.ranks / base.case.ranks,
        loss=loss,
    )
