"""Details that only the summary of a watched run has: the program, its ranks, and who is late.

Plain data, stored in the history; `bench.results.watched.run` fills it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bench.results.watched.still import StillRank

Work = Literal["even", "by tokens", "uneven", "unknown"]
"""Whether steps do equal work. by tokens: declared tokens differ between steps, so the gate judges tokens per second.
uneven: steps differ by more than `bench.results.watched.job.UNEVEN_RATIO`, and no tokens are declared. unknown: too few
steps to judge."""
Verdict = Literal["late", "unsure"]
"""unsure: no rank is named, which does not prove that none is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Who holds up the others, by `bench.results.watched.late.find_late`.

    rank, phase: who is late, and in which phase; None if no rank is named. late_s: how much later than the last of the
    others it leaves the phase, in the median step. step_ratio: the same as a share of the median step.
    reason: a sentence with the observation, or why no rank can be named.
    """

    verdict: Verdict
    reason: str
    rank: int | None = None
    phase: str | None = None
    late_s: float | None = None
    step_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRank:
    """One rank of a watched run. Unknown values are None.

    steps: how many it reported. step_s: its median step. data_s to optimizer_s: mean time of a phase in a step.
    own_ratio: time of the watching code within the steps, divided by the steps' time.
    peak_bytes: peak of the tensors, from the allocator. peak_reserved_bytes: peak that the allocator held, used or not.
    rss_bytes: largest resident size of the process.
    has_ended: whether its process wrote an end line. windows: first and last number of traced steps.
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
    """Steps that all ranks traced, joined; unknown values are None.

    number: of the window in its run. why: why it was requested. first, last: numbers of its steps. unix_s: when the
    ranks agreed on them. dropped: why there is no trace; then all figures are None.
    step_s: median of the traced steps. overlap_ratio: share of the communication that computation hides.
    exposed_ratio: share of the steps in which communication runs and no computation. waiting_ratio: share of the time
    in collectives that is waiting for the last rank; the rest is transfer. late: the late rank according to the traces;
    its phase is None if no single phase explains the delay. doing: the late rank's activity during the delay. path: the
    longest parts of the critical path, longest first: rank, kind and share. cost_s: time for agreeing and the profiler
    outside of the traced steps, on the rank where it was longest.
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

    name: of the series, from --name or the script. script, script_sha256: of the program. git_commit: of the git tree
    that contains the script. exit_code, signal: how the command ended; both None while it runs, or if not recorded.
    rules: what ended the steps: mark, deepspeed or optimizer.
    attempts: how often the ranks began; more than one means restarts. attempt: the one in the figures, from 1.
    missing: number of ranks without usable steps. missing_ranks: the first `run.NAMED` of them.
    steps: number that all ranks reported. warm_up: how many of the first of these are in no figure. each: in a long
    job, figures use one in so many runs of eight steps. device_clock: whether steps are timed by the devices.
    work_reason: the reason for `work`. windows: the newest windows of traced steps.
    still: where ranks stood the last time that steps stopped.
    is_active: whether the command was still running, so that everything here is provisional.
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
