"""The cause of worse figures in words and as JSON: what changed, where the time went, which rank, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bench.reports.format import shortened
from bench.suites.gate.cause.changes import Change
from bench.suites.gate.cause.likely import change_words
from bench.suites.gate.cause.where import StepChange, TraceChange, TracedChange, in_words, seconds_words, unit_of
from bench.suites.gate.causes import Cause

CHANGES_SHOWN = 3
TRACED_SHOWN = 3
_NAME_WIDTH = 48


def cause_lines(cause: Cause, names: Sequence[str], *, has_details: bool) -> Iterator[str]:
    """Yield the cause in lines, of which the first is the likely cause.

    names: of the figures. has_details: all that changed, also where one change is blamed, all parts, more kernels, and
    what could not be told.
    """
    against = "" if cause.good_run is None else f", {cause.bad_run} against {cause.good_run}"
    yield f"cause of {cause.case} ({', '.join(names)}){against}:"
    yield f"  {cause.line}"
    yield from (f"  {line}" for line in _changed(cause, has_details=has_details))
    if cause.time is not None:
        yield from (f"  {line}" for line in _parts(cause.time, has_details=has_details))
    if cause.traces is not None:
        yield from (f"  {line}" for line in _traced(cause.traces, cause.time, has_details=has_details))
    if cause.standout is not None:
        yield f"  {cause.standout.text}"
    if cause.missing:
        if has_details:
            yield from (f"  not told: {why}" for why in cause.missing)
        else:
            more = f" ({len(cause.missing) - 1} more with --details)" if len(cause.missing) > 1 else ""
            yield f"  not told: {cause.missing[0]}{more}"
    if cause.others:
        yield f"  with it: {', '.join(cause.others)} (--details shows each)"
    yield f"  next: {'; '.join(cause.commands)}"


def changed_words(changes: Sequence[Change]) -> str:
    """Return changes on one line, each with how often it happens: `driver 550.54 -> 560.28 (on 1 of 18 nights)`."""
    return ", ".join(f"{change_words(one)}{_how_often(one)}" for one in changes)


def _changed(cause: Cause, *, has_details: bool) -> Iterator[str]:
    if has_details:
        yield from (f"changed: {changed_words([one])}" for one in cause.changes)
    elif cause.changes:
        # Where none is blamed, whoever looks has to choose among all.
        shown = cause.changes[: CHANGES_SHOWN if cause.is_likely else None]
        left_out = len(cause.changes) - len(shown)
        yield f"changed: {changed_words(shown)}{f' and {left_out} more (--details)' if left_out else ''}"


def _how_often(one: Change) -> str:
    with_it = "" if one.carried_by is None else f", with the {one.carried_by}"
    return with_it if one.changed_on is None else f" (on {one.changed_on} of {one.nights} nights{with_it})"


def _parts(time: StepChange, *, has_details: bool) -> Iterator[str]:
    unit = unit_of(time.step.change_s)
    shown = [one for one in time.parts if (has_details and one.change_s) or one.is_shown]
    shown.sort(key=lambda one: -abs(one.change_s))
    words = "; ".join(f"{one.name} {in_words(one, unit)}" for one in shown) or "no part stands out"
    yield f"step {in_words(time.step, unit)}: {words}"
    if has_details:
        yield f"parts: of {time.good_trials} trials before and {time.bad_trials} after"
        yield from time.notes


def _traced(traces: TraceChange, time: StepChange | None, *, has_details: bool) -> Iterator[str]:
    unit = unit_of(traces.step_s)
    if time is not None and traces.step_s * time.step.change_s <= 0:
        yield f"traced step {seconds_words(traces.step_s, unit)}: the change is not in the steps that were traced"
        return
    most = None if has_details else TRACED_SHOWN
    found = [("kernels", traces.kernels[:most]), ("collectives", traces.collectives[:most])]
    words = [
        f"{title} {', '.join(_traced_words(one, short[one.name], unit) for one in changes)}"
        for title, changes in found
        if (short := shortened((one.name for one in changes), _NAME_WIDTH))
    ]
    yield f"traced step {seconds_words(traces.step_s, unit)}: {'; '.join(words) or 'no kernel stands out'}"
    if has_details:
        yield from traces.notes


def _traced_words(one: TracedChange, name: str, unit: str) -> str:
    seen = "" if one.seen == "both" else f" ({one.seen})"
    return f"{name} {seconds_words(one.change_s, unit)}{seen}"


def cause_document(cause: Cause) -> dict[str, Any]:
    """Return the cause as JSON's values; its figures are named by metric and labels."""
    fields: dict[str, Any] = msgspec.to_builtins(cause)
    fields["figures"] = [{"metric": one.key.metric, "labels": one.labels} for one in cause.figures]
    return fields
