"""What the summary of a watched run holds that no other run's does: the program, its ranks, and who is late.

Plain data, which the history keeps; `bench.results.watched.job` and `late` make it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bench.results.watched.still import StillRank

Work = Literal["even", "by tokens", "uneven", "unknown"]
"""Whether steps do equal work. by tokens: the program declares tokens, and they differ, so figures are taken per token.
uneven: steps differ by more than `bench.results.watched.job.UNEVEN_RATIO`, and no tokens are declared. unknown: too few
steps tell."""
Verdict = Literal["late", "unsure"]
"""unsure: nobody is named, which is no proof that nobody is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Who holds up the others, by `bench.results.watched.late.find_late`.

    rank, phase: who is late, and in what; None where nobody is named. late_s: how much later than the last of the
    others it leaves the phase, in the median step. step_ratio: the same as a share of the median step.
    reason: in a sentence: what was seen, or why nobody can be named.
    """

    verdict: Verdict
    reason: str
    rank: int | None = None
    phase: str | None = None
    late_s: float | None = None
    step_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRank:
    """One rank of a watched run. What is not known is None.

    steps: how many it reported. step_s: its median step. data_s to optimizer_s: mean time of a phase in a step.
    own_ratio: time of the watching code within the steps, divided by the steps' time.
    peak_bytes: of tensors, by the allocator. peak_reserved_bytes: that the allocator held, used or not.
    rss_bytes: of the process, at the most.
    has_ended: whether its process said that it ended. windows: first and last number of traced steps.
    """

    rank: int
    host: str
    device: str
    steps: int
    step_s: float | None = None
    data_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    own_ratio: float | None = None
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    rss_bytes: int | None = None
    has_ended: bool = False
    windows: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWindow:
    """Steps that all ranks traced, joined; what is not known is None.

    number: of the window in its run. why: who asked for it. first, last: numbers of its steps. unix_s: when the ranks
    agreed on them. dropped: why there is no trace; then no figure is there.
    step_s: median of the traced steps. overlap_ratio: share of the communication that computation hides.
    exposed_ratio: share of the steps in which communication runs and no computation. waiting_ratio: share of the time
    in collectives that is waiting for the last rank; the rest is transfer. late: who is late, by the traces; its phase
    is None where no single one explains it. doing: what the late rank does meanwhile. path: parts of the critical
    path, the longest first: rank, kind and share. cost_s: time that agreeing and the profiler took a rank outside of
    the traced steps, on the rank where it took most.
    """

    number: int
    why: str = ""
    first: int | None = None
    last: int | None = None
    unix_s: float | None = None
    dropped: str | None = None
    step_s: float | None = None
    overlap_ratio: float | None = None
    exposed_ratio: float | None = None
    waiting_ratio: float | None = None
    late: Late | None = None
    doing: str | None = None
    path: tuple[tuple[int, str, float], ...] = ()
    cost_s: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDetails:
    """What is known of a watched run besides its figures.

    name: given by a person. script, script_sha256: of the program. git_commit: of the folder that it was started in.
    exit_code, signal: how the command ended; both None while it runs, and where nobody recorded it.
    rules: what found the steps: mark, deepspeed or optimizer.
    attempts: how often the ranks began; more than one is a restart. attempt: which of them the figures are of, from 1.
    missing_ranks: numbers without a usable file, at most some of them; missing: how many there are.
    steps: that all ranks reported. warm_up: the first of these, which are in no figure. each: figures are of one
    run of eight steps in so many, where there are more. device_clock: whether steps are timed by the devices.
    work_reason: why `work` is what it is. windows: traced steps, the newest of them.
    still: where ranks stood when no step came any more, the last time that this was so.
    is_active: whether the command still ran, so that all of this is what was known by then.
    """

    name: str
    late: Late
    ranks: tuple[WatchedRank, ...] = ()
    command: tuple[str, ...] = ()
    script: str | None = None
    script_sha256: str | None = None
    git_commit: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    signal: int | None = None
    rules: tuple[str, ...] = ()
    attempts: int = 1
    attempt: int = 1
    missing: int = 0
    missing_ranks: tuple[int, ...] = ()
    steps: int = 0
    warm_up: int = 0
    each: int = 1
    device_clock: bool = False
    work: Work = "unknown"
    work_reason: str = "no step was reported"
    windows: tuple[TracedWindow, ...] = ()
    still: tuple[StillRank, ...] = ()
    is_active: bool = False
