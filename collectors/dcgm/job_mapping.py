"""Job mapping: tells an existing dcgm-exporter which runs are on which GPU, so that its own series bear the run's id.

Knows neither NVML nor what a run is. Source: dcgm-exporter, `--hpc-job-mapping-dir`: a job file's name is DCGM's number
of a GPU, which is NVML's index, or "GPU.instance" with NVML's number of the GPU instance where MIG splits it, which
older exporters ignore; each line is a job, and becomes the label `hpc_job`.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path

import msgspec

from collectors.background import BackgroundTask
from collectors.errors import in_words
from collectors.files import drafted, locked, open_to_read, schema_version_of, try_lock
from collectors.metrics.gpu import RANK_GPU
from collectors.metrics.metric import Sample
from collectors.prometheus.exposition import Owned

# Claims: a file that records which lines of the job files are ours and that survives us, so that a later process can
# remove them.

SCHEMA_VERSION = 1
_PREFIX = ".observatory-"
"""dcgm-exporter reads files whose names are numbers, and ignores all others."""
_DRAFT = ".draft"


class Claim(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One line of one job file. file: its name, which is the GPU's. line: the run."""

    file: str
    line: str


class Claims:
    """The claims file of one process. A lock on it, which ends with the process, shows that the process lives.

    draft: a path in the folder that nobody else writes to.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{_PREFIX}{secrets.token_hex(6)}"
        self.draft = _draft_of(self._path)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try_lock(self._fd)  # The file is new, and so nobody else's.
        self._size_bytes = os.write(self._fd, msgspec.json.encode({"schema_version": SCHEMA_VERSION}) + b"\n")

    def add(self, claim: Claim) -> None:
        """Record a claim. Call it before the line is written, so that a crash in between leaves no unclaimed line.

        Raises:
            OSError: the disk is full.
        """
        os.write(self._fd, msgspec.json.encode(claim) + b"\n")

    def forget(self) -> None:
        """Drop all claims."""
        os.ftruncate(self._fd, self._size_bytes)

    def close(self, *, are_ended: bool) -> None:
        """Close the claims file; keep it for a later process unless all our lines are removed (`are_ended`)."""
        if are_ended:
            self.draft.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


def inherit(folder: Path, claims: Claims) -> set[Claim]:
    """Take over the claims of processes that died without removing their lines; call it while the folder is `locked`.

    Claims files of another user are left to that user, and those of a newer program to it.

    Raises:
        OSError: the folder cannot be read or written.
    """
    inherited: set[Claim] = set()
    for path in list(folder.glob(f"{_PREFIX}*")):
        left = _left_by_the_dead(path) if path.suffix != _DRAFT else None
        if left is None:
            continue
        for claim in left - inherited:
            claims.add(claim)
        inherited |= left
        _draft_of(path).unlink(missing_ok=True)
        path.unlink()
    return inherited


def _left_by_the_dead(path: Path) -> set[Claim] | None:
    """Return the claims of a dead process; None if it lives, or the file is not one that we can read."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_uid != os.geteuid() or not try_lock(fd):
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            head, *lines = file.read().splitlines(keepends=True) or [b""]
        if not head:
            return set()
        if schema_version_of(head) > SCHEMA_VERSION:
            return None
        # A last line without a newline was cut off by a crash, before its job file was touched.
        return {msgspec.json.decode(line, type=Claim) for line in lines if line.endswith(b"\n")}
    except msgspec.DecodeError:
        return None
    finally:
        os.close(fd)


def _draft_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{_DRAFT}")


# One job file: lines of job ids, of which we add and remove only our own.
#
# A scheduler's scripts write such files, too, without any lock. So a line is appended without rewriting the others, and
# is removed by replacing the file as a whole.

_READABLE = 0o644


def lines_of(path: Path) -> tuple[str, ...]:
    """Return the job ids of a file; none where there is no file.

    Raises:
        OSError: it cannot be read.
    """
    return tuple(line.decode(errors="replace") for line in _content(path).splitlines())


def add_line(path: Path, line: str, draft: Path) -> bool:
    """Add a line unless it is there already, since dcgm-exporter fails on a repeated job; return whether it was added.

    draft: where a new file is written before it appears, whole, under its own name.

    Raises:
        OSError: it cannot be read or written, or is a link.
    """
    if line in lines_of(path):
        return False
    if not path.exists() and _create(path, line, draft):
        return True
    content = _content(path)
    begin = "\n" if content and not content.endswith(b"\n") else ""
    # Not `open_to_append`: the file and its folder are dcgm-exporter's and the schedulers'.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, _READABLE)
    try:
        os.write(fd, f"{begin}{line}\n".encode())
    finally:
        os.close(fd)
    return True


def remove_line(path: Path, line: str) -> None:
    """Remove the line, and with the last line the file: an older dcgm-exporter drops a GPU whose file is empty.

    Raises:
        OSError: it cannot be read or written.
    """
    content = _content(path)
    lines = content.splitlines(keepends=True)
    kept = [one for one in lines if one.rstrip(b"\r\n") != line.encode()]
    if len(kept) == len(lines):
        return
    if not kept:
        path.unlink(missing_ok=True)
        return
    with drafted(path, mode=path.stat().st_mode & 0o777, is_any_folder=True) as file:
        file.write(b"".join(kept))


def _create(path: Path, line: str, draft: Path) -> bool:
    """Create the file with the line; return False if another program created it meanwhile."""
    with suppress(FileNotFoundError):
        draft.unlink()  # Of a process of ours that died.
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _READABLE)
    with os.fdopen(fd, "wb") as file:
        file.write(f"{line}\n".encode())
        os.fchmod(fd, _READABLE)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _content(path: Path) -> bytes:
    try:
        with open_to_read(path) as file:
            return file.read()
    except FileNotFoundError:
        return b""


_FILE = re.compile(r"\d+(\.\d+)?")


class NoMapping(ValueError):
    """The folder cannot hold job files."""


class JobMapping:
    """Keeps our lines in a folder of job files, and leaves all others as they are.

    Lines of a killed process of ours are taken over, and removed by the first `show` that does not name them.
    If a scheduler's script replaces a file, our line is missing until the next `show`.
    Not covered: an exporter that lists the folder at the very moment at which a file is removed may fail one scrape.

    Raises:
        NoMapping: the folder does not exist, or may not be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reasons: dict[str, None] = {}
        try:
            with locked(folder):
                self._claims = Claims(folder)
                self._ours = inherit(folder, self._claims)
        except OSError as error:
            raise NoMapping(
                f"{folder}: {error.strerror}; it must be the folder of dcgm-exporter's --hpc-job-mapping-dir, which the"
                " user of this process may write"
            ) from None

    @property
    def absent(self) -> tuple[str, ...]:
        """What could not be written and why, each reason once."""
        return tuple(self._reasons)

    def show(self, runs: Mapping[str, Set[str]]) -> None:
        """Write the runs into the files of their GPUs and remove all other lines of ours; call it at each beat.

        runs: by the name of a GPU's file, see `runs_by_file`. A failure is tried again at the next call.

        Raises:
            ValueError: a name is not that of a GPU's file, or a run is not one line.
        """
        wanted = {Claim(file=file, line=run) for file, names in runs.items() for run in names}
        for claim in wanted:
            if _FILE.fullmatch(claim.file) is None:
                raise ValueError(f'"{claim.file}" is no file of a GPU; it may be a number, or two of them as in "3.1"')
            if claim.line.splitlines() != [claim.line]:
                raise ValueError(f"run {claim.line!r} is not one line, as job files have them")
        if not wanted and not self._ours:
            return
        missing = sorted(claim for claim in wanted if not self._stands(claim))
        ended = sorted(self._ours - wanted)
        if not missing and not ended:
            return
        try:
            with locked(self._folder):
                for claim in ended:
                    self._remove(claim)
                for claim in missing:
                    self._add(claim)
        except OSError as error:
            self._say(self._folder, error)

    def close(self) -> None:
        """Remove all our lines. Those that cannot be removed are left to a later process of ours."""
        self.show({})
        self._claims.close(are_ended=not self._ours)

    def _stands(self, claim: Claim) -> bool:
        path = self._folder / claim.file
        try:
            return claim.line in lines_of(path)
        except OSError as error:
            self._say(path, error)
            return True  # A file that cannot be read cannot be mended.

    def _add(self, claim: Claim) -> None:
        path = self._folder / claim.file
        try:
            if claim not in self._ours:
                self._claims.add(claim)
            if add_line(path, claim.line, self._claims.draft):
                self._ours.add(claim)
        except OSError as error:
            self._say(path, error)

    def _remove(self, claim: Claim) -> None:
        path = self._folder / claim.file
        try:
            remove_line(path, claim.line)
        except OSError as error:
            self._say(path, error)
            return
        self._ours.discard(claim)
        if not self._ours:
            self._claims.forget()

    def _say(self, path: Path, error: OSError) -> None:
        self._reasons.setdefault(f"{path}: {error.strerror}; dcgm-exporter is not told of the runs there")


def runs_by_file(samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """Return the runs on each GPU, by the name of its job file: "3", or "3.1" for a MIG instance.

    samples: those of live runs, which include the GPU of each rank (`RANK_GPU`).
    """
    found: dict[str, set[str]] = {}
    for sample in samples:
        if sample.metric == RANK_GPU.name:
            # Compute instances share the file of their GPU instance, whose number stands first in "1/0".
            gpu, instance = sample.labels["gpu"], sample.labels["slice"].partition("/")[0]
            file = f"{gpu}.{instance}" if instance else gpu
            found.setdefault(file, set()).add(sample.labels["run"])
    return {file: frozenset(runs) for file, runs in found.items()}


_CLOSE_S = 5.0


class JobMappingWriter:
    """Updates a job mapping in a thread of its own, since the folder may be on a disk that hangs.

    A failure is reported, and tried again at the next `tell`.
    on_notice: is told of failures, from any thread.
    """

    def __init__(self, mapping: JobMapping, *, on_notice: Callable[[str], None]) -> None:
        self._mapping = mapping
        self._on_notice = on_notice
        self._runs: Mapping[str, frozenset[str]] = {}
        self._task = BackgroundTask("job-mapping", self._show)

    def tell(self, samples: Sequence[Owned]) -> None:
        """Start to update the mapping from the samples of live runs, unless the last update still runs; never waits."""
        self._runs = runs_by_file(sample for sample, _ in samples)
        try:
            if not self._task.wait(0.0):
                self._on_notice("job mapping: its folder keeps us waiting at times; dcgm-exporter is told late then")
        except Exception as error:  # noqa: BLE001  # Whatever fails here, the runs are shown.
            self._on_notice(f"job mapping: {in_words(error)}; dcgm-exporter is not told of the runs")
        self._task.ask()

    def close(self) -> None:
        """End the thread; one that hangs is left behind."""
        self._task.close(_CLOSE_S)

    def _show(self) -> None:
        self._mapping.show(self._runs)
        for reason in self._mapping.absent:
            self._on_notice(reason)
