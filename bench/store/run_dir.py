"""The folder of a run: created with its case and machine, locked while the run is active, later read as a Summary."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Literal, TypeVar

import msgspec

from bench.case import ONE_RUN, Case, Purpose, SuiteMember
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine, redact
from bench.machine.machine import read as read_machine
from bench.machine.placement import read_placement
from bench.rank.fault_injection import Fault
from bench.rank.messages import FailureCause, TrialOutcome
from bench.results.estimate import Estimate, estimate, of_metric
from bench.results.results import findings
from bench.results.trials import node_notes
from bench.results.watched.run import WatchedRun, first_case, is_watched, read_run, read_watch_file
from bench.store.active_runs import is_running, is_written, lock_folder, lock_holder, slot_folders
from bench.store.files import read_small
from bench.store.summary import StoredPrediction, Summary, decode, encode
from collectors.files import (
    in_words,
    is_ours,
    locked,
    make_folder,
    open_folder,
    replace_file,
    schema_version_of,
    sync_folder,
)
from collectors.metrics.results import RUN_STEP_PREDICTED_RATIO, RUN_STEP_SECONDS
from collectors.sample_log import NewerSchema
from workloads.options import check_of
from workloads.registry import SPECS, is_known

SCHEMA_VERSION = 1
T = TypeVar("T")


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A run continued after an interruption or a failure of the machine. trials_done: trials that it had by then."""

    trials_done: int
    time_ns: int


class CaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of case.json: the case, and the fault to inject, if any.

    slot: the lowest number that no other active run of the folder had when this one began. store: the store that should
    receive the run, None for the user's own history; see `store_name`. purpose: what the run is for. resumed: an entry
    for each time it was continued. prediction: made before the first trial, and never replaced; see `Summary`.
    """

    run: str
    case: Case
    started_ns: int
    slot: int = 0
    store: str | None = None
    fault: Fault | None = None
    purpose: Purpose = ONE_RUN
    resumed: tuple[Resumed, ...] = ()
    prediction: StoredPrediction | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run in progress.

    slot: distinguishes its live series from those of other runs in the same folder.
    lock: the file descriptor of the folder's lock; while it is open, the run counts as active.
    """

    id: str
    case: Case
    machine: Machine
    folder: Path
    slot: int
    lock: int

    def close(self) -> None:
        """Release the folder's lock."""
        os.close(self.lock)


def begin(
    case: Case,
    machine: Machine,
    runs: Path,
    fault: Fault | None = None,
    store: str | None = None,
    purpose: Purpose = ONE_RUN,
    name: str | None = None,
    prediction: StoredPrediction | None = None,
) -> Run:
    """Create the run's folder with case.json and machine.json.

    name: of the run and its folder, which may exist if a person named it or if it began on another node; None for a new
    name.

    Raises:
        Misuse: another process works on the named folder.
        InfrastructureFailed: the folder cannot be created or written.
    """
    started_ns = time.time_ns()
    is_new = name is None
    if name is None:
        started = datetime.fromtimestamp(started_ns / 1e9, tz=UTC)
        name = f"{started:%Y%m%d-%H%M%S}-{case.strategy}-{secrets.token_hex(3)}"
    folder = runs.absolute() / name
    try:
        make_folder(folder, exist_ok=not is_new)
        os.close(open_folder(folder))
        lock = lock_folder(folder)
        if lock is None:
            raise Misuse(f"{lock_holder(folder)} is working on {folder}; name another folder")
        write_json(folder / "machine.json", machine)
        with locked(folder.parent):  # Each process that begins a run here takes this lock, so slots are unique.
            slot = free_slot(folder.parent)
            file = CaseFile(
                run=name,
                case=case,
                started_ns=started_ns,
                slot=slot,
                store=store_name(store),
                fault=fault,
                purpose=purpose,
                prediction=prediction,
            )
            write_json(folder / "case.json", file)
    except OSError as error:
        raise InfrastructureFailed(
            f"run folder {folder} cannot be written: {error.strerror}; choose another place with --runs"
        ) from None
    return Run(id=name, case=case, machine=machine, folder=folder, slot=slot, lock=lock)


def change_trials(folder: Path, trials: int) -> Case:
    """Write the number of trials into the run's case.json, after an early end or to continue it; return its case.

    Raises:
        InfrastructureFailed: the file cannot be written.
    """
    file = case_file(folder)
    case = replace(file.case, trials=trials)
    try:
        write_json(folder / "case.json", msgspec.structs.replace(file, case=case))
    except OSError as error:
        raise InfrastructureFailed(f"{folder}/case.json cannot be written: {error.strerror}; make room") from None
    return case


def check_place(runs: Path) -> None:
    """Refuse a folder of runs that could not be created or written; leave nothing there.

    Raises:
        InfrastructureFailed: with the reason.
        Misuse: its name is not UTF-8, as messages between the runner and its ranks must be.
    """
    if (readable := os.fsencode(runs.absolute()).decode(errors="backslashreplace")) != str(runs.absolute()):
        raise Misuse(
            f"the folder of runs {readable} is not UTF-8; choose another with --runs, or another data folder with"
            " XDG_DATA_HOME"
        )
    try:
        with contextlib.suppress(FileNotFoundError):
            runs.lstat()
        whole = runs.absolute()
        existing_folder = next(folder for folder in (whole, *whole.parents) if os.path.lexists(folder))
        with tempfile.TemporaryFile(dir=existing_folder):
            pass
    except OSError as error:
        raise InfrastructureFailed(
            f"no run can be written in {runs}: {error.strerror}; choose another place with --runs"
        ) from None


def store_name(url: str | None) -> str | None:
    """Return a store's URL without user and password, for storing in a file."""
    return None if url is None else redact(url)


def summarise(folder: Path, outcome: TrialOutcome, cause: FailureCause | None) -> Summary:
    """Summarise a run from the files of its folder; complete trials count, however the run ended.

    Raises:
        Misuse: the folder has no run, or one that a newer version wrote, or one of a strategy that this version lacks.
    """
    if is_watched(folder):
        return _watched(folder, outcome, cause)
    file = case_file(folder)
    machine = _read(folder / "machine.json", Machine)
    case = file.case
    if not is_known(case.strategy):
        raise Misuse(f"{folder} has strategy {case.strategy}, which this version does not have")
    if case.device == "cpu":
        device_name = None
    else:  # As the driver names it.
        device_name = machine.gpus[0].name if machine.gpus else "a GPU that NVML does not name"
    try:
        results = findings(case, folder, device_name)
    except NewerSchema as error:
        raise Misuse(str(error)) from None
    joined, not_joined = _joined(case, folder, results.trials_done)
    placement = read_placement(folder)  # The local engine writes none.
    return Summary(
        run=file.run,
        case=case,
        hardware=machine.hardware(case.device),
        commit=machine.commit,
        torch_version=machine.torch_version,
        started_ns=file.started_ns,
        ended_ns=max(path.stat().st_mtime_ns for path in folder.iterdir()),
        outcome=outcome,
        cause=cause,
        trials_done=results.trials_done,
        estimates=(*results.estimates, *joined, *_step_ratio(file.prediction, results.estimates)),
        scaling=(),
        effective_batch=results.effective_batch,
        peak=results.peak,
        step_spread_ratio=max(results.step_spreads, default=None),
        step_spreads=results.step_spreads,
        hosts=(machine.hostname,) if placement is None else placement.hosts,
        # A run on the CPU leaves out the nodes' notes, because missing GPU collectors do not matter to it.
        notes=(
            *results.notes,
            *not_joined,
            *(
                f"the run was interrupted: trials from {once.trials_done + 1} on were measured later"
                for once in file.resumed
                if once.trials_done < case.trials
            ),
            *(node_notes(folder) if case.device == "cuda" else ()),
        ),
        folder=str(folder),
        purpose=file.purpose,
        drill=None if file.fault is None else f"{file.fault.kind}@{file.fault.rank}:{file.fault.step}",
        prediction=file.prediction,
    )


def _watched(folder: Path, outcome: TrialOutcome, cause: FailureCause | None) -> Summary:
    """Summarise a watched run. outcome, cause: used only if nobody recorded how its command ended."""
    is_active = read_watch_file(folder).end_unix_s is None and (is_running(folder) or is_written(folder))
    run, machine = read_run(folder, is_active=is_active), machine_of(folder)
    if run.file.exit_code is not None or run.file.signal is not None:
        outcome, cause = _end_of(run)
    ended_s = run.file.end_unix_s
    return Summary(
        run=run.file.run_id,
        case=run.case,
        # The runner's node may have no GPU, for example a login node.
        hardware=run.hardware if run.hardware and not machine.gpus else machine.hardware(run.case.device),
        commit=run.file.git_commit,
        torch_version=run.torch,
        started_ns=round(1e9 * run.file.start_unix_s),
        ended_ns=max(path.stat().st_mtime_ns for path in folder.iterdir()) if ended_s is None else round(1e9 * ended_s),
        outcome=outcome,
        cause=cause,
        trials_done=int(run.is_measured),
        estimates=run.estimates,
        scaling=(),
        effective_batch={},
        step_spread_ratio=max(run.step_spreads, default=None),
        step_spreads=run.step_spreads,
        hosts=run.hosts,
        notes=run.notes,
        folder=str(folder),
        purpose=Purpose(member=SuiteMember(suite=watched_suite(run.file.name), id=run.file.run_id, case=run.file.name)),
        watched=run.details,
    )


def _end_of(run: WatchedRun) -> tuple[TrialOutcome, FailureCause | None]:
    """Return how a watched run's command ended, and the rank that stopped without a report, if it is only one."""
    if run.file.exit_code == 0 and run.file.signal is None:
        if run.is_measured:
            return "done", None
        text = "no step was measured; `observatory show RUN` has the reason"
        return "failed", FailureCause(kind="error", rank=None, step=None, text=text)
    rank = run.died[0] if len(run.died) == 1 else None
    if (number := run.file.signal) is not None:
        kind: Literal["interrupted", "killed"] = "interrupted" if number in (SIGINT, SIGTERM) else "killed"
        text = f"the command was ended by signal {number}"
        return "interrupted" if kind == "interrupted" else "failed", FailureCause(
            kind=kind, rank=rank, step=None, text=text
        )
    text = f"the command ended with code {run.file.exit_code}"
    return "failed", FailureCause(kind="error", rank=rank, step=None, text=text)


def watched_suite(name: str) -> str:
    """Return the suite under which the gate judges watched runs with this name; each run is a night of one case."""
    return f"watch-{name}"


def settle_watched(folder: Path) -> None:
    """Write case.json of a watched run, and machine.json if it is missing.

    Raises:
        Misuse: watch.json cannot be read, or no rank has reported.
        InfrastructureFailed: a file cannot be written.
    """
    try:
        write_json(folder / "machine.json", machine_of(folder))
        write_json(folder / "case.json", _watched_case(folder))
    except OSError as error:
        raise InfrastructureFailed(f"{folder} cannot be written: {error.strerror}; make room") from None


def _watched_case(folder: Path) -> CaseFile:
    file = read_watch_file(folder)
    return CaseFile(
        run=file.run_id,
        case=first_case(folder),
        started_ns=round(1e9 * file.start_unix_s),
        slot=file.slot,
        store=file.store,
        purpose=Purpose(member=SuiteMember(suite=watched_suite(file.name), id=file.run_id, case=file.name)),
    )


def _step_ratio(prediction: StoredPrediction | None, estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """Yield the ratio of the predicted step to each trial's measured step, if both are known."""
    if prediction is not None and prediction.step_s is not None:
        for measured in of_metric(estimates, RUN_STEP_SECONDS):
            yield estimate(RUN_STEP_PREDICTED_RATIO, [prediction.step_s / step_s for step_s in measured.trials])


def _joined(case: Case, folder: Path, trials: int) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return the estimates and notes of the joined profiler windows of the run's ranks."""
    from bench.results.stragglers import joined_estimates  # Imported here: reading a summary needs no analyser.

    try:
        return joined_estimates(case, folder, trials)
    except Exception as error:  # noqa: BLE001  # Whatever a trace holds, the run's other figures must not be lost.
        return (), (f"waits and stragglers are absent: the windows cannot be joined: {in_words(error)}",)


def save(summary: Summary) -> None:
    """Write summary.json, whole or not at all; on return, it and the names of the run's files are on disk.

    Raises:
        InfrastructureFailed: the folder cannot be written.
    """
    folder = Path(summary.folder)
    try:
        _write(folder / "summary.json", encode(summary))
        for written in (*folder.glob("trial*/"), folder, folder.parent):
            sync_folder(written)
    except OSError as error:
        raise InfrastructureFailed(
            f"{folder}/summary.json cannot be written: {error.strerror}; the ranks' logs there are whole,"
            f" and `observatory show {folder}` reads them"
        ) from None


def load(folder: Path) -> Summary:
    """Read the summary of a run's folder; create it from the logs if nobody wrote one.

    In that case the run is done if all its trials are complete: torchrun's ranks have no runner, and a runner may have
    died at the very end. A convergence check is an exception, because its verdict is missing.

    The summary's `folder` is the folder it is read from, wherever the run was measured.

    Raises:
        Misuse: the folder has no run, an active run, files of two runs, or files that a newer version wrote.
    """
    path = folder / "summary.json"
    if path.exists():
        summary = decode(read_small(path, follows_link=False), str(path))
        if summary.run != (run := case_file(folder).run):
            raise Misuse(f"{path} is of run {summary.run}, but case.json next to it of {run}; restore the right one")
        return replace(summary, folder=str(folder.absolute()))
    if is_running(folder):
        raise Misuse(f"{folder} is still active: {lock_holder(folder)} is working on it; look again when it has ended")
    cause = FailureCause(kind="interrupted", rank=None, step=None, text="the runner died before the run's end")
    if is_watched(folder):
        return summarise(folder.absolute(), "interrupted", cause)
    summary = summarise(folder.absolute(), "interrupted", cause)
    is_whole = summary.trials_done == summary.case.trials and check_of(summary.case) is None
    return replace(summary, outcome="done", cause=None) if is_whole else summary


def found_again(run: str, stored: str, runs: Path) -> Path | None:
    """Return the run's folder in `runs` if the folder `stored` in the history no longer exists.

    None if the stored folder exists, so that the one in `runs` is a copy, or if the folder in `runs` is not that of the
    run.
    """
    if is_gone(stored):
        with contextlib.suppress(Misuse):
            folder = runs.absolute() / run
            return folder if is_ours(folder) and case_file(folder).run == run else None
    return None


def is_gone(folder: str) -> bool:
    """Whether a run's folder is missing: deleted, moved, or on another machine. Unreadable folders do not count."""
    try:
        Path(folder).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def machine_of(folder: Path) -> Machine:
    """Read machine.json of a run's folder; for a watched run without it, read this machine."""
    if is_watched(folder) and not (folder / "machine.json").exists():
        return read_machine()
    return _read(folder / "machine.json", Machine)


def other_machines(folder: Path) -> dict[int, Machine]:
    """Read the machines of the run's nodes except the first, by number; unreadable ones are left out."""
    machines = {}
    for path in folder.glob("machine*.json"):
        number = path.stem.removeprefix("machine")
        if number.isdecimal():
            with contextlib.suppress(Misuse):
                machines[int(number)] = _read(path, Machine)
    return dict(sorted(machines.items()))


def case_file(folder: Path) -> CaseFile:
    """Read case.json of a run's folder.

    Raises:
        Misuse: the folder has no run, or one that a newer version wrote.
    """
    if is_watched(folder) and not (folder / "case.json").exists():
        return _watched_case(folder)
    file = _read(folder / "case.json", CaseFile)
    spec = next((spec for spec in SPECS if spec.name == file.case.strategy), None)
    for option in () if spec is None else spec.options:
        value = file.case.options.get(option.name)
        if value is not None and option.choices and value not in option.choices:
            raise Misuse(f"{folder}/case.json: option {option.name} is {value!r}; it may be {option.allowed}")
    return file


def free_slot(runs: Path) -> int:
    """Return the lowest slot that no active run has; slots are small numbers that distinguish live series.

    The caller holds the lock of the folder of runs, and writes the slot into case.json or watch.json before releasing
    it: a watched run has a slot from its start, long before its first rank reports.
    """
    slots = set()
    for folder in slot_folders(runs):
        with contextlib.suppress(Misuse):  # An unreadable run has no live series.
            slots.add(read_watch_file(folder).slot if is_watched(folder) else case_file(folder).slot)
    return next(slot for slot in count() if slot not in slots)


def write_json(path: Path, content: object) -> None:
    """Write a file of the run's folder, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    _write(path, msgspec.json.encode(content))


def _write(path: Path, data: bytes) -> None:
    replace_file(path, msgspec.json.format(data, indent=2) + b"\n")


def _read(path: Path, kind: type[T]) -> T:
    try:
        data = read_small(path, follows_link=False)
        version = schema_version_of(data)
        if version > SCHEMA_VERSION:
            raise Misuse(f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, which this program reads")
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError:
        raise Misuse(f"{path.parent} holds no run: {path.name} is missing") from None
    except OSError as error:
        raise Misuse(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"{path} cannot be read: {error}") from None
