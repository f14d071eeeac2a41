"""A watched run from the files in its folder: its case, its figures and its details.

The case has what separates series: the name, the ranks, their groups, the versions and the declared tags. Everything
else about the user's program, for example its model or precision, is unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from bench.case import Case
from bench.errors import Misuse, plural
from bench.results.estimate import Estimate, estimate_share
from bench.results.watched.details import WatchedDetails, WatchedRank
from bench.results.watched.figures import estimates_of, rank_estimates
from bench.results.watched.job import Job, middle, phase_means, read_job, work_of
from bench.results.watched.late import find_late
from bench.results.watched.rank_files import Attempt, Begin, device_words, hosts_of, rank_paths, scan
from bench.results.watched.still import StillRank
from bench.results.watched.windows import MOST_WINDOWS, traced_windows
from collectors.files import open_to_read
from collectors.metrics.results import RUN_LATE_RATIO
from collectors.watch.observatory_watch import RUN
from workloads.spec import WATCHED, Backend, Device

WATCH_FILE = "watch.json"
VERSION = 1
MOST_BYTES = 1 << 20
NAMED = 16
"""Most ranks that are named if they are missing or ended without an end line."""
MOST_NOTES = 20
LONGEST_LAYOUT = 120


class WatchFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of watch.json, which the runner writes before the command starts, and again at its end.

    store, slot: as in `bench.store.run_dir.CaseFile`. exit_code, signal: of the command. end_unix_s: None before.
    """

    version: int
    name: str
    run_id: str
    start_unix_s: float
    command: tuple[str, ...] = ()
    script: str | None = None
    script_sha256: str | None = None
    git_commit: str | None = None
    tags: dict[str, str] = {}
    end_unix_s: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    store: str | None = None
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """The content of a watched run's files.

    hardware: of the ranks' GPUs, in the words of `Machine.hardware`; None on a CPU. torch: the ranks' version.
    step_spreads: of the stretches that stand in for trials. is_measured: whether there is any figure.
    died: ranks whose process left no end line.
    """

    file: WatchFile
    case: Case
    hardware: str | None
    torch: str | None
    hosts: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    step_spreads: tuple[float, ...]
    notes: tuple[str, ...]
    details: WatchedDetails
    is_measured: bool
    died: tuple[int, ...]


def is_watched(folder: Path) -> bool:
    """Whether the folder belongs to a watched run."""
    return (folder / WATCH_FILE).is_file()


def read_watch_file(folder: Path) -> WatchFile:
    """Read watch.json of a run's folder.

    Raises:
        Misuse: the file cannot be read, or a newer version wrote it.
    """
    path = folder / WATCH_FILE
    try:
        with open_to_read(path) as opened:
            file = msgspec.json.decode(opened.read(MOST_BYTES), type=WatchFile)
    except OSError as error:
        raise Misuse(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"{path} cannot be read: {error}") from None
    if file.version > VERSION:
        raise Misuse(f"{path}: version {file.version} is newer than {VERSION}, which this program reads")
    return file


def first_case(folder: Path) -> Case:
    """Return the case of a watched run that may still be active, from the first rank that has reported.

    Raises:
        Misuse: watch.json cannot be read, or no rank has begun.
    """
    file = read_watch_file(folder)
    for rank, path in rank_paths(folder).items():
        if attempts := scan(rank, path).attempts:
            return _case(file, [attempts[-1].begin], steps=0, warm_up=0)
    raise Misuse(f"{folder}: no process of watched run {file.name} has reported yet")


def read_run(folder: Path, *, is_active: bool = False) -> WatchedRun:
    """Read all files of a watched run; ranks that left no file, died or wrote half a line give notes, not errors.

    is_active: whether its command still runs, so that no rank counts as died.

    Raises:
        Misuse: watch.json cannot be read.
    """
    file = read_watch_file(folder)
    job = read_job(folder)
    estimates, spreads, absent = estimates_of(job)
    late = find_late(job)
    work, why = work_of(job)
    means = [phase_means(job, place) for place in range(len(job.ranks))]
    extra = [*rank_estimates(list(zip(job.ranks, means, strict=True)))]
    if late.rank is not None and late.phase is not None and late.step_ratio is not None:
        extra.append(estimate_share(RUN_LATE_RATIO, [min(1.0, late.step_ratio)], rank=str(late.rank), phase=late.phase))
    begins = job.begins or tuple(each.attempts[-1].begin for each in job.files if each.attempts)
    present = set(job.ranks)
    world_size = max((begin.world_size for begin in begins), default=0)
    missing = [rank for rank in range(world_size) if rank not in present]
    ended = [is_active or attempt.has_ended for attempt in job.attempts]
    died = tuple(rank for rank, has_ended in zip(job.ranks, ended, strict=True) if not has_ended)
    details = WatchedDetails(
        name=file.name,
        late=late,
        ranks=tuple(_rank(job, place, means[place]) for place in range(len(job.ranks))),
        command=file.command,
        script=file.script,
        script_sha256=file.script_sha256,
        git_commit=file.git_commit,
        tags=file.tags,
        exit_code=file.exit_code,
        signal=file.signal,
        rules=tuple(dict.fromkeys(rule for attempt in job.attempts for rule in attempt.rules)),
        attempts=job.restarts + 1,
        attempt=job.number + 1,
        missing=len(missing),
        missing_ranks=tuple(missing[:NAMED]),
        steps=job.common,
        warm_up=job.warm_up,
        each=job.each,
        device_clock=job.is_device_clock,
        work=work,
        work_reason=why,
        windows=traced_windows(folder)[-MOST_WINDOWS:],
        still=tuple(_stills(job)),
        is_active=is_active,
    )
    return WatchedRun(
        file=file,
        case=_case(file, begins, steps=len(job.step_s), warm_up=job.warm_up),
        hardware=device_words(begins),
        torch=_shared(begin.torch for begin in begins),
        hosts=hosts_of(begins),
        estimates=(*estimates, *extra),
        step_spreads=spreads,
        notes=tuple(_notes(job, details, absent, died)),
        details=details,
        is_measured=bool(estimates),
        died=died,
    )


def _rank(job: Job, place: int, means: dict[str, float | None]) -> WatchedRank:
    attempt = job.attempts[place]
    columns = {name: column[place] for name, column in job.rank_s.items()}
    own, step = columns["own"], columns["step"]
    has_own = bool(own.size) and not bool(np.isnan(own).any())
    return WatchedRank(
        rank=job.ranks[place],
        host=attempt.begin.host,
        device=attempt.begin.device,
        steps=attempt.steps,
        step_s=middle(columns["device"] if job.is_device_clock else step),
        data_s=means["data"],
        forward_s=means["forward"],
        backward_s=means["backward"],
        optimizer_s=means["optimizer"],
        own_ratio=float(own.sum() / step.sum()) if has_own else None,
        peak_bytes=attempt.peak_bytes,
        peak_reserved_bytes=attempt.peak_reserved_bytes,
        rss_bytes=attempt.rss_bytes,
        has_ended=attempt.has_ended,
        windows=tuple(attempt.windows),
    )


def _stills(job: Job) -> Iterator[StillRank]:
    """Yield where each rank stood, including ranks that wrote no step before."""
    for file in job.files:
        if file.attempts and (still := _still(file.rank, file.attempts[-1])) is not None:
            yield still


def _still(rank: int, attempt: Attempt) -> StillRank | None:
    """Return where a rank stood the last time that steps stopped; None if steps resumed before its limit."""
    if attempt.still is None:
        return None
    still = StillRank.of(rank, attempt.still, has_gone_on=attempt.has_gone_on)
    return still if still.is_stalled or not still.has_gone_on else None


def _case(file: WatchFile, begins: Sequence[Begin], *, steps: int, warm_up: int) -> Case:
    device: Device = "cuda" if any(begin.device.startswith("cuda") for begin in begins) else "cpu"
    backend = _shared(begin.backend for begin in begins) or "none"
    field: Backend = "nccl" if "nccl" in backend else "gloo"
    python = ".".join((_shared(begin.python for begin in begins) or "unknown").split(".")[:2])
    return Case(
        strategy=WATCHED,
        version=1,
        ranks=max((begin.world_size for begin in begins), default=1),
        model=None,
        device=device,
        backend=field,
        precision="unknown",
        threads=1,
        trials=1,
        steps=steps,
        warm_up=warm_up,
        trace_steps=0,
        seed=0,
        options={
            "name": file.name,
            "groups": layout(begins[0].groups if begins else ()),  # One rank's groups suffice to separate layouts.
            "backend": backend,
            "torch": _shared(begin.torch for begin in begins) or "unknown",
            "python": python,
            "tags": " ".join(f"{'_'.join(f'{key}={value}'.split())}" for key, value in sorted(file.tags.items())),
        },
        nodes=_nodes(begins),
    )


def _nodes(begins: Sequence[Begin]) -> int:
    """Return the number of nodes: from the local world size of the first rank, else from the host names."""
    if begins and (local := begins[0].local_world_size):
        return max(1, -(-begins[0].world_size // max(1, local)))
    return max(1, len(hosts_of(begins)))


def layout(groups: Iterable[Sequence[int]]) -> str:
    """Return the process groups in a few words, equal for equal layouts; a hash if they are too long.

    Example: the groups of a mesh of 2 x 2 give "0-1 0-2/2 1-3/2 2-3", with the stride after the slash; groups without
    a single stride list their ranks: "0,1,3".
    """
    unique = sorted({tuple(sorted(set(group))) for group in groups if group}, key=lambda each: (-len(each), each))
    words = " ".join(_range(group) for group in unique)
    if len(words) <= LONGEST_LAYOUT:
        return words
    return f"{len(unique)} groups {hashlib.sha256(words.encode()).hexdigest()[:12]}"


def _range(group: Sequence[int]) -> str:
    if len(group) == 1:
        return str(group[0])
    strides = {later - earlier for earlier, later in pairwise(group)}
    if len(strides) > 1:
        return ",".join(map(str, group))
    stride = strides.pop()
    return f"{group[0]}-{group[-1]}" + ("" if stride == 1 else f"/{stride}")


def _shared(words: Iterable[str | None]) -> str | None:
    """Return the value that all ranks share; if they differ, each one once, joined by "+"; None if none is known."""
    return "+".join(dict.fromkeys(word for word in words if word)) or None


def _notes(job: Job, details: WatchedDetails, absent: Sequence[str], died: Sequence[int]) -> Iterator[str]:
    """Yield what a reader of the figures must know, and which figures are absent and why."""
    yield from absent
    if details.missing:
        named = ", ".join(map(str, details.missing_ranks)) + (", ..." if details.missing > NAMED else "")
        others = "; figures leave them out" if job.ranks else ""
        yield f"no steps of {plural(details.missing, 'rank')}: {named}{others}"
    if died:
        named = ", ".join(map(str, died[:NAMED])) + (", ..." if len(died) > NAMED else "")
        yield f"{plural(len(died), 'rank')} ended without an end line, so the last steps may be missing: {named}"
    if job.restarts:
        yield (f"ranks began {job.restarts + 1} times; figures show attempt {job.number + 1}, which has the most steps")
    if job.each > 1:
        yield (
            f"figures rest on {len(job.step_s):,} of {job.common:,} steps, evenly spread over the job: {RUN} in each"
            f" {RUN * job.each:,}, since ranks write no more of a long job"
        )
    if job.warm_up:
        first = "step is" if job.warm_up == 1 else f"{job.warm_up} steps are"
        yield f"the first {first} warm-up, and in no figure"
    if details.work == "uneven":
        yield f"the gate does not judge the step: {details.work_reason}"
    said = dict.fromkeys(
        [
            *(problem for file in job.files for problem in file.problems),
            *(f"rank {file.rank}: {note}" for file in job.files for each in file.attempts for note in each.notes),
        ]
    )
    yield from list(said)[:MOST_NOTES]
    if len(said) > MOST_NOTES:
        yield f"{len(said) - MOST_NOTES} more notes are in the ranks' files"
