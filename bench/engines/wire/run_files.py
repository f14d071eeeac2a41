"""The transfer of a run's files from a node's agent to the runner, which keeps complete files only."""

from __future__ import annotations

import hashlib
import os
import queue
import re
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from bench.engines.wire.frames import Refused
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.rank.messages import (
    FILE_NAME,
    FilePiece,
    FileSent,
    FilesSent,
    LogTail,
    LogTails,
    SendFiles,
    TrialOrder,
    WatchFiles,
)
from bench.store.active_runs import lock_folder, lock_holder
from collectors.files import drafted, make_subfolder, open_to_append, open_to_read

PIECE_BYTES = 1 << 18
"""Bytes of a piece before compression. A slow link of 1 Mbit/s sends one in 2 s, the time between two heartbeats."""
LOOK_S = 1.0
"""How often new records are read from the logs of watched runs."""

FileMessage: TypeAlias = LogTails | FilePiece | FileSent | FilesSent

_NAME = re.compile(FILE_NAME)
_APPENDED = (".jsonl", ".err")
"""Endings of files that trials append to. Other files are replaced in one piece."""
_FAST = 1
"""zlib's level; it still shrinks logs to a fifth."""


@dataclass(slots=True)
class _Passed:
    """How many bytes of a file have been sent, or received, and their digest."""

    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        """Count the next bytes."""
        self.size += len(data)
        self.digest.update(data)


# On the node.


class FileSender:
    """Sends the files of an agent's runs on request, in a thread of its own.

    If a log existed before the agent began the run, only later records are sent: the runner has the rest from an
    earlier agent. While a run is watched, new records of its logs are sent in one message every `look_s`, and at the
    end only the rest.
    runs: this node's folder of runs. send: sends a message, and returns whether messages can still be sent.
    steps: returns how many steps each rank of this node has finished in the trial.
    """

    def __init__(self, runs: Path, send: Callable[[msgspec.Struct], bool], *, look_s: float = LOOK_S) -> None:
        self._runs, self._send, self._look_s = runs, send, look_s
        self._requests: queue.SimpleQueue[SendFiles | WatchFiles | None] = queue.SimpleQueue()
        self._starts: dict[str, dict[str, int]] = {}  # By run and name: the size of a log when the agent began.
        self._locks: dict[str, int] = {}
        self._sent: dict[str, dict[str, _Passed]] = {}  # By run and name: the sent part of a log.
        self._watched: dict[str, bool] = {}  # By run: whether all ranks' logs are watched.
        self.steps: Callable[[], Mapping[int, int]] = dict
        self._thread = threading.Thread(target=self._serve, name="sending files", daemon=True)
        self._thread.start()

    def begin(self, order: TrialOrder, machine: Machine) -> None:
        """Make the run's folder as a runner does and lock it, so that the node's exporter shows the run as running.

        Raises:
            InfrastructureFailed: the folder cannot be made, or belongs to another process.
        """
        from bench.store import run_dir

        if order.run in self._locks:
            return
        folder = self._runs / order.run
        self._sent.setdefault(order.run, {})
        if not (folder / "case.json").exists():
            self._starts[order.run] = {}
            run = run_dir.begin(order.case, machine, self._runs, order.fault, name=order.run)
            self._locks[order.run] = run.lock
            return
        lock = lock_folder(folder)
        if lock is None:
            raise InfrastructureFailed(
                f"{folder} is in use by the runner or another agent ({lock_holder(folder)}); give each agent its own"
                " --runs"
            )
        self._locks[order.run] = lock
        if order.run not in self._starts:  # Otherwise its files were sent before, from the same starts.
            self._starts[order.run] = {
                name: path.lstat().st_size for name, path in _files(folder) if name.endswith(_APPENDED)
            }

    def ask(self, message: SendFiles | WatchFiles) -> None:
        """Queue a request; requests are served in order."""
        self._requests.put(message)

    @property
    def is_all_sent(self) -> bool:
        """Whether the files of all runs begun here have been sent."""
        return not self._locks

    def close(self) -> None:
        """Stop sending."""
        self._requests.put(None)

    def _serve(self) -> None:
        while True:
            try:
                message = self._requests.get(timeout=self._look_s if self._watched else None)
            except queue.Empty:
                for run in self._watched:
                    self._send_tails(run)
                continue
            match message:
                case None:
                    return
                case WatchFiles(run=run, is_watched=True):
                    self._watched[run] = message.all_ranks
                case WatchFiles(run=run):
                    self._watched.pop(run, None)
                case SendFiles(run=run, again=again):
                    self._watched.pop(run, None)
                    self._send_files(run, again)

    def _send_files(self, run: str, again: Collection[str]) -> None:
        if run not in self._starts:
            self._send(FilesSent(run=run, left_out=(f"this agent ran no trial of {run}",)))
            return
        left_out = []
        try:
            files = tuple(_files(self._runs / run))
        except OSError as error:
            files, left_out = (), [f"the run's folder on the node cannot be read: {error.strerror}"]
        for name in again:
            self._sent[run].pop(name, None)
        for name, path in files:
            try:
                self._send_file(run, name, path)
            except OSError as error:
                left_out.append(f"{name} cannot be read: {error.strerror}")
        if run in self._locks:  # First, so that the run has ended here when the runner hears of it.
            os.close(self._locks.pop(run))
        self._send(FilesSent(run=run, left_out=tuple(left_out)))

    def _send_file(self, run: str, name: str, path: Path) -> None:
        """Send a file, or the rest of a log, up to its present size even if it grows meanwhile."""
        start, sent = self._starts[run].get(name, 0), self._sent[run].get(name)
        size = path.lstat().st_size - start
        if sent is not None and sent.size <= size:
            while sent.size < size and self._send_appended(run, ((name, path),), PIECE_BYTES):
                pass
        else:
            sent = _Passed()
            with open_to_read(path) as file:
                file.seek(start)
                while data := file.read(min(PIECE_BYTES, size - sent.size)):
                    piece = FilePiece(run=run, name=name, start=sent.size, data=zlib.compress(data, _FAST))
                    if not self._send(piece):
                        return
                    sent.add(data)
            if name.endswith(_APPENDED):
                self._sent[run][name] = sent
        self._send(FileSent(run=run, name=name, size=sent.size, sha256=sent.digest.hexdigest()))

    def _send_tails(self, run: str) -> None:
        if run not in self._starts:  # It is watched before it begins.
            return
        with suppress(OSError):  # `_send_files` reports what cannot be read.
            logs = tuple((name, path) for name, path in _files(self._runs / run) if self._is_live(run, name))
            self._send_appended(run, logs, PIECE_BYTES // max(1, len(logs)))

    def _is_live(self, run: str, name: str) -> bool:
        """Whether new records of a file are sent at once: for logs of the node and of watched ranks."""
        if self._watched[run] or name.startswith("node"):
            return name.endswith(".jsonl")
        steps = self.steps()
        outermost = [choose(steps, key=lambda rank: (steps[rank], rank)) for choose in (min, max) if steps]
        return name in {f"rank{rank}.jsonl" for rank in outermost}

    def _send_appended(self, run: str, logs: Sequence[tuple[str, Path]], most: int) -> bool:
        """Send the next bytes of these logs, at most this many of each; return whether any were sent."""
        appended: dict[str, bytes] = {}
        for name, path in logs:
            position = self._starts[run].get(name, 0) + self._sent[run].setdefault(name, _Passed()).size
            if path.lstat().st_size > position:
                with open_to_read(path) as file:
                    file.seek(position)
                    appended[name] = file.read(most)
        tails = tuple(
            LogTail(name=name, start=self._sent[run][name].size, size=len(data)) for name, data in appended.items()
        )
        data = zlib.compress(b"".join(appended.values()), _FAST)
        if not tails or not self._send(LogTails(run=run, tails=tails, data=data)):
            return False
        for name, data in appended.items():
            self._sent[run][name].add(data)
        return True


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of the files that ranks and nodes have written in a run's folder."""
    with suppress(FileNotFoundError):
        for path in sorted((*folder.iterdir(), *folder.glob("trial*/*"))):
            name = path.relative_to(folder).as_posix()
            if _NAME.match(name):
                yield name, path


# At the runner.


class _DraftAbandoned(Exception):
    """Ends a draft without keeping it."""


@dataclass(slots=True)
class _Draft(_Passed):
    """A file that is being received. ends: closing it moves the file into place."""

    file: IO[bytes] = field(kw_only=True)
    ends: ExitStack = field(kw_only=True)


class LogSizes:
    """Sizes of runs' logs before agents append to them. An engine's links share it, so that each run is listed once."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._sizes: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()

    def of(self, run: str) -> Mapping[str, int]:
        """Return the size of each of the run's logs at the first call for this run."""
        with self._lock:
            if run not in self._sizes:
                self._sizes[run] = {
                    name: path.lstat().st_size for name, path in _files(self.runs / run) if name.endswith(_APPENDED)
                }
            return self._sizes[run]


class FileReceiver:
    """Stores the files that one agent sends in the runner's folder of runs.

    A file is written as a draft, and moved into place when it is complete. A log continues what the runner had of it
    when it first expected the run. Tails are appended to the log in place; it is complete when they agree with the
    agent's size and checksum.
    """

    def __init__(self, log_sizes: LogSizes) -> None:
        self._log_sizes, self._runs = log_sizes, log_sizes.runs
        self._bases: dict[str, Mapping[str, int]] = {}  # By expected run and name: the size of a log before.
        self._drafts: dict[tuple[str, str], _Draft] = {}
        self._tails: dict[tuple[str, str], _Passed] = {}  # The part of a log that is in place.
        self._lost: dict[str, set[str]] = {}  # By run: logs with a tail that could not be stored.
        self._unsynced: dict[str, set[Path]] = {}  # By run: complete logs.
        self._problems: dict[str, list[str]] = {}

    def expect(self, run: str) -> None:
        """Accept files of this run from now on."""
        if run not in self._bases:
            self._bases[run] = self._log_sizes.of(run)

    def take(self, message: FileMessage) -> None:
        """Store what an agent sent. What cannot be stored becomes a problem of the run.

        Raises:
            Refused: it belongs to a run that is not expected.
        """
        if message.run not in self._bases:
            raise Refused(f"the agent sent a file of run {message.run}, which it was not ordered to run")
        try:
            match message:
                case LogTails():
                    self._append_all(message)
                case FilePiece(is_tail=True):
                    self._append(message.run, message.name, message.start, _decompressed(message.data))
                case FilePiece():
                    self._draft(message)
                case FileSent():
                    self._keep(message)
                case FilesSent():
                    self._note(message.run, *message.left_out)
        except (OSError, zlib.error) as error:
            assert isinstance(message, FilePiece | FileSent), "other messages write nothing, or note what is lost"
            why = error.strerror if isinstance(error, OSError) else f"a piece of it is damaged ({error})"
            self._give_up(message.run, message.name, f"{message.name} cannot be stored: {why}")

    def lost(self, run: str) -> tuple[str, ...]:
        """Return, once, the names of logs that the agent must send whole, because a tail could not be stored."""
        return tuple(sorted(self._lost.pop(run, ())))

    def finish(self, run: str) -> tuple[str, ...]:
        """Sync the run's logs to the disk; return, once, a line for each file that was not received completely."""
        for path in self._unsynced.pop(run, ()):
            try:
                fd = open_to_append(path)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            except OSError as error:
                self._note(run, f"{path.name} cannot be synced to the disk: {error.strerror}")
        return tuple(self._problems.pop(run, ()))

    def close(self) -> None:
        """Remove incomplete files."""
        for run, name in tuple(self._drafts):
            self._give_up(run, name)

    def _append_all(self, message: LogTails) -> None:
        try:
            data = _decompressed(message.data)
        except zlib.error:
            data = b""
        for tail in message.tails:
            content, data = data[: tail.size], data[tail.size :]
            if len(content) < tail.size or not self._append(message.run, tail.name, tail.start, content):
                self._lost.setdefault(message.run, set()).add(tail.name)

    def _append(self, run: str, name: str, start: int, content: bytes) -> bool:
        """Append to a log in place; return False if the content does not continue the log, or cannot be written."""
        tail = self._tails.setdefault((run, name), _Passed())
        if tail.size != start:
            return False
        try:
            fd = open_to_append(self._runs / run / name)
            try:
                if os.fstat(fd).st_size != self._bases[run].get(name, 0) + start:
                    return False
                if os.write(fd, content) < len(content):
                    return False
            finally:
                os.close(fd)
        except OSError:  # If it cannot be written at the end either, `take` notes why.
            return False
        tail.add(content)
        return True

    def _draft(self, piece: FilePiece) -> None:
        key = piece.run, piece.name
        if piece.start == 0:
            self._give_up(*key)
            self._tails.pop(key, None)
            self._drafts[key] = self._begin(piece.run, piece.name)
        draft = self._drafts.get(key)
        if draft is None or draft.size != piece.start:  # Its beginning could not be stored, which is already noted.
            return
        data = _decompressed(piece.data)
        draft.file.write(data)
        draft.add(data)

    def _begin(self, run: str, name: str) -> _Draft:
        """Return a new draft; that of a log begins with what the runner had before."""
        path = self._runs / run / name
        if path.parent != self._runs / run:
            make_subfolder(path.parent)
        base = self._bases[run].get(name, 0)
        with ExitStack() as ends:
            file = ends.enter_context(drafted(path))
            if base:
                with open_to_read(path) as before:
                    while base and (data := before.read(min(PIECE_BYTES, base))):
                        file.write(data)
                        base -= len(data)
            return _Draft(file=file, ends=ends.pop_all())

    def _keep(self, sent: FileSent) -> None:
        key = sent.run, sent.name
        if sent.size == 0 and key not in self._drafts and key not in self._tails:  # An empty file has no piece.
            self._drafts[key] = self._begin(*key)
        received = self._drafts.get(key) or self._tails.get(key)
        if received is None:  # Its beginning could not be stored, which is already noted.
            return
        if (received.size, received.digest.hexdigest()) != (sent.size, sent.sha256):
            self._give_up(
                *key, f"{sent.name} arrived damaged: {received.size} of {sent.size} bytes, or with a wrong checksum"
            )
            return
        if isinstance(received, _Draft):
            del self._drafts[key]
            received.ends.close()
        else:
            self._unsynced.setdefault(sent.run, set()).add(self._runs / sent.run / sent.name)
        if sent.name.endswith(_APPENDED):
            self._tails[key] = _Passed(received.size, received.digest)

    def _give_up(self, run: str, name: str, *problem: str) -> None:
        draft = self._drafts.pop((run, name), None)
        if draft is not None:
            # The disk may still be too full for the buffer.
            with suppress(OSError, _DraftAbandoned), draft.ends:
                raise _DraftAbandoned
        self._note(run, *problem)

    def _note(self, run: str, *problems: str) -> None:
        noted = self._problems.setdefault(run, [])
        noted.extend(problem for problem in problems if problem not in noted)


def _decompressed(data: bytes) -> bytes:
    """Return the decompressed bytes of a piece.

    Raises:
        zlib.error: the data is damaged, or longer than a piece may be.
    """
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(data, PIECE_BYTES)
    if not unpacking.eof:
        raise zlib.error("it is cut off, or longer than a piece may be")
    return unpacked
