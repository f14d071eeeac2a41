"""Leaves out events with impossible times, and checks that host and device are on the same clock.

Times have a range: no kernel runs for hours or for no time, and no event is hours from all others. They also have
relations: a stream runs one kernel after the other in the order of launch, a kernel begins after its launch, a device's
synchronisation ends after the work that it waited for, and a step ends before the next begins. A single event that
breaks a relation is left out. If many kernels break a relation to the host, the clocks of host and device differ: the
device's times are shifted if launches and synchronisations bound the difference closely.

Limits are based on 60 public traces of CUDA and ROCm: no stream left its order of launch, no kernel ended later than
8 us after its synchronisation, no work had a length of 0, in whole microseconds or not, and no steps overlapped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import STEP, STEPS
from collectors.traces.intervals import Times
from collectors.traces.reading.device_order import (
    CLOCKS_AGREE_NS,
    UNKNOWN_NS,
    early_by_ns,
    is_alone,
    is_at_work,
    is_late_alone,
    is_of,
    is_out_of_order,
    late_by_ns,
    launches_of,
    outlasts_next,
)
from collectors.traces.reading.raw_events import AT_WORK, CALLS, CATEGORIES, ON_DEVICE, RawEvents
from collectors.traces.timeline import ABSENT

Mask = NDArray[np.bool_]

LATEST_NS = int(np.iinfo(np.int64).max)
SECOND_NS = 10**9
MINUTE_NS, HOUR_NS = 60 * SECOND_NS, 3600 * SECOND_NS

LONGEST_NS = HOUR_NS
"""Maximum duration of a kernel, operator or call: torch ends a collective that hangs after at most half an hour."""

LONGEST_ANNOTATION_NS = 24 * HOUR_NS
"""Maximum duration of an annotation, which may surround a whole training."""

FAR_NS = HOUR_NS
"""Events that are further from all others in a trace have another clock, or no time."""

LONGEST_QUEUE_NS = MINUTE_NS
"""At least one kernel in a trace begins sooner after its launch."""

MANY_TIMES = 10
"""A wait or a step that exceeds the span of all other events by this factor has no cause in the trace."""

SHORTEST_NS = 1000
"""In whole microseconds, work that elsewhere lasts up to this long may be written with a length of 0."""

CLOSELY_NS = 20_000
"""A difference of clocks is corrected if it is known to within this."""

FEW = 1000
"""A single early kernel among more than this is an error of its own; a larger share is due to the clocks."""

_ANNOTATION, _OPERATOR = CATEGORIES.index("user_annotation"), CATEGORIES.index("cpu_op")

# The range of each event by itself.


def drop_impossible(raw: RawEvents, base_ns: int) -> tuple[RawEvents, tuple[str, ...], tuple[int, ...]]:
    """Return the events with possible times, shifted by base_ns; a line for each kind of fault; and the correlations of
    the events left out."""
    latest_ns = LATEST_NS - max(base_ns, 0)
    is_backward = raw.duration_ns < 0
    is_too_long = raw.duration_ns > np.where(raw.category == _ANNOTATION, LONGEST_ANNOTATION_NS, LONGEST_NS)
    is_beyond = ~(is_backward | is_too_long) & (raw.start_ns > latest_ns - np.maximum(raw.duration_ns, 0))
    is_kept = raw.allocations.time_ns <= latest_ns
    beyond = int(is_beyond.sum()) + int((~is_kept).sum())
    lines = []
    if backward := int(is_backward.sum()):
        lines.append(
            "1 event that ends before it begins" if backward == 1 else f"{backward} events that end before they begin"
        )
    if too_long := int(is_too_long.sum()):
        longest = long_time(int(raw.duration_ns.max()))
        lines.append(
            f"1 event that lasts {longest}: nothing in a trace runs so long"
            if too_long == 1
            else f"{too_long} events that last up to {longest}: nothing in a trace runs so long"
        )
    if beyond:
        late = "1 event that ends" if beyond == 1 else f"{beyond} events that end"
        lines.append(f"{late} later than 64 bits of nanoseconds can tell, counted from the trace's base")
    untimed: tuple[int, ...] = ()
    if lines:
        is_wrong = is_backward | is_too_long | is_beyond
        untimed = _correlations(raw, is_wrong)
        raw = raw.at(~is_wrong, is_kept)
    np.add(raw.start_ns, base_ns, out=raw.start_ns)
    moved = replace(raw.allocations, time_ns=raw.allocations.time_ns + base_ns)
    return replace(raw, allocations=moved), tuple(lines), untimed


def long_time(time_ns: int) -> str:
    """Return a long time in the largest unit that it reaches twice: "292 years", "700 hours", "3 s"."""
    for unit, unit_ns in (
        ("years", 8766 * HOUR_NS),
        ("days", 24 * HOUR_NS),
        ("hours", HOUR_NS),
        ("minutes", 60 * SECOND_NS),
    ):
        if time_ns >= 2 * unit_ns:
            return f"{time_ns / unit_ns:.0f} {unit}"
    for unit, unit_ns in (("s", SECOND_NS), ("ms", 10**6)):
        if time_ns >= unit_ns:
            return f"{time_ns / unit_ns:.3g} {unit}"
    return f"{time_ns / 1e3:.3g} us"


def _correlations(raw: RawEvents, chosen: Mask) -> tuple[int, ...]:
    """Return the correlations of the chosen launches and work on the device."""
    of_work = chosen & (raw.correlation != ABSENT) & is_of(raw, (*AT_WORK, *CALLS))
    return tuple(np.unique(raw.correlation[of_work]).tolist())


# Relations between events.


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The events with plausible times.

    lines: one for each kind of fault. untimed: the correlations of the launches and the work that were left out.
    clocks_differ: times of the host and the device are not comparable.
    """

    raw: RawEvents
    lines: tuple[str, ...]
    untimed: tuple[int, ...]
    clocks_differ: bool


def believed(raw: RawEvents, base_ns: int) -> Believed:
    """Return the events whose times do not contradict others; the device's are on the host's clock if possible.

    base_ns: the origin of the trace's times, which has been added to them.
    """
    lines: list[str] = []
    untimed: list[int] = []
    launch = launches_of(raw)

    def leave_out(
        wrong: Mask, text: str, changes: Mask | None = None, *, noun: str = "event", is_named: bool = False
    ) -> None:
        nonlocal raw, launch
        wrong_changes = np.zeros(raw.allocations.time_ns.size, dtype=np.bool_) if changes is None else changes
        if count := int(wrong.sum()) + int(wrong_changes.sum()):
            names = [raw.names[number] for number in np.unique(raw.name[wrong]).tolist()] if is_named else []
            which = f": {_listed(names)}" if names else ""
            lines.append(f"{count} {noun}{'s' * (count > 1)} {text}{which}")
            untimed.extend(_correlations(raw, wrong))
            raw = raw.at(~wrong, ~wrong_changes)
            launch = launches_of(raw)

    host, device = _extents(raw, base_ns)
    is_far = _is_far(raw, host, device)
    at_zero = _is_zero(raw.start_ns, base_ns)
    of_memory = raw.allocations.time_ns
    far_changes = np.zeros(of_memory.size, dtype=np.bool_) if host is None else _outside(of_memory, of_memory, host)
    zero_changes = far_changes & _is_zero(of_memory, base_ns)
    never = at_zero & (is_far | _is_empty_at_zero(raw, at_zero))
    leave_out(never, "at time 0: the profiler never took the time", zero_changes)
    host, device = _extents(raw, base_ns)
    of_memory = raw.allocations.time_ns
    far_changes = np.zeros(of_memory.size, dtype=np.bool_) if host is None else _outside(of_memory, of_memory, host)
    leave_out(_is_far(raw, host, device), "hours before or after all others", far_changes)
    leave_out(
        _is_unbelievably_short(raw), "on the device without a length, whose end the profiler never took", is_named=True
    )
    if rounded := int(_is_empty(raw).sum()):
        have = f"{rounded} events on the device have" if rounded > 1 else "1 event on the device has"
        lines.append(
            f"nothing, though {have} a length of 0: the trace rounds to whole microseconds, and others of their names"
            " last 1 us"
        )
    leave_out(_is_mark(raw) & (raw.duration_ns == 0), "without a length", noun="step mark", is_named=True)
    leave_out(
        _is_mark_far_off(raw), "that begins or ends minutes from all other events", noun="step mark", is_named=True
    )
    leave_out(
        _overlaps_mark(raw),
        "that reached into another: a step ends before the next begins",
        noun="step mark",
        is_named=True,
    )
    leave_out(
        outlasts_next(raw), "on the device that ended seconds after the next on the same stream began", is_named=True
    )
    early_ns = early_by_ns(raw, launch)
    leave_out(is_alone(early_ns), "on the device that began seconds before the launch, unlike others", is_named=True)
    leave_out(
        is_out_of_order(raw, launch), "on the device that began out of its stream's order of launch", is_named=True
    )
    leave_out(
        is_late_alone(raw, launch),
        "on the device that ended after the synchronisation that waited for it, unlike others",
        is_named=True,
    )
    raw, of_clocks, clocks_differ = _on_one_clock(raw, launch, *_extents(raw, base_ns))
    return Believed(raw=raw, lines=(*lines, *of_clocks), untimed=tuple(untimed), clocks_differ=clocks_differ)


NAMED, LONGEST_NAME = 2, 60
"""Maximum number of names in a line, and length of each."""


def _listed(names: list[str]) -> str:
    shortened = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..." for name in names[:NAMED]]
    return ", ".join(shortened) + (f" and {len(names) - NAMED} more names" if len(names) > NAMED else "")


Extent = tuple[int, int]


def _is_zero(time_ns: Times, base_ns: int) -> Mask:
    """Return whether each time is 0 in the trace; a profiler also writes 0 for times before its base."""
    is_zero: Mask = (time_ns == 0) | (time_ns == base_ns)
    return is_zero


def _is_on_device(raw: RawEvents) -> Mask:
    """Return whether each event's time is from the device's clock, which includes the device's waits."""
    return is_of(raw, ON_DEVICE)


def _extents(raw: RawEvents, base_ns: int) -> tuple[Extent | None, Extent | None]:
    """Return the first and the last start among the bulk of the host's events, and of the device's events."""
    is_device, at_zero = _is_on_device(raw), _is_zero(raw.start_ns, base_ns)
    host, device = (_bulk(raw.start_ns[chosen], at_zero[chosen]) for chosen in (~is_device, is_device))
    return host, device


def _bulk(start_ns: Times, at_zero: Mask) -> Extent | None:
    """Return the bounds of the largest set of starts without a gap of hours; zeros count only if near others.

    Example: starts of 0, 0 and 7 hours give (7, 7) hours.
    """
    if not start_ns.size:
        return None
    first_ns, last_ns = int(start_ns.min()), int(start_ns.max())
    if last_ns - first_ns <= FAR_NS:
        return first_ns, last_ns
    ordered = np.argsort(start_ns, kind="stable")
    # Python's integers, which cannot overflow if times are years apart.
    begins = np.flatnonzero(np.diff(start_ns[ordered].astype(np.float64)) > FAR_NS) + 1
    sets = np.split(ordered, begins)
    largest = max(sets, key=lambda rows: (int((~at_zero[rows]).sum()), int(start_ns[rows[-1]])))
    return int(start_ns[largest[0]]), int(start_ns[largest[-1]])


def _outside(start_ns: Times, end_ns: Times, extent: Extent) -> Mask:
    is_outside: Mask = (start_ns > extent[1] + FAR_NS) | (end_ns < extent[0] - FAR_NS)
    return is_outside


def _is_far(raw: RawEvents, host: Extent | None, device: Extent | None) -> Mask:
    """Return whether each event is hours from the bulk of its side, or of the host if all device starts are equal."""
    is_device, end_ns = _is_on_device(raw), raw.start_ns + raw.duration_ns
    is_far = np.zeros(end_ns.size, dtype=np.bool_)
    for chosen, extent in ((~is_device, host), (is_device, device)):
        if extent is not None:
            is_far |= chosen & _outside(raw.start_ns, end_ns, extent)
    if host is not None and device is not None and device[0] == device[1]:
        # All of the device's work begins at the same moment, for example 0.
        is_far |= is_device & _outside(raw.start_ns, end_ns, host)
    return is_far


def _is_empty_at_zero(raw: RawEvents, at_zero: Mask) -> Mask:
    """Return whether each event of a trace that counts from 0 has no time: without length, or before its launch."""
    if not at_zero.any():
        return at_zero
    is_empty = (raw.duration_ns == 0) & (is_at_work(raw) | _is_mark(raw))
    early_ns = early_by_ns(raw, launches_of(raw))
    others = early_ns[~at_zero & (early_ns != UNKNOWN_NS)]
    is_early = early_ns > CLOCKS_AGREE_NS
    if others.size and np.median(others) > CLOCKS_AGREE_NS:
        is_early[:] = False  # All begin before their launch, so the clocks differ.
    has_no_time: Mask = at_zero & (is_empty | is_early)
    return has_no_time


def _is_empty(raw: RawEvents) -> Mask:
    """Return whether each event is launched work with a length of 0."""
    is_empty: Mask = is_at_work(raw) & (raw.duration_ns == 0)
    return is_empty & (launches_of(raw) != ABSENT) if is_empty.any() else is_empty


def _is_unbelievably_short(raw: RawEvents) -> Mask:
    """Return whether each launched work has a length of 0 although it must have run longer.

    A trace in whole microseconds may round down to 0: there, 0 is plausible if work with this name elsewhere lasts 1.
    """
    is_zero = _is_empty(raw)
    if not is_zero.any() or (raw.start_ns % 1000).any() or (raw.duration_ns % 1000).any():
        return is_zero
    is_shortest = is_at_work(raw) & (raw.duration_ns > 0) & (raw.duration_ns <= SHORTEST_NS)
    return is_zero & ~np.isin(raw.name, np.unique(raw.name[is_shortest]))


# Marks of steps.


def _is_mark(raw: RawEvents) -> Mask:
    """Return whether each event marks a step on the host."""
    is_named = np.array([*(STEPS.match(name) is not None for name in raw.names), False], dtype=np.bool_)[raw.name]
    is_mark: Mask = is_named & ((raw.category == _ANNOTATION) | (raw.category == _OPERATOR))
    return is_mark


def _is_mark_far_off(raw: RawEvents) -> Mask:
    """Return whether each mark is far from all other host events: minutes, and many times their total span."""
    is_mark, end_ns = _is_mark(raw), raw.start_ns + raw.duration_ns
    others = ~(is_mark | _is_on_device(raw) | (raw.category == _ANNOTATION))  # An annotation may surround a training.
    if not is_mark.any() or not others.any():
        return np.zeros_like(is_mark)
    first_ns, last_ns = int(raw.start_ns[others].min()), int(end_ns[others].max())
    allowed_ns = max(MANY_TIMES * (last_ns - first_ns), MINUTE_NS)
    is_off: Mask = is_mark & ((raw.start_ns < first_ns - allowed_ns) | (end_ns > last_ns + allowed_ns))
    return is_off


def _overlaps_mark(raw: RawEvents) -> Mask:
    """Return whether each mark of a thread's steps overlaps another: the longer if it contains the other, else both."""
    overlaps = np.zeros(raw.start_ns.size, dtype=np.bool_)
    rows, end_ns = np.flatnonzero(_is_mark(raw)), raw.start_ns + raw.duration_ns
    is_ours = np.array([*(name == STEP for name in raw.names), False], dtype=np.bool_)[raw.name]
    rows = rows[np.lexsort((raw.start_ns[rows], raw.thread[rows], raw.process[rows], is_ours[rows]))]
    this, following = rows[:-1], rows[1:]
    # A mark that is written twice does not count as an overlap.
    is_same = (raw.start_ns[this] != raw.start_ns[following]) | (end_ns[this] != end_ns[following])
    for column in (raw.thread, raw.process, is_ours):
        is_same &= column[this] == column[following]
    reaches = is_same & (end_ns[this] - raw.start_ns[following] > CLOCKS_AGREE_NS)
    overlaps[this[reaches]] = True
    overlaps[following[reaches & (end_ns[this] < end_ns[following])]] = True
    return overlaps


def _on_one_clock(
    raw: RawEvents, launch: NDArray[np.int64], host: Extent | None, device: Extent | None
) -> tuple[RawEvents, tuple[str, ...], bool]:
    """Return the events on a common clock, a line if the clocks differed, and whether they still differ."""
    early_ns, (late_ns, waited_by) = early_by_ns(raw, launch), late_by_ns(raw, launch)
    launched, waited = early_ns[early_ns != UNKNOWN_NS], late_ns[late_ns != UNKNOWN_NS]
    kernels = launched.size
    # A single kernel may be early by itself; a clock offset makes the last kernels before synchronisations late.
    synchronisations = np.unique(waited_by[waited_by != ABSENT]).size
    contradicted = np.unique(waited_by[late_ns > CLOCKS_AGREE_NS]).size
    if int((launched > CLOCKS_AGREE_NS).sum()) * FEW > kernels:
        early, most = int((launched > 0).sum()), long_time(int(launched.max()))
        why = f"{early} of {kernels} kernels begin before their launch, by up to {most}"
    elif synchronisations and 2 * contradicted >= synchronisations:
        late, most = int((waited > 0).sum()), long_time(int(waited.max()))
        why = f"{late} of {waited.size} kernels end after the synchronisation that waited for them, by up to {most}"
    elif kernels and -int(launched.max()) > _longest_queue_ns(raw):
        why = f"all {kernels} kernels begin at least {long_time(-int(launched.max()))} after their launch"
    elif not kernels and host and device and (device[0] > host[1] + FAR_NS or device[1] < host[0] - FAR_NS):
        why = f"the device's events are {long_time(abs(device[0] - host[0]))} from the host's"
    else:
        return raw, (), False
    # With a smaller shift, a kernel begins before its launch; with a larger one, one ends after its synchronisation.
    least_ns, most_ns = int(launched.max(initial=UNKNOWN_NS)), -int(waited.max(initial=UNKNOWN_NS))
    if kernels and waited.size and 0 <= most_ns - least_ns <= CLOSELY_NS:
        moved_ns = (least_ns + most_ns) // 2
        start_ns = np.where(_is_on_device(raw), raw.start_ns + moved_ns, raw.start_ns)
        way = "later" if moved_ns > 0 else "earlier"
        line = (
            f"nothing, though the clocks of host and device differ ({why}): the device's times are moved"
            f" {long_time(abs(moved_ns))} {way}, which launches and synchronisations bound within"
            f" {long_time(most_ns - least_ns)}"
        )
        return replace(raw, start_ns=start_ns), (line,), False
    return raw, (f"everything that compares host and device, such as steps: their clocks differ: {why}",), True


def _longest_queue_ns(raw: RawEvents) -> int:
    """Return the maximum delay of all kernels after their launches: `MANY_TIMES` the span of the host or the device."""
    is_device, end_ns = _is_on_device(raw), raw.start_ns + raw.duration_ns
    spans_ns = [int(end_ns[side].max() - raw.start_ns[side].min()) for side in (is_device, ~is_device) if side.any()]
    return min(LONGEST_QUEUE_NS, max(SECOND_NS, MANY_TIMES * max(spans_ns)))
