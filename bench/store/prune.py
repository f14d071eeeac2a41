"""Delete folders of runs by age and size, and folders of suite runs with their last run; keep what a baseline needs.

By default the history keeps the results of deleted runs. It always keeps the records of suite runs, which are counted
over all time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.errors import InfrastructureFailed, Misuse
from bench.store.active_runs import PRUNED, is_running, lock_folder, run_folders, unreported_folders
from bench.store.hardware_baselines import reference_runs
from bench.store.history import History
from bench.store.run_dir import case_file
from bench.store.suite_record import SuiteRecord
from bench.store.summary import Summary
from collectors.files import NotOurs, in_words, is_ours, open_folder

SUITES = "suites"
"""Name of the folder of suite runs, within the folder of runs."""
LEDGER = "ledger.jsonl"
"""File of a suite run that is locked while the suite runs."""
MOST_RUNS = 1_000_000
Kind = Literal["run", "suite run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a prune.

    older_than_s: delete runs that ended longer ago. keep_bytes: then delete the oldest runs until this much is left.
    keep: ids of runs that stay in any case.
    """

    older_than_s: float | None = None
    keep_bytes: int | None = None
    keep: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Folder:
    """The folder of a run or of a suite run, and whether it is deleted.

    ended_ns: Unix time of its end; None if unknown. suite_run: the suite run that a run belongs to. stays: why it stays
    regardless of the limits. goes: why it is deleted. is_young: --older-than does not reach it.
    """

    kind: Kind
    path: Path
    size_bytes: int
    ended_ns: int | None = None
    suite_run: str | None = None
    stays: str | None = None
    goes: str | None = None
    is_young: bool = False

    @property
    def is_deleted(self) -> bool:
        return self.goes is not None

    @property
    def is_needed(self) -> bool:
        """Whether it stays regardless of the limits."""
        return self.goes is None and self.stays is not None

    @property
    def reason(self) -> str:
        """Why it is deleted, or why it stays."""
        within = "it is younger than --older-than" if self.is_young else "--keep-bytes has room for it"
        return self.goes or self.stays or within


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """What a prune deletes and what stays. leftovers: of an earlier prune that did not finish."""

    folders: tuple[Folder, ...]
    leftovers: tuple[Path, ...]

    @property
    def deleted(self) -> tuple[Folder, ...]:
        """The folders to delete: runs first, each kind oldest first."""
        return tuple(folder for folder in self.folders if folder.is_deleted)

    @property
    def kept(self) -> tuple[Folder, ...]:
        return tuple(folder for folder in self.folders if not folder.is_deleted)


# What is deleted and what stays


@dataclass(slots=True, kw_only=True)
class _Decision:
    """The choice among the runs of a folder.

    runs, suites: by name, oldest first. dependents: for each baseline, its runs that are not deleted. members: number
    of runs left in each suite run. left_bytes: size of everything that is left.
    """

    runs: dict[str, Folder]
    suites: dict[str, Folder]
    dependents: dict[str, set[str]]
    members: Counter[str] = field(default_factory=Counter)
    left_bytes: int = 0

    def __post_init__(self) -> None:
        self.members = Counter(run.suite_run for run in self.runs.values() if run.suite_run is not None)
        self.left_bytes = sum(folder.size_bytes for folder in (*self.runs.values(), *self.suites.values()))

    def needed_by(self, name: str) -> str | None:
        """Return a run that stays and has this run as the baseline of its scaling."""
        return min(self.dependents.get(name, ()), default=None)

    def let_go(self, names: Iterable[str], reason: str, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Mark these runs as deleted until it is enough; a baseline only when no run needs it any more.

        A baseline is usually older than the runs that need it, so runs that could not be deleted are tried again.
        """
        candidates = [name for name in names if self.runs[name].stays is None and self.runs[name].goes is None]
        has_gone = True
        while has_gone:
            has_gone = False
            for name in tuple(candidates):
                if is_enough():
                    return
                if self.needed_by(name) is None:
                    self._delete(name, reason)
                    candidates.remove(name)
                    has_gone = True

    def let_go_suite(self, name: str) -> None:
        """Mark a suite run as deleted if none of its runs is left and no other reason keeps it."""
        suite = self.suites.get(name)
        if suite is not None and suite.stays is None and suite.goes is None and not self.members[name]:
            suite.goes = "none of its runs is left"
            self.left_bytes -= suite.size_bytes

    def _delete(self, name: str, reason: str) -> None:
        run = self.runs[name]
        run.goes = reason
        self.left_bytes -= run.size_bytes
        for others in self.dependents.values():
            others.discard(name)
        if run.suite_run is not None:
            self.members[run.suite_run] -= 1
            self.let_go_suite(run.suite_run)


def plan(runs: Path, history: History | None, limits: Limits, *, now_ns: int) -> PrunePlan:
    """Decide what to delete from a folder of runs.

    The following runs always stay: active runs; runs that `limits` names; runs that the history lacks; the newest good
    run of each series; baselines of runs that stay; runs that give a ceiling or a link; and runs of a suite run that
    can be resumed. history: None if there is none yet.

    Raises:
        Misuse: the history has records that a newer version wrote.
        InfrastructureFailed: the folder or the history cannot be read.
    """
    runs = runs.absolute()
    summaries = () if history is None else history.runs(MOST_RUNS)
    records = () if history is None else history.suite_runs(MOST_RUNS)
    references = {} if history is None else reference_runs(history)
    by_run = {summary.run: summary for summary in summaries}
    unfinished = _unfinished(records)
    try:
        candidates = {path.name: _run(path, by_run) for path in run_folders(runs)}
        candidates |= {path.name: _unreported(path) for path in unreported_folders(runs)}
        suites = {
            path.name: _suite(path, unfinished, {record.id: record for record in records}) for path in _suite_runs(runs)
        }
        leftovers = tuple(path for place in (runs, runs / SUITES) for path in _leftovers(place))
    except OSError as error:
        raise InfrastructureFailed(f"{error.filename or runs} cannot be read: {error.strerror}") from None
    newest = _newest_of_series(summaries)
    for name, candidate in candidates.items():
        if candidate.stays is not None:
            continue
        if name in limits.keep:
            candidate.stays = "--keep names it"
        elif name in newest:
            candidate.stays = "it is the newest good run of its series"
        elif name in references:
            candidate.stays = f"it gives {references[name]} to runs on this hardware"
        elif candidate.suite_run in unfinished:
            candidate.stays = f"its suite run {candidate.suite_run} can be resumed"
    decision = _Decision(
        runs=dict(sorted(candidates.items(), key=lambda item: item[1].ended_ns or 0)),
        suites=suites,
        dependents=_dependents(summaries, runs, candidates),
    )
    _decide(decision, limits, now_ns, {summary.purpose.member.id for summary in summaries if summary.purpose.member})
    _say_who_needs(decision)
    return PrunePlan(folders=(*decision.runs.values(), *decision.suites.values()), leftovers=leftovers)


def _decide(decision: _Decision, limits: Limits, now_ns: int, had_runs: Collection[str]) -> None:
    """Mark by age, then by size. had_runs: suite runs of which the history has runs."""
    if (age_s := limits.older_than_s) is not None:
        for folder in (*decision.runs.values(), *decision.suites.values()):
            folder.is_young = folder.ended_ns is None or now_ns - folder.ended_ns <= age_s * 1e9
        old = [name for name, run in decision.runs.items() if not run.is_young]
        decision.let_go(old, "it is older than --older-than")
    for name, suite in decision.suites.items():
        if name in had_runs or (limits.older_than_s is not None and not suite.is_young):
            decision.let_go_suite(name)
    if (most := limits.keep_bytes) is not None:
        decision.let_go(decision.runs, "--keep-bytes has no room for it", lambda: decision.left_bytes <= most)


def _say_who_needs(decision: _Decision) -> None:
    """Set the reason of folders that are needed by runs that stay."""
    for name, run in decision.runs.items():
        if run.stays is None and (dependent := decision.needed_by(name)) is not None:
            run.stays = f"it is the baseline of {dependent}, which stays"
    for name, suite in decision.suites.items():
        if suite.stays is None and (runs_left := decision.members[name]):
            suite.stays = f"{runs_left} of its runs {'stays' if runs_left == 1 else 'stay'}"


def _run(path: Path, summaries: Mapping[str, Summary]) -> Folder:
    """Return a run's folder, with a reason to stay if its own files give one."""
    candidate = Folder(kind="run", path=path, size_bytes=_size(path))
    try:
        file = case_file(path)
    except Misuse as error:
        candidate.stays = f"its kind is unknown: {error}"
        return candidate
    if file.purpose.member is not None:
        candidate.suite_run = file.purpose.member.id
    if is_running(path):
        candidate.stays = "it is active"
    elif file.run != path.name:
        candidate.stays = f"it is a copy of run {file.run}"
    elif path.name not in summaries:
        candidate.stays = "its results are not in this history; `observatory show --rebuild` adds them"
    else:
        candidate.ended_ns = summaries[path.name].ended_ns
    return candidate


def _unreported(path: Path) -> Folder:
    """Return the folder of a watched command without any process's report: no history has it, nobody needs it."""
    candidate = Folder(kind="run", path=path, size_bytes=_size(path))
    if is_running(path):
        candidate.stays = "it is active"
    else:
        candidate.ended_ns = path.stat().st_mtime_ns
    return candidate


def _suite(path: Path, unfinished: Collection[str], records: Mapping[str, SuiteRecord]) -> Folder:
    candidate = Folder(kind="suite run", path=path, size_bytes=_size(path))
    record = records.get(path.name)
    ledger = path / LEDGER
    if is_running(path) or (ledger.exists() and is_running(ledger)):
        candidate.stays = "it is active"
    elif record is None:
        candidate.stays = "it is not in this history"
    else:
        candidate.ended_ns = record.ended_ns or record.progress_ns
        if path.name in unfinished:
            candidate.stays = "it can be resumed"
    return candidate


def _unfinished(records: Sequence[SuiteRecord]) -> frozenset[str]:
    """Return the suite runs that somebody may resume: they have not ended, and no later run of their suite began."""
    newest_ns: dict[str, int] = {}
    for record in records:
        newest_ns[record.suite] = max(record.started_ns, newest_ns.get(record.suite, 0))
    return frozenset(
        record.id
        for record in records
        if record.outcome in ("running", "interrupted") and newest_ns[record.suite] <= record.progress_ns
    )


def _newest_of_series(summaries: Sequence[Summary]) -> frozenset[str]:
    """Return the newest run of each series that ended well. summaries: newest first."""
    newest: dict[tuple[str, str], str] = {}
    for summary in summaries:
        if summary.outcome == "done":
            newest.setdefault((summary.case.key(), summary.hardware), summary.run)
    return frozenset(newest.values())


def _dependents(summaries: Sequence[Summary], runs: Path, folders: Collection[str]) -> dict[str, set[str]]:
    """Return the runs that were compared with each baseline. A run whose folder is gone needs no baseline."""
    dependents: dict[str, set[str]] = {}
    for summary in summaries:
        if summary.run in folders or Path(summary.folder).parent != runs:
            for scaling in summary.scaling:
                if scaling.baseline_run != summary.run:
                    dependents.setdefault(scaling.baseline_run, set()).add(summary.run)
    return dependents


def _suite_runs(runs: Path) -> list[Path]:
    place = runs / SUITES
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if _is_own(path) and not path.name.startswith(PRUNED))


def _leftovers(place: Path) -> list[Path]:
    return [path for path in sorted(place.glob(f"{PRUNED}*")) if _is_own(path)]


def _is_own(path: Path) -> bool:
    """Whether it is a folder of this user: folders of others are theirs to delete."""
    return is_ours(path) and path.is_dir()


def _size(folder: Path) -> int:
    """Return the size of the files in a folder; files that disappear or are unreadable do not count."""
    size_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            size_bytes += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return size_bytes


# Deleting


def carry_out(
    plan: PrunePlan,
    *,
    forget: Callable[[str], object] | None = None,
    remove: Callable[[Path], object] = shutil.rmtree,  # Follows no links.
) -> tuple[tuple[Folder, ...], tuple[str, ...]]:
    """Delete what the plan says; return the deleted folders, and a line for each folder that could not be deleted.

    Before anything in a folder is deleted, the folder gets a name that no run has, so that a process that dies in
    between leaves no half run behind. A run that has been resumed since the plan was made stays.

    forget: deletes a run's results from the history. remove: deletes a folder with all its content.
    """
    problems: list[str] = []
    gone: list[Folder] = []
    for path in plan.leftovers:
        try:
            with ExitStack() as stack:
                if _lock(path, stack):
                    remove(path)
        except FileNotFoundError:
            pass  # Another prune was faster.
        except OSError as error:
            problems.append(f"{path} could not be deleted: {in_words(error)}; the next prune tries again")
    for folder in plan.deleted:
        path = folder.path
        try:
            with ExitStack() as stack:
                if not _lock(path, stack):
                    problems.append(f"{path} stays: a process is working on it")
                    continue
                pruned = _set_aside(path)
                gone.append(folder)
                if forget is not None and folder.kind == "run":
                    forget(path.name)
                remove(pruned)
        except FileNotFoundError:
            continue  # Another prune was faster.
        except OSError as error:
            problems.append(f"{path} could not be deleted whole: {in_words(error)}; the next prune tries again")
    return tuple(gone), tuple(problems)


def _set_aside(path: Path) -> Path:
    """Rename one of our folders to mark it as being deleted; return its new path."""
    pruned = path.with_name(f"{PRUNED}{path.name}")
    fd = open_folder(path)
    try:
        path.rename(pruned)
        if not os.path.samestat(os.fstat(fd), pruned.lstat()):  # Somebody else replaced the folder.
            raise NotOurs(errno.EPERM, "it was replaced by another folder meanwhile", str(path))
    finally:
        os.close(fd)
    return pruned


def _lock(folder: Path, stack: ExitStack) -> bool:
    """Lock a folder, and the ledger in it, until the stack is closed; return False if somebody else holds a lock."""
    for path in (folder, folder / LEDGER):
        if path.exists():
            lock = lock_folder(path)
            if lock is None:
                return False
            stack.callback(os.close, lock)
    return True
