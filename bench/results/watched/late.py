"""Which rank of a watched job holds up the others, and in which phase, from the phase times that hosts measured.

Ranks wait for each other inside phases (DDP's in backward, FSDP2's in forward and backward), so a long phase may be
work or waiting. The time at which a rank leaves the phase separates the two: a late rank leaves it last and lost the
time in it; a rank that waited was ahead before and leaves it with the others. If a rank is late in the same phase in
which the others wait, all ranks are equally long in it: these times cannot show it, and the verdict is unsure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.results.watched.details import Late
from bench.results.watched.job import LEAST_STEPS, Job
from bench.results.watched.rank_files import PHASES
from bench.results.watched.still import BEFORE_BACKWARD

LATE_RATIO = 0.05
"""Share of the median step by which a rank must be later than all others to be named."""
LEAST_LATE_S = 0.0005
"""Shorter delays may come from a host's scheduler."""
BLOCKS, LEAST_BLOCKS = 10, 9
"""The steps are split into this many blocks; in at least so many, the rank must be late by half the required time."""
RIVAL_RATIO = 0.5
"""If a second rank is late by at least this share of the first one's delay, no rank is named."""
OVERLAP_RATIO = -0.02
"""Lowest share of a step outside of its phases: clock resolution can make it negative; below this, phases overlap."""
_MAY_WAIT_BEFORE = ("forward", "backward")
"""Phases that gradient accumulation repeats: one microbatch may wait before the next one works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A rank that may be late. late_s: median over steps. is_open: whether waiting would look the same.

    has_batch: whether a DataLoader of torch gives the step's batch, after which forward begins; without it, time
    between steps looks like forward.
    """

    rank: int
    phase: str
    late_s: float
    is_open: bool
    has_batch: bool


def find_late(job: Job) -> Late:
    """Return the rank that holds up the others in the median step, or why no rank can be named.

    A rank is compared with the others on its host, which share its clock. It is named for a phase if, in the median
    step, it leaves the phase later than each of them, wherever the time outside of the phases lies in the step; if it
    also spends more time in the phase than each of them; if both differences are at least `LATE_RATIO` of the step; and
    if half of that holds in nearly all of ten stretches of the steps.
    """
    if (why := _why_not(job)) is not None:
        return Late(verdict="unsure", reason=why)
    step_s = float(np.median(job.step_s))
    groups = list(_hosts(job))
    if not groups:
        return Late(
            verdict="unsure",
            reason="each rank has a host of its own, and hosts' clocks differ by more than ranks do; traces of"
            " torch.profiler, which `observatory analyse` brings to one clock, show who is late",
        )
    candidates = sorted(
        (candidate for group in groups for candidate in _candidates(job, group, step_s)), key=lambda each: -each.late_s
    )
    if not candidates:
        return Late(
            verdict="unsure",
            reason="no rank stands out by its host's clock; only a trace of torch.profiler shows a rank that is late"
            " where the others wait for it, for example inside backward",
        )
    first = candidates[0]
    words = f"rank {first.rank} leaves {first.phase} {_ms(first.late_s)} later than any other rank of its host"
    rivals = [each for each in candidates if each.rank != first.rank and each.late_s >= RIVAL_RATIO * first.late_s]
    if rivals:
        other = rivals[0]
        reason = f"{words}, and rank {other.rank} leaves {other.phase} {_ms(other.late_s)} later than any other"
        return Late(verdict="unsure", reason=reason)
    if first.is_open:
        return Late(
            verdict="unsure",
            reason=f"{words}, which may be work, or waiting within an accumulated gradient; calls of backward in a step"
            f" are {_calls_words(job)}",
        )
    phase, spends = first.phase, "spends that time in it"
    if phase == "forward" and not first.has_batch:
        phase, spends = BEFORE_BACKWARD, "spends that time before backward: in forward, or in loading or logging"
    return Late(
        verdict="late",
        reason=f"{words} in the median step, and {spends}; the others wait for it afterwards",
        rank=first.rank,
        phase=phase,
        late_s=first.late_s,
        step_ratio=first.late_s / step_s,
    )


def _why_not(job: Job) -> str | None:
    """Return why the job's ranks cannot be judged; None if they can."""
    if not job.ranks:
        return "no rank reported steps"
    if job.world_size == 1:
        return "one rank waits for no other"
    if len(job.ranks) < 2:
        return f"{len(job.ranks)} of {job.world_size} ranks reported steps, too few to compare"
    if len(job.step_s) < LEAST_STEPS:
        return f"{len(job.step_s)} measured steps are too few; {LEAST_STEPS} are needed"
    if missing := [name for name in ("step", *PHASES) if not job.known(name)]:
        return (
            f"not every rank knows its times of {', '.join(missing)} in each step; a trace of torch.profiler shows who"
            " is late"
        )
    rest = job.rank_s["step"] - sum(job.rank_s[name] for name in PHASES)
    if float(np.median(rest / job.rank_s["step"])) < OVERLAP_RATIO:
        return "phases overlap, as where the optimizer's step calls forward and backward by itself"
    return None


def _hosts(job: Job) -> Iterator[list[int]]:
    """Yield the indices into `job.ranks` of each host's ranks, which share a clock; only hosts with two or more."""
    hosts: dict[str, list[int]] = {}
    for place, begin in enumerate(job.begins):
        hosts.setdefault(begin.host, []).append(place)
    yield from (places for places in hosts.values() if len(places) > 1)


def _candidates(job: Job, places: Sequence[int], step_s: float) -> Iterator[_Candidate]:
    """Yield each rank of a host that is late in a phase.

    All arrays are (ranks, steps), in seconds. Example with two ranks of DDP, where rank 1 loads data for 3 ms longer:
    both begin at 0 ms; after data they are at 1 and 4, so rank 1 is last by 3 and lost 3 in data; forward adds 2 to
    both, so rank 1 is still last but lost nothing; both end backward at 11, so rank 0 spent 3 more in it, but is not
    last.
    """
    phases = [job.rank_s[name][places] for name in PHASES]
    steps = job.rank_s["step"][places]
    rest = steps - sum(phases)
    ends = job.end_ns[places]
    # Where each rank began its step, counted from the end of the step of the host's first rank.
    at = (ends - ends[0]) * 1e-9 - steps
    single = bool(np.all(job.calls == 1))
    least_s = max(LATE_RATIO * step_s, LEAST_LATE_S)
    for name, phase in zip(PHASES, phases, strict=True):
        at = at + phase
        # Time outside of the phases (logging, reading the loss, clipping) may fall before or after this phase.
        last_by = np.minimum(_over_others(at), _over_others(at + rest))
        lost = np.minimum(last_by, _over_others(phase))
        for row, place in enumerate(places):
            late_s = float(np.median(lost[row]))
            if late_s >= least_s and _is_lasting(lost[row], least_s / 2):
                is_open = name in _MAY_WAIT_BEFORE and not single
                has_batch = bool(np.median(job.rank_s["data"][place]) > 0)
                yield _Candidate(rank=job.ranks[place], phase=name, late_s=late_s, is_open=is_open, has_batch=has_batch)


def _over_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much each rank's value exceeds the largest of all others, (ranks, steps)."""
    ordered = np.sort(values, axis=0)
    largest, second = ordered[-1], ordered[-2]
    others = np.where(values == largest, second, largest)
    difference: NDArray[np.float64] = values - others
    return difference


def _is_lasting(values: NDArray[np.float64], least: float) -> bool:
    """Whether the median is at least this large in `LEAST_BLOCKS` of `BLOCKS` stretches of the steps."""
    medians = [float(np.median(block)) for block in np.array_split(values, BLOCKS)]
    return sum(value >= least for value in medians) >= LEAST_BLOCKS


def _calls_words(job: Job) -> str:
    if np.isnan(job.calls).any():
        return "not known"
    return f"{job.calls.min():.0f}" if job.calls.min() == job.calls.max() else "not always one"


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.3g} ms"
