"""Files of runs on their way from a node to the runner: sent by the node's agent, kept whole or not at all."""

from __future__ import annotations

import hashlib
import os
import queue
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from bench.engines.wire.frames import Refused
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.rank.messages import FILE_NAME, FilePiece, FileSent, FilesSent, SendFiles, TrialOrder, WatchFiles
from bench.store.active_runs import lock_folder, lock_holder
from collectors.files import drafted, make_subfolder, open_to_append, open_to_read

PIECE_BYTES = 1 << 18
"""Bytes of a piece before it is compressed. A slow link of 1 Mbit/s takes 2 s for one: as long as a beat."""
LOOK_S = 1.0
"""How often the logs of watched runs are looked at."""

_NAME = re.compile(FILE_NAME)
_APPENDED = (".jsonl", ".err")
"""Endings of files that trials append to. Other files are replaced in one piece."""
_FAST = 1
"""zlib's level: logs shrink to a fifth all the same."""


# On the node.


class FileSender:
    """Sends the files of an agent's runs when asked, in a thread of its own.

    Of a log that was there before the agent began with the run, only what has been appended since is sent: the runner
    has the rest from an earlier agent.
    runs: where this node keeps the folders of runs. send: sends a message, and returns whether that is still possible.
    """

    def __init__(self, runs: Path, send: Callable[[msgspec.Struct], bool], *, look_s: float = LOOK_S) -> None:
        self._runs, self._send, self._look_s = runs, send, look_s
        self._requests: queue.SimpleQueue[SendFiles | WatchFiles | None] = queue.SimpleQueue()
        self._starts: dict[str, dict[str, int]] = {}  # By run and name: the size of a log when the agent began with it.
        self._locks: dict[str, int] = {}
        self._watched: dict[str, dict[str, int]] = {}  # By run and name: up to where it was sent.
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
        if (
            order.run not in self._starts
        ):  # Otherwise it goes on after its files were sent, and the runner has its base.
            self._starts[order.run] = {
                name: path.lstat().st_size for name, path in _files(folder) if name.endswith(_APPENDED)
            }

    def ask(self, message: SendFiles | WatchFiles) -> None:
        """Send what the message asks for, after what was asked before."""
        self._requests.put(message)

    @property
    def is_all_sent(self) -> bool:
        """Whether the files of each run that was begun have been sent."""
        return not self._locks

    def close(self) -> None:
        """Send nothing more."""
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
                    self._watched.setdefault(run, {})
                case WatchFiles(run=run):
                    self._watched.pop(run, None)
                case SendFiles(run=run):
                    self._watched.pop(run, None)
                    self._send_files(run)

    def _send_files(self, run: str) -> None:
        if run not in self._starts:
            self._send(FilesSent(run=run, left_out=(f"this agent ran no trial of {run}",)))
            return
        left_out = []
        try:
            files = tuple(_files(self._runs / run))
        except OSError as error:
            files, left_out = (), [f"the run's folder on the node cannot be read: {error.strerror}"]
        for name, path in files:
            try:
                self._send_file(run, name, path)
            except OSError as error:
                left_out.append(f"{name} cannot be read: {error.strerror}")
        if run in self._locks:  # First, so that who hears of the end finds the run ended on its node, too.
            os.close(self._locks.pop(run))
        self._send(FilesSent(run=run, left_out=tuple(left_out)))

    def _send_file(self, run: str, name: str, path: Path) -> None:
        start = self._starts[run].get(name, 0)
        digest, sent = hashlib.sha256(), 0
        with open_to_read(path) as file:
            size = os.fstat(file.fileno()).st_size - start
            file.seek(start)
            while data := file.read(min(PIECE_BYTES, size - sent)):  # A file that grows meanwhile is sent up to there.
                digest.update(data)
                if not self._send(FilePiece(run=run, name=name, start=sent, data=zlib.compress(data, _FAST))):
                    return
                sent += len(data)
        self._send(FileSent(run=run, name=name, size=sent, sha256=digest.hexdigest()))

    def _send_tails(self, run: str) -> None:
        if run not in self._starts:  # It is watched before it begins.
            return
        positions = self._watched[run]
        with suppress(OSError):  # What cannot be read now is named when all files are sent.
            for name, path in _files(self._runs / run):
                if name.endswith(".jsonl"):
                    with suppress(OSError):
                        positions[name] = self._send_tail(run, name, path, positions.get(name, 0))

    def _send_tail(self, run: str, name: str, path: Path, position: int) -> int:
        """Send what was appended since; return up to where the log is sent now."""
        with open_to_read(path) as file:
            file.seek(self._starts[run].get(name, 0) + position)
            while data := file.read(PIECE_BYTES):
                piece = FilePiece(run=run, name=name, start=position, data=zlib.compress(data, _FAST), is_tail=True)
                if not self._send(piece):
                    break
                position += len(data)
        return position


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of what ranks and nodes have written in a run's folder."""
    with suppress(FileNotFoundError):
        for path in sorted((*folder.iterdir(), *folder.glob("trial*/*"))):
            name = path.relative_to(folder).as_posix()
            if _NAME.match(name):
                yield name, path


# At the runner.


class _DraftAbandoned(Exception):
    """Ends a draft without keeping it."""


@dataclass(slots=True)
class _Draft:
    """A file that is being received. ends: closing it puts the file in its place. size, digest: of what has come."""

    file: IO[bytes]
    ends: ExitStack
    size: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)


class LogSizes:
    """Sizes of runs' logs before agents append to them. The agents of an engine share it: each run is listed once."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._sizes: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()

    def of(self, run: str) -> Mapping[str, int]:
        """Return the size of each log of the run when this was first called for it."""
        with self._lock:
            if run not in self._sizes:
                self._sizes[run] = {
                    name: path.lstat().st_size for name, path in _files(self.runs / run) if name.endswith(_APPENDED)
                }
            return self._sizes[run]


class FileReceiver:
    """Keeps the files that one agent sends, beneath the runner's folder of runs.

    A file is written beside its place, and put there when it is whole. Logs go behind what the runner had of them when
    it first expected the run.
    """

    def __init__(self, log_sizes: LogSizes) -> None:
        self._log_sizes, self._runs = log_sizes, log_sizes.runs
        self._bases: dict[str, Mapping[str, int]] = {}  # By expected run and name: the size of a log before.
        self._drafts: dict[tuple[str, str], _Draft] = {}
        self._problems: dict[str, list[str]] = {}

    def expect(self, run: str) -> None:
        """Accept files of this run from now on."""
        if run not in self._bases:
            self._bases[run] = self._log_sizes.of(run)

    def take(self, message: FilePiece | FileSent | FilesSent) -> None:
        """Keep what an agent sent. What cannot be kept becomes a problem of the run.

        Raises:
            Refused: it belongs to a run that is not expected.
        """
        if message.run not in self._bases:
            raise Refused(f"the agent sent a file of run {message.run}, which it was not ordered to run")
        try:
            match message:
                case FilePiece(is_tail=True):
                    self._append(message)
                case FilePiece():
                    self._draft(message)
                case FileSent():
                    self._keep(message)
                case FilesSent():
                    self._note(message.run, *message.left_out)
        except (OSError, zlib.error) as error:
            assert not isinstance(message, FilesSent), "it writes nothing"
            why = error.strerror if isinstance(error, OSError) else f"a piece of it is damaged ({error})"
            self._give_up(message.run, message.name, f"{message.name} cannot be stored: {why}")

    def problems(self, run: str) -> tuple[str, ...]:
        """Return a line on each file that was not received whole, and forget them."""
        return tuple(self._problems.pop(run, ()))

    def close(self) -> None:
        """Remove what was not received whole."""
        for run, name in tuple(self._drafts):
            self._give_up(run, name)

    def _append(self, piece: FilePiece) -> None:
        path = self._runs / piece.run / piece.name
        position = self._bases[piece.run].get(piece.name, 0) + piece.start
        with os.fdopen(open_to_append(path), "ab") as file:
            if file.tell() == position:  # Otherwise a piece was lost: all of the log comes at the case's end.
                file.write(_decompressed(piece.data))

    def _draft(self, piece: FilePiece) -> None:
        key = piece.run, piece.name
        if piece.start == 0:
            self._give_up(*key)
            self._drafts[key] = self._begin(piece.run, piece.name)
        draft = self._drafts.get(key)
        if draft is None or draft.size != piece.start:  # Its beginning could not be kept, which is noted already.
            return
        data = _decompressed(piece.data)
        draft.file.write(data)
        draft.digest.update(data)
        draft.size += len(data)

    def _begin(self, run: str, name: str) -> _Draft:
        """Return a new draft, which begins with what the runner had of a log before."""
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
        if sent.size == 0 and key not in self._drafts:  # An empty file has no piece.
            self._drafts[key] = self._begin(*key)
        draft = self._drafts.get(key)
        if draft is None:
            return
        if (draft.size, draft.digest.hexdigest()) != (sent.size, sent.sha256):
            self._give_up(
                *key, f"{sent.name} arrived damaged: {draft.size} of {sent.size} bytes, or with a wrong checksum"
            )
            return
        del self._drafts[key]
        draft.ends.close()

    def _give_up(self, run: str, name: str, *problem: str) -> None:
        draft = self._drafts.pop((run, name), None)
        if draft is not None:
            # What is buffered may still find no place.
            with suppress(OSError, _DraftAbandoned), draft.ends:
                raise _DraftAbandoned
        self._note(run, *problem)

    def _note(self, run: str, *problems: str) -> None:
        noted = self._problems.setdefault(run, [])
        noted.extend(problem for problem in problems if problem not in noted)


def _decompressed(data: bytes) -> bytes:
    """Return the bytes of a piece, which are at most as many as one may have.

    Raises:
        zlib.error: the data is damaged, or more.
    """
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(data, PIECE_BYTES)
    if not unpacking.eof:
        raise zlib.error("it is cut off, or longer than a piece may be")
    return unpacked
