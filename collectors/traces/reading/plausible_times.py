"""Leaves out events whose times cannot be true, and checks that host and device are on one clock.

A time has a range: no kernel runs for hours, and no event is hours from all others. And it has relations: a stream runs
one kernel after the other, a kernel begins after its launch, and a device's synchronisation ends after what it waited
for. An event that breaks one alone is left out. Where many kernels break a relation to the host, the clocks of host and
device differ: the device's times are moved where launches and synchronisations bound the difference closely.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import STEPS
from collectors.traces.intervals import Times
from collectors.traces.reading.raw_events import AT_WORK, CALLS, CATEGORIES, ON_DEVICE, RawEvents
from collectors.traces.timeline import ABSENT

Mask = NDArray[np.bool_]

LATEST_NS = int(np.iinfo(np.int64).max)
SECOND_NS = 10**9
HOUR_NS = 3600 * SECOND_NS

LONGEST_NS = HOUR_NS
"""No kernel, operator or call lasts longer: torch ends a collective that hangs after at most half an hour."""

LONGEST_ANNOTATION_NS = 24 * HOUR_NS
"""An annotation may surround a whole training."""

FAR_NS = HOUR_NS
"""Events of a trace that are further from all others have another clock, or no time."""

CLEARLY_NS = SECOND_NS
"""A time that contradicts another by more is wrong itself: streams and graphs explain no such overlap."""

CLOCKS_AGREE_NS = 10_000
"""Kineto puts host and device on one clock, about as closely as this."""

LONGEST_QUEUE_NS = 60 * SECOND_NS
"""Of all kernels in a trace, at least one begins sooner after its launch."""

CLOSELY_NS = 20_000
"""A difference of clocks is corrected where it is known as closely as this."""

FEW = 1000
"""One early kernel among more than this is its own fault; a larger share is the fault of the clocks."""

_ANNOTATION = CATEGORIES.index("user_annotation")
_DEVICE_SYNCHRONISES = re.compile(r"DeviceSynchronize$")

# Range, by each event alone.


def drop_impossible(raw: RawEvents, base_ns: int) -> tuple[RawEvents, tuple[str, ...], tuple[int, ...]]:
    """Return the events whose times are possible, moved later by base_ns; a line for each kind of fault; and the
    correlations of what is left out."""
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
    """Return a long time in the largest unit of which it has two: "292 years", "700 hours", "3 s"."""
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
    of_work = chosen & (raw.correlation != ABSENT) & np.isin(raw.category, (*AT_WORK, *CALLS))
    return tuple(np.unique(raw.correlation[of_work]).tolist())


# Relations between events.


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The events whose times are believed.

    lines: one for each kind of fault. untimed: the correlations of the launches and the work that were left out.
    clocks_differ: whether no time of the host may be compared with one of the device.
    """

    raw: RawEvents
    lines: tuple[str, ...]
    untimed: tuple[int, ...]
    clocks_differ: bool


def believed(raw: RawEvents, base_ns: int) -> Believed:
    """Return the events whose times do not contradict others; those of the device are on the host's clock if it is
    known. base_ns: what the times of the trace counted from, which they include."""
    lines: list[str] = []
    untimed: list[int] = []

    def leave_out(wrong: Mask, text: str, changes: Mask | None = None) -> None:
        nonlocal raw
        wrong_changes = np.zeros(raw.allocations.time_ns.size, dtype=np.bool_) if changes is None else changes
        if count := int(wrong.sum()) + int(wrong_changes.sum()):
            lines.append(f"{count} event{'s' * (count > 1)} {text}")
            untimed.extend(_correlations(raw, wrong))
            raw = raw.at(~wrong, ~wrong_changes)

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
    leave_out(_outlasts_next(raw), "on the device that ended seconds after the next on the same stream began")
    # Found once, and again only where something was left out: each takes a search for all launches.
    launch = launches_of(raw)
    before = raw
    leave_out(_is_alone(_early_ns(raw, launch)), "on the device that began seconds before the launch, unlike others")
    if raw is not before:
        launch = launches_of(raw)
    before = raw
    late = _late_ns(raw, launch)
    leave_out(_is_alone(late[0]), "on the device that ended seconds after the synchronisation, unlike others")
    if raw is not before:
        launch = launches_of(raw)
        late = _late_ns(raw, launch)
    raw, of_clocks, clocks_differ = _on_one_clock(raw, _early_ns(raw, launch), late, *_extents(raw, base_ns))
    return Believed(raw=raw, lines=(*lines, *of_clocks), untimed=tuple(untimed), clocks_differ=clocks_differ)


UNKNOWN_NS = -(2**62)
"""How far a span is early or late where that is not known."""

Extent = tuple[int, int]


def _is_zero(time_ns: Times, base_ns: int) -> Mask:
    """Whether the trace has 0 for the time; a profiler writes 0 also for what is before its base."""
    is_zero: Mask = (time_ns == 0) | (time_ns == base_ns)
    return is_zero


def _is_at_work(raw: RawEvents) -> Mask:
    return np.isin(raw.category, AT_WORK)


def _is_on_device(raw: RawEvents) -> Mask:
    """Whether each event has a time of the device's clock; the device's waits have."""
    return np.isin(raw.category, ON_DEVICE)


def _extents(raw: RawEvents, base_ns: int) -> tuple[Extent | None, Extent | None]:
    """Return the first and the last start among the bulk of the host's events, and among that of the device's."""
    is_device, at_zero = _is_on_device(raw), _is_zero(raw.start_ns, base_ns)
    host, device = (_bulk(raw.start_ns[chosen], at_zero[chosen]) for chosen in (~is_device, is_device))
    return host, device


def _bulk(start_ns: Times, at_zero: Mask) -> Extent | None:
    """Return the bounds of the largest set of starts without a gap of hours; zeros count only if near to others.

    Example: starts of 0, 0 and 7 hours give (7, 7) hours.
    """
    if not start_ns.size:
        return None
    first_ns, last_ns = int(start_ns.min()), int(start_ns.max())
    if last_ns - first_ns <= FAR_NS:
        return first_ns, last_ns
    ordered = np.argsort(start_ns, kind="stable")
    # Python's whole numbers, since years apart exceed no limit there.
    begins = np.flatnonzero(np.diff(start_ns[ordered].astype(np.float64)) > FAR_NS) + 1
    sets = np.split(ordered, begins)
    largest = max(sets, key=lambda rows: (int((~at_zero[rows]).sum()), int(start_ns[rows[-1]])))
    return int(start_ns[largest[0]]), int(start_ns[largest[-1]])


def _outside(start_ns: Times, end_ns: Times, extent: Extent) -> Mask:
    is_outside: Mask = (start_ns > extent[1] + FAR_NS) | (end_ns < extent[0] - FAR_NS)
    return is_outside


def _is_far(raw: RawEvents, host: Extent | None, device: Extent | None) -> Mask:
    """Return whether each event is hours from the bulk of its side; at 0 alone, also from that of the other side."""
    is_device, end_ns = _is_on_device(raw), raw.start_ns + raw.duration_ns
    is_far = np.zeros(end_ns.size, dtype=np.bool_)
    for chosen, extent in ((~is_device, host), (is_device, device)):
        if extent is not None:
            is_far |= chosen & _outside(raw.start_ns, end_ns, extent)
    if host is not None and device is not None and device[0] == device[1]:
        # All of the device's work begins at one moment, such as 0.
        is_far |= is_device & _outside(raw.start_ns, end_ns, host)
    return is_far


def _is_empty_at_zero(raw: RawEvents, at_zero: Mask) -> Mask:
    """Return which events of a trace that counts from 0 have no time: work without length, or before its launch."""
    if not at_zero.any():
        return at_zero
    marks = np.array([*(STEPS.match(name) is not None for name in raw.names), False], dtype=np.bool_)[raw.name]
    is_empty = (raw.duration_ns == 0) & (_is_at_work(raw) | (marks & (raw.category == _ANNOTATION)))
    early_ns = _early_ns(raw, launches_of(raw))
    others = early_ns[~at_zero & (early_ns != UNKNOWN_NS)]
    is_early = early_ns > CLOCKS_AGREE_NS
    if others.size and np.median(others) > CLOCKS_AGREE_NS:
        is_early[:] = False  # All begin before their launch: the clocks differ.
    has_no_time: Mask = at_zero & (is_empty | is_early)
    return has_no_time


def _outlasts_next(raw: RawEvents) -> Mask:
    """Return which work ends more than `CLEARLY_NS` after the next on its stream began."""
    found = np.zeros(raw.start_ns.size, dtype=np.bool_)
    rows = np.flatnonzero(_is_at_work(raw))
    rows = rows[np.lexsort((raw.start_ns[rows], raw.thread[rows], raw.process[rows]))]
    one, following = rows[:-1], rows[1:]
    is_same = (raw.thread[one] == raw.thread[following]) & (raw.process[one] == raw.process[following])
    overlap_ns = raw.start_ns[one] + raw.duration_ns[one] - raw.start_ns[following]
    found[one[is_same & (overlap_ns > CLEARLY_NS)]] = True
    return found


def launches_of(raw: RawEvents) -> NDArray[np.int64]:
    """Return for each work on the device the row of the first call of its correlation, else `ABSENT`."""
    launch = np.full(raw.start_ns.size, ABSENT, dtype=np.int64)
    is_correlated = raw.correlation != ABSENT
    calls = np.flatnonzero(np.isin(raw.category, CALLS) & is_correlated)
    rows = np.flatnonzero(_is_at_work(raw) & is_correlated)
    if calls.size and rows.size:
        calls = calls[np.lexsort((raw.start_ns[calls], raw.correlation[calls]))]
        correlations, wanted = raw.correlation[calls], raw.correlation[rows]
        index = np.minimum(np.searchsorted(correlations, wanted), calls.size - 1)
        is_held = correlations[index] == wanted
        launch[rows[is_held]] = calls[index[is_held]]
    return launch


def _early_ns(raw: RawEvents, launch: NDArray[np.int64]) -> Times:
    """Return by how much each work on the device begins before its launch; `UNKNOWN_NS` without a launch."""
    return np.where(launch == ABSENT, UNKNOWN_NS, raw.start_ns[launch] - raw.start_ns)


def _late_ns(raw: RawEvents, launch: NDArray[np.int64]) -> tuple[Times, NDArray[np.int64]]:
    """Return by how much each work ends after the first synchronisation of its device that was called after its launch,
    and the row of that.

    `UNKNOWN_NS` and `ABSENT` where there is none, and where several devices are in the trace: a call waits for one.
    """
    late_ns, waited_by = np.full(raw.start_ns.size, UNKNOWN_NS), np.full(raw.start_ns.size, ABSENT, dtype=np.int64)
    waits = np.array([*(_DEVICE_SYNCHRONISES.search(name) is not None for name in raw.names), False])[raw.name]
    waits = np.flatnonzero(waits & np.isin(raw.category, CALLS))
    if not waits.size or np.unique(raw.process[_is_at_work(raw)]).size != 1:
        return late_ns, waited_by
    waits = waits[np.argsort(raw.start_ns[waits], kind="stable")]
    rows = np.flatnonzero(launch != ABSENT)
    launched_ns = raw.start_ns[launch[rows]] + raw.duration_ns[launch[rows]]
    index = np.searchsorted(raw.start_ns[waits], launched_ns)
    rows, index = rows[index < waits.size], index[index < waits.size]
    waited_ns = raw.start_ns[waits[index]] + raw.duration_ns[waits[index]]
    late_ns[rows] = raw.start_ns[rows] + raw.duration_ns[rows] - waited_ns
    waited_by[rows] = waits[index]
    return late_ns, waited_by


def _is_alone(contradiction_ns: Times) -> Mask:
    """Return what contradicts the host clearly, unlike most others; nothing where most do."""
    is_known, is_wrong = contradiction_ns != UNKNOWN_NS, contradiction_ns > CLEARLY_NS
    is_most = 2 * int(is_wrong.sum()) >= int(is_known.sum())
    return np.zeros_like(is_wrong) if is_most else is_wrong


def _on_one_clock(
    raw: RawEvents,
    early_ns: Times,
    late: tuple[Times, NDArray[np.int64]],
    host: Extent | None,
    device: Extent | None,
) -> tuple[RawEvents, tuple[str, ...], bool]:
    """Return the events on one clock, a line on what is wrong with the clocks, and whether they still differ."""
    late_ns, waited_by = late
    launched, waited = early_ns[early_ns != UNKNOWN_NS], late_ns[late_ns != UNKNOWN_NS]
    kernels = launched.size
    # A kernel may be alone in being early; an offset makes those late that ran last before a synchronisation.
    synchronisations = np.unique(waited_by[waited_by != ABSENT]).size
    contradicted = np.unique(waited_by[late_ns > CLOCKS_AGREE_NS]).size
    if int((launched > CLOCKS_AGREE_NS).sum()) * FEW > kernels:
        early, most = int((launched > 0).sum()), long_time(int(launched.max()))
        why = f"{early} of {kernels} kernels begin before their launch, by up to {most}"
    elif synchronisations and 2 * contradicted >= synchronisations:
        tardy, most = int((waited > 0).sum()), long_time(int(waited.max()))
        why = f"{tardy} of {waited.size} kernels end after the synchronisation that waited for them, by up to {most}"
    elif kernels and int(launched.max()) < -LONGEST_QUEUE_NS:
        why = f"all {kernels} kernels begin at least {long_time(-int(launched.max()))} after their launch"
    elif not kernels and host and device and (device[0] > host[1] + FAR_NS or device[1] < host[0] - FAR_NS):
        why = f"the device's events are {long_time(abs(device[0] - host[0]))} from the host's"
    else:
        return raw, (), False
    # Moved by less, a kernel begins before its launch; by more, one ends after the synchronisation.
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
    return raw, (f"all that compares host and device, such as steps: their clocks differ: {why}",), True
