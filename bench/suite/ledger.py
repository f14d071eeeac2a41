"""The ledger of a suite run: what began and how it ended, one record per line, so that the run can be resumed.

Each record is appended by one system call and is on disk before the next one is written, so a process that dies loses
at most its last line. `fold` computes the state of a ledger from its records alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from bench.errors import InfrastructureFailed, Misuse
from bench.rank.messages import FailureCause, TrialOutcome
from bench.store.files import read_small
from bench.store.suite_record import FAILED, CaseOutcome
from bench.suite.file import SuiteCase
from collectors.files import holder_of, open_to_append, schema_version_of, sync_folder, try_lock

SCHEMA_VERSION = 3
"""Version 3 added dropped cases."""
LEDGER = "ledger.jsonl"

EndOutcome = Literal["done", "failed", "interrupted"]
"""failed: a case failed or could not run here. interrupted: a person, a signal or the infrastructure ended it."""

MISSING: frozenset[CaseOutcome | None] = frozenset({None, "interrupted", "skipped", "left_out"})
"""Outcomes of cases that a resumed suite run still has to measure. None: the ledger has no end of the case."""


# Records


class Begun(msgspec.Struct, frozen=True, tag="begun", kw_only=True):
    """The suite run began. digest: of the resolved suite. tags: those of --only; without tags, all cases run."""

    suite: str
    suite_run: str
    digest: str
    time_ns: int
    tags: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


class Resumed(msgspec.Struct, frozen=True, tag="resumed", kw_only=True):
    """Another process continued the suite run."""

    time_ns: int
    schema_version: int = SCHEMA_VERSION


class CaseBegun(msgspec.Struct, frozen=True, tag="case_begun", kw_only=True):
    """A run of a case is about to begin. attempt: 0, plus 1 after each failure of the infrastructure."""

    case: str
    run: str
    attempt: int
    time_ns: int


class TrialEnded(msgspec.Struct, frozen=True, tag="trial_ended", kw_only=True):
    """A trial of a case ended, and its ranks are gone."""

    case: str
    run: str
    trial: int
    attempt: int
    outcome: TrialOutcome
    time_ns: int
    cause: FailureCause | None = None


class CaseEnded(msgspec.Struct, frozen=True, tag="case_ended", kw_only=True):
    """A case ended, and its results are in the folder of its run.

    run: None if the case did not run. reason: why it did not end well or did not run, or how a fire drill ended.
    is_infrastructure: an engine, a node or a disk failed, not the workload.
    """

    case: str
    run: str | None
    outcome: CaseOutcome
    time_ns: int
    reason: str | None = None
    is_infrastructure: bool = False


class Reran(msgspec.Struct, frozen=True, tag="reran", kw_only=True):
    """A case was measured again because the gate suspected a change; its own outcome does not change."""

    case: str
    run: str
    outcome: TrialOutcome
    time_ns: int


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """The suite run ended; it may be resumed afterwards."""

    outcome: EndOutcome
    time_ns: int


Record = Begun | Resumed | CaseBegun | TrialEnded | CaseEnded | Reran | Ended


# How a case ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How a case ended in its suite; see `CaseEnded`."""

    outcome: CaseOutcome
    reason: str | None = None
    is_infrastructure: bool = False


def judge(case: SuiteCase, ended: TrialOutcome, cause: FailureCause | None) -> Judgement:
    """Return how the case ended: a fire drill is done if it ended as expected.

    A case whose disk failed counts as interrupted: it continues when the suite run is resumed.
    """
    expect = case.expect
    is_infrastructure = cause is not None and cause.kind in ("agent", "disk")
    if expect is not None and ended != "interrupted":
        is_its_kind = not is_infrastructure  # A lost agent counts only if the drill expects it.
        if expect.cause is not None:
            is_its_kind = cause is not None and cause.kind == expect.cause
        if (
            ended == expect.outcome
            and is_its_kind
            and (expect.rank is None or (cause is not None and cause.rank == expect.rank))
        ):
            return Judgement(outcome="done", reason=None if cause is None else cause.text)
        wanted = " ".join(
            [expect.outcome.replace("_", " "), *([f"({expect.cause})"] if expect.cause else [])]
            + ([] if expect.rank is None else [f"by rank {expect.rank}"])
        )
        end = "it ended well" if cause is None else f"{ended.replace('_', ' ')}: {cause.text}"
        return Judgement(outcome="failed", reason=f"expected {wanted}, but {end}", is_infrastructure=is_infrastructure)
    if cause is None:
        return Judgement(outcome=ended)
    outcome: CaseOutcome = "interrupted" if cause.kind == "disk" else ended
    return Judgement(outcome=outcome, reason=cause.text, is_infrastructure=is_infrastructure)


# The state after the records


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseState:
    """The state of a case, according to the ledger.

    run: the run that measures it, or can be resumed; None if it never ran. outcome: None as long as its end is unknown.
    begun_ns, ended_ns: Unix time. trials_done: trials that the ledger knows to be complete.
    """

    run: str | None = None
    attempt: int = 0
    trials_done: frozenset[int] = frozenset()
    outcome: CaseOutcome | None = None
    reason: str | None = None
    is_infrastructure: bool = False
    begun_ns: int | None = None
    ended_ns: int | None = None

    @property
    def run_to_resume(self) -> str | None:
        """The run whose missing trials must be measured; None if the case begins with a new run."""
        return self.run if self.outcome in MISSING else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteState:
    """The state of a suite run, according to its ledger.

    begun: None if there is no record yet. outcome: None while it runs, and if its runner died. cases: cases that began
    or ended, by name. sessions: times in which a process worked on it, each from its beginning to its last record, in
    Unix nanoseconds.
    """

    begun: Begun | None = None
    cases: dict[str, CaseState] = field(default_factory=dict)
    outcome: EndOutcome | None = None
    sessions: tuple[tuple[int, int], ...] = ()

    @property
    def took_s(self) -> float:
        """Seconds in which processes worked on the suite run."""
        return sum(last_ns - first_ns for first_ns, last_ns in self.sessions) / 1e9

    def case(self, name: str) -> CaseState:
        """Return the state of a case; a case that is not in the ledger has not begun."""
        return self.cases.get(name, CaseState())

    def missing(self, names: Iterable[str], *, is_failed_repeated: bool = False) -> tuple[str, ...]:
        """Return the cases that still have to be measured; is_failed_repeated: include failed ones."""
        wanted = MISSING | FAILED if is_failed_repeated else MISSING
        return tuple(name for name in names if self.case(name).outcome in wanted)


def fold(records: Iterable[Record]) -> SuiteState:
    """Return the state after these records, in their order. Any beginning of a ledger gives a valid state."""
    state = SuiteState()
    cases: dict[str, CaseState] = {}
    sessions: list[tuple[int, int]] = []
    for record in records:
        if isinstance(record, (Begun, Resumed)):
            sessions.append((record.time_ns, record.time_ns))
        elif sessions:
            sessions[-1] = (sessions[-1][0], max(sessions[-1][1], record.time_ns))
        match record:
            case Begun():
                state = replace(state, begun=record)
            case Resumed():
                state = replace(state, outcome=None)
            case Ended():
                state = replace(state, outcome=record.outcome)
            case CaseBegun() | TrialEnded() | CaseEnded():
                cases[record.case] = _after(cases.get(record.case, CaseState()), record)
    return replace(state, cases=cases, sessions=tuple(sessions))


def _after(state: CaseState, record: CaseBegun | TrialEnded | CaseEnded) -> CaseState:
    """Return the state of a case after one more of its records."""
    match record:
        case CaseBegun():
            is_same = record.run == state.run  # A new run starts over without the trials of the old one.
            return CaseState(
                run=record.run,
                attempt=record.attempt,
                trials_done=state.trials_done if is_same else frozenset(),
                begun_ns=state.begun_ns if is_same else record.time_ns,
            )
        case TrialEnded():
            done = {record.trial} if record.outcome == "done" and record.run == state.run else set()
            return replace(state, trials_done=state.trials_done | done)
        case CaseEnded():
            return replace(
                state,
                run=record.run or state.run_to_resume,  # Earlier trials of a left-out case still count.
                outcome=record.outcome,
                reason=record.reason,
                is_infrastructure=record.is_infrastructure,
                ended_ns=record.time_ns,
            )


# The file


_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The records of a ledger. whole_bytes: its length without a last line that a dead writer left incomplete."""

    records: tuple[Record, ...]
    whole_bytes: int


def read_ledger(path: Path) -> Contents:
    """Read a ledger; a last line that is cut off or broken is left out.

    Raises:
        Misuse: there is no ledger, a line before the last is broken, or a newer version wrote it.
    """
    try:
        data = read_small(path, follows_link=False)
    except OSError as error:
        raise Misuse(f"{path} cannot be read: {error.strerror}; `observatory suite show` lists suite runs") from None
    records: list[Record] = []
    whole_bytes = 0
    *lines, _ = data.split(b"\n")  # The last item is an unfinished line, or empty.
    for number, line in enumerate(lines, start=1):
        try:
            record = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _refuse_newer(path, line)
            if number < len(lines):
                raise Misuse(
                    f"{path}: line {number} cannot be read ({error}); run the suite again, without --resume"
                ) from None
            break
        if isinstance(record, (Begun, Resumed)) and record.schema_version > SCHEMA_VERSION:
            _refuse_newer(path, line)
        records.append(record)
        whole_bytes += len(line) + 1
    return Contents(records=tuple(records), whole_bytes=whole_bytes)


def _refuse_newer(path: Path, line: bytes) -> None:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        version = schema_version_of(line)
        if version > SCHEMA_VERSION:
            raise Misuse(
                f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, which this program reads; resume it"
                " with the version that wrote it"
            )


class LedgerWriter:
    """A ledger, open for appending and locked until it is closed. Use it in a `with`.

    folder: the suite run's existing folder. is_resumed: an earlier process began the suite run.

    Raises:
        Misuse: another process is writing it, or it cannot be resumed; see `read_ledger`.
        InfrastructureFailed: the disk is full or gone; each call that writes may raise this.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / LEDGER
        try:
            self._fd = open_to_append(self.path)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if not self._try_lock():
                raise Misuse(
                    f"suite run {folder.name} is being run by {holder_of(self._fd)}; wait for its end, or leave"
                    " --resume out"
                )
            contents = read_ledger(self.path)
            self._records = list(contents.records)
            self.is_resumed = bool(self._records)
            self._bytes = contents.whole_bytes
            if os.fstat(self._fd).st_size > self._bytes:
                os.ftruncate(self._fd, self._bytes)
            sync_folder(folder)
        except OSError as error:
            os.close(self._fd)
            raise self._unwritable(error) from None
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the ledger."""
        os.close(self._fd)

    @property
    def state(self) -> SuiteState:
        """State after all records, including those of earlier processes."""
        return fold(self._records)

    def _try_lock(self) -> bool:
        try:
            return try_lock(self._fd)
        except OSError as error:
            raise InfrastructureFailed(
                f"{self.path} cannot be locked: {error.strerror}; two runners could write it at once, so choose a"
                " folder on another file system with --runs"
            ) from None

    def write(self, record: Record) -> None:
        """Append the record; when this returns, the record is on disk.

        Raises:
            InfrastructureFailed: the disk is full or gone, or another runner has written to the ledger, since some file
                systems lock within one host only.
        """
        line = msgspec.json.encode(record) + b"\n"
        try:
            if os.fstat(self._fd).st_size != self._bytes:
                raise InfrastructureFailed(
                    f"{self.path} is also written by another runner, perhaps on another host: its file system does not"
                    " lock between hosts; end one of them, then `observatory suite run --resume` continues"
                )
            written = os.write(self._fd, line)
            if written < len(line):  # The disk is full; the next call raises.
                os.write(self._fd, line[written:])
            os.fsync(self._fd)
        except OSError as error:
            with suppress(OSError):  # The next record must not follow half a line.
                os.ftruncate(self._fd, self._bytes)
            raise self._unwritable(error) from None
        self._bytes += len(line)
        self._records.append(record)

    def _unwritable(self, error: OSError) -> InfrastructureFailed:
        return InfrastructureFailed(
            f"{self.path} cannot be written: {error.strerror}; make room, then `observatory suite run --resume`"
            " continues"
        )


def is_written(folder: Path) -> bool:
    """Whether a process is working on the suite run in this folder."""
    try:
        fd = os.open(folder / LEDGER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(fd, fcntl.LOCK_SH)  # Shared: two simultaneous checks do not see each other.
    except OSError:  # The file system has no locks.
        return False
    finally:
        os.close(fd)
