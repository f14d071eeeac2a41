"""Kinds of a trace's events (compute, communication, copy, ...), and remarks on oddities.

`kinds` judges by category, name and place. All events have plausible times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import (
    COPIES,
    GLOO,
    HOST_COMPUTE,
    OF_TORCH,
    RECORD,
    STEPS,
    is_communication,
    library_of,
    looks_like_communication,
)
from collectors.traces.intervals import union
from collectors.traces.operators import Foreground
from collectors.traces.reading.device_order import BEYOND_NOISE_NS, launches_of
from collectors.traces.reading.plausible_times import long_time
from collectors.traces.reading.raw_events import AT_WORK, CATEGORIES, RawEvents
from collectors.traces.timeline import ABSENT, KINDS, SpanKind, stream_name

Mask = NDArray[np.bool_]

_KIND_OF_CATEGORY: dict[str, SpanKind] = {
    "cpu_op": "host",
    "user_annotation": "host",
    "kernel": "compute",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cuda_sync": "wait",
}
"""Kinds by category; all other categories are calls of a runtime or a driver."""


def devices(raw: RawEvents) -> NDArray[np.int64]:
    """Return the numbers of the devices that do work in the trace.

    Waits do not count: kineto assigns a wait to device 0 if it has not seen a kernel of the wait's context yet.
    """
    return np.unique(raw.process[np.isin(raw.category, AT_WORK)])


def kinds(raw: RawEvents) -> tuple[NDArray[np.int8], bool]:
    """Return the kind of each event, as an index into `KINDS`; and whether there are any device events.

    If there are, even copies alone, kernels compute and communicate, and the host's operators only issue them. If not,
    operators compute, except on gloo's own threads, where they serve communication. gloo's events count as
    communication if no kernel communicates: ranks that share a GPU communicate over gloo.
    """
    is_device = bool(devices(raw).size)
    kind = np.array([KINDS.index(_KIND_OF_CATEGORY.get(name, "launch")) for name in CATEGORIES], dtype=np.int8)[
        raw.category
    ]
    is_host, is_kernel = kind == KINDS.index("host"), _is_of(raw, "kernel")
    kind[is_kernel & _named(raw, lambda name: COPIES.match(name) is not None)] = KINDS.index("copy")
    communicates = _named(raw, is_communication) & (is_kernel | _is_of(raw, "gpu_memcpy"))
    communicates |= recorded(raw)
    kind[communicates] = KINDS.index("communication")

    is_gloo = is_host & _named(raw, lambda name: name.startswith(GLOO))
    if not is_device:
        # gloo's own threads; send and receive run on the caller's thread, which also computes.
        is_apart = is_gloo & ~_named(raw, lambda name: name.startswith((f"{GLOO}send", f"{GLOO}recv")))
        of_gloo = np.isin(raw.thread, np.unique(raw.thread[is_apart]))
        kind[is_host & ~of_gloo & _named(raw, lambda name: HOST_COMPUTE.match(name) is not None)] = KINDS.index(
            "compute"
        )
    if not (communicates & is_kernel).any():
        kind[is_gloo] = KINDS.index("communication")
    kind[is_host & _named(raw, lambda name: STEPS.match(name) is not None)] = KINDS.index("step")
    return kind, is_device


def recorded(raw: RawEvents) -> Mask:
    """Return whether torch's process groups launched each kernel: it has the arguments of a `RECORD`, or a `RECORD` is
    the innermost operator around its launch."""
    is_recorded = np.zeros(raw.name.size, dtype=np.bool_)
    is_kernel = _is_of(raw, "kernel")
    is_recorded[[row for row, _ in raw.collective_args if is_kernel[row]]] = True
    if RECORD not in raw.names:
        return is_recorded
    operators = np.flatnonzero(_is_of(raw, "cpu_op"))
    is_record = raw.name[operators] == raw.names.index(RECORD)
    launch = launches_of(raw)
    rows = np.flatnonzero((launch != ABSENT) & is_kernel & ~_named(raw, lambda name: OF_TORCH.search(name) is not None))
    for thread in np.unique(raw.thread[operators[is_record]]):
        is_here = raw.thread[operators] == thread
        records = operators[is_here & is_record]
        spans = union(raw.start_ns[records], raw.start_ns[records] + raw.duration_ns[records])
        # Operators that begin outside all records are never the innermost around a launch inside one.
        mine = operators[is_here]
        mine = mine[np.searchsorted(spans.ravel(), raw.start_ns[mine], side="right") % 2 == 1]
        mine = mine[np.lexsort((-raw.duration_ns[mine], raw.start_ns[mine]))]
        launched = rows[raw.thread[launch[rows]] == thread]
        innermost = Foreground(raw.start_ns[mine], raw.start_ns[mine] + raw.duration_ns[mine])
        around = np.append(mine, ABSENT)[innermost.at(raw.start_ns[launch[launched]])]
        is_recorded[launched[(around != ABSENT) & (raw.name[around] == raw.names.index(RECORD))]] = True
    return is_recorded


def deciding_rules(raw: RawEvents, kind: NDArray[np.int8]) -> dict[str, str]:
    """Return the rule that recognised the device's communication, by event name."""
    by_record = recorded(raw)
    is_communication_ = (kind == KINDS.index("communication")) & (_is_of(raw, "kernel") | _is_of(raw, "gpu_memcpy"))
    rules: dict[str, str] = {}
    for number in np.unique(raw.name[is_communication_]).tolist():
        name, chosen = raw.names[number], is_communication_ & (raw.name == number)
        reasons = [RECORD] if by_record[chosen].any() else []
        if not by_record[chosen].all():
            reasons.append(f"its name ({library_of(name)})")
        rules[name] = ", ".join(reasons)
    return rules


def _is_of(raw: RawEvents, category: str) -> Mask:
    chosen: Mask = raw.category == CATEGORIES.index(category)
    return chosen


def _named(raw: RawEvents, rule: Callable[[str], bool]) -> Mask:
    """Return for each event whether the rule holds for its name; each distinct name is tested once."""
    chosen: Mask = np.array([*map(rule, raw.names), False], dtype=np.bool_)[raw.name]
    return chosen


EARLIEST_UNIX_NS = 10**18
"""The year 2001; earlier times are assumed not to be Unix time."""

ONE_AFTER_THE_OTHER = tuple(KINDS.index(kind) for kind in ("compute", "communication", "copy"))
"""Kinds of which a stream of a device runs one at a time."""


def remarks(
    raw: RawEvents, kind: NDArray[np.int8], stream: NDArray[np.int64], is_device: bool, *, untimed_work: int = 0
) -> tuple[str, ...]:
    """Return what a reader of results from these events should know, one line each.

    untimed_work: number of the device's kernels and copies that were left out because their times are unknown.
    """
    lines = []
    if raw.unknown:
        names = ", ".join(f'"{name}"' for name in sorted(raw.unknown))
        lines.append(f"events of categories that are not known: {names}")
    if raw.unread_phases:
        names = ", ".join(f'"{name}"' for name in sorted(raw.unread_phases))
        lines.append(f"events of phases that are not read: {names}")
    if raw.without_address:
        changes = "1 change" if raw.without_address == 1 else f"{raw.without_address} changes"
        lines.append(f"{changes} of memory without an address, as kineto wrote them in 2021")
    calls = int((kind == KINDS.index("launch")).sum())
    if untimed_work and not is_device:
        work = (
            "its only kernel or copy is" if untimed_work == 1 else f"all of its {untimed_work} kernels and copies are"
        )
        lines.append(
            f"the device: {work} left out, since their times are not known; what figures there are belong to the host"
        )
    elif calls and not is_device:
        called = "1 call" if calls == 1 else f"{calls} calls"
        lines.append(f"the device: it has no kernels, but {called} of its driver; the figures are of the host's work")
    if is_device:
        lines += _lookalikes(raw, kind)
        numbers = devices(raw).tolist()
        if len(numbers) > 1:
            gpus = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
            lines.append(
                f"which of its {len(numbers)} GPUs ({gpus}) a figure belongs to: they are reported as one rank"
            )
        lines += _overlaps(raw, kind, stream)
    if raw.start_ns.size and int(raw.start_ns.max()) < EARLIEST_UNIX_NS:
        lines.append("the base of its times: the trace lacks it, so they are not Unix times")
    return tuple(lines)


LARGE = 0.01
"""Minimum share of the kernels' time at which a kernel that looks like communication is reported."""


def _lookalikes(raw: RawEvents, kind: NDArray[np.int8]) -> list[str]:
    """Return a line for each large kernel whose name looks like communication but which counts as computation."""
    is_kernel, is_compute = _is_of(raw, "kernel"), kind == KINDS.index("compute")
    total_ns = float(raw.duration_ns[is_kernel].sum(dtype=np.float64))
    lines = []
    chosen = is_kernel & is_compute & _named(raw, looks_like_communication)
    for number in np.unique(raw.name[chosen]).tolist():
        share = (
            float(raw.duration_ns[chosen & (raw.name == number)].sum(dtype=np.float64)) / total_ns if total_ns else 0
        )
        if share >= LARGE:
            lines.append(
                f"what communicates in {raw.names[number]}: it looks like communication, but no rule matches it and"
                f" no {RECORD} is around the launch; it counts as computation, and is {100 * share:.0f} % of the"
                " kernels' time"
            )
    return lines


def _overlaps(raw: RawEvents, kind: NDArray[np.int8], stream: NDArray[np.int64]) -> list[str]:
    """Return a line for each stream whose work overlaps, with the event whose end is probably wrong.

    Real streams overlap by microseconds, since a kernel may begin before the last blocks of the previous one end.
    """
    lines = []
    rows = np.flatnonzero(np.isin(kind, ONE_AFTER_THE_OTHER))
    for number in np.unique(stream[rows]).tolist():
        mine = rows[stream[rows] == number]
        mine = mine[np.argsort(raw.start_ns[mine], kind="stable")]
        start_ns, end_ns = raw.start_ns[mine], raw.start_ns[mine] + raw.duration_ns[mine]
        overlap_ns = np.maximum.accumulate(end_ns)[:-1] - start_ns[1:]
        count = int((overlap_ns > 0).sum())
        if not count:
            continue
        name, many = stream_name(number), count > 1
        early = f"{count} event{'s' * many} of stream {name} begin{'s' * (not many)} before"
        longest = int((end_ns[:-1] - start_ns[1:]).argmax())
        most_ns = int(end_ns[longest] - start_ns[longest + 1])
        if most_ns > BEYOND_NOISE_NS:
            lasts = long_time(int(end_ns[longest] - start_ns[longest]))
            lines.append(
                f"nothing, though a stream runs its work one by one and {early} {raw.names[raw.name[mine[longest]]]}"
                f" ends, which lasts {lasts}: its end is probably wrong, and with it the figures of its step"
            )
        else:
            most = f"by up to {long_time(most_ns)}" if many else f"by {long_time(most_ns)}"
            lines.append(f"nothing, though {early} {'others end' if many else 'another ends'}, {most}")
    return lines
