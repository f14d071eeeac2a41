"""DCGM on this node: job files that tell its exporter which run is on which GPU, and detection of a running DCGM.

Knows no run. Source: dcgm-exporter, `--hpc-job-mapping-dir`. The name of a job file is the GPU's NVML index, or
"GPU.instance" with NVML's number of the GPU instance under MIG, which older exporters ignore. Each line is a job and
becomes the label `hpc_job`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from pynvml import NVML_ERROR_IN_USE

from collectors.background import BackgroundTask
from collectors.files import drafted, holder_of, in_words, open_to_read, try_lock
from collectors.metrics.gpu import RANK_GPU
from collectors.metrics.metric import Sample
from collectors.nvml.library import FieldSupport, NVMLError, SupportState
from collectors.prometheus.exposition import Owned

_COPY = ".observatory-"
"""Prefix of a copy's name. dcgm-exporter reads files whose names are numbers, and ignores all others."""
_FILE = re.compile(r"\d+(\.\d+)?")


class NoMapping(ValueError):
    """The folder cannot hold job files."""


class JobMapping:
    """Maintains a job file for each GPU with runs, and leaves a scheduler's files unchanged.

    A file is ours as long as it equals the copy that we store next to it. If this process is killed, both remain, and
    the next process continues with them. If a scheduler wrote a GPU's file, it keeps the scheduler's job, and
    `absent` names it.
    Not covered: an exporter that lists the folder just as a file is removed may fail one scrape, and a scheduler that
    writes just as a run begins is overwritten.

    Raises:
        NoMapping: the folder does not exist or is not writable, or another process uses it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reasons: dict[str, None] = {}
        try:
            self._lock = _lock(folder)
        except OSError as error:
            raise NoMapping(
                f"{folder}: {error.strerror}; it must be the folder of dcgm-exporter's --hpc-job-mapping-dir, which the"
                " user of this process may write"
            ) from None
        self._ours = {copy.name.removeprefix(_COPY) for copy in folder.glob(f"{_COPY}*")}

    @property
    def absent(self) -> tuple[str, ...]:
        """The files that could not be written and why, each reason once."""
        return tuple(self._reasons)

    def show(self, runs: Mapping[str, Set[str]]) -> None:
        """Write the runs into the files of their GPUs and remove all other files of ours; call it at each beat.

        runs: by the name of a GPU's file, see `runs_by_file`. The next call retries what failed.

        Raises:
            ValueError: a key is not the name of a GPU's file, or a run is not one line.
        """
        for file, names in runs.items():
            if _FILE.fullmatch(file) is None:
                raise ValueError(f'"{file}" is not a GPU file; the name is a number or two, for example "3.1"')
            for run in names:
                if run.splitlines() != [run]:
                    raise ValueError(f"run {run!r} is not one line, as job files have them")
        for file in sorted(self._ours | runs.keys()):
            try:
                self._update(file, "".join(f"{run}\n" for run in sorted(runs.get(file, ()))).encode())
            except OSError as error:
                self._say(file, error.strerror or str(error))

    def close(self) -> None:
        """Remove all our files; a later process of ours removes those that cannot be removed now."""
        self.show({})
        os.close(self._lock)

    def _update(self, file: str, text: bytes) -> None:
        """Write the text to the file; an empty text removes the file."""
        path, copy = self._folder / file, self._folder / f"{_COPY}{file}"
        content = _content(path)
        if content and content != _content(copy):
            if text:
                self._say(file, "a scheduler wrote it")
            copy.unlink(missing_ok=True)
            self._ours.discard(file)
            return
        if content == text and text:
            return
        # Remove the file first, so that a crash cannot leave one that differs from its copy.
        path.unlink(missing_ok=True)
        if not text:
            copy.unlink(missing_ok=True)
            self._ours.discard(file)
            return
        self._ours.add(file)
        for written in (copy, path):
            with drafted(written, mode=0o644, is_any_folder=True) as draft:
                draft.write(text)

    def _say(self, file: str, reason: str) -> None:
        self._reasons.setdefault(f"{self._folder / file}: {reason}; dcgm-exporter does not learn of the runs there")


def _lock(folder: Path) -> int:
    """Lock the folder for as long as this process lives and the returned file descriptor is open.

    Raises:
        NoMapping: another process holds the lock.
        OSError: it is not a folder, or not writable.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        if not try_lock(fd):
            raise NoMapping(f"{folder}: {holder_of(fd)} already writes there; only one agent of a node may")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _content(path: Path) -> bytes:
    try:
        with open_to_read(path) as file:
            return file.read()
    except FileNotFoundError:
        return b""


def runs_by_file(samples: Iterable[Sample]) -> dict[str, frozenset[str]]:
    """Return the runs on each GPU, by the name of its job file: "3", or "3.1" for a MIG instance.

    samples: of live runs, including the GPU of each rank (`RANK_GPU`).
    """
    by_file: dict[str, set[str]] = {}
    for sample in samples:
        if sample.metric == RANK_GPU.name:
            # Compute instances share the file of their GPU instance, the first number in "1/0".
            gpu, instance = sample.labels["gpu"], sample.labels["slice"].partition("/")[0]
            file = f"{gpu}.{instance}" if instance else gpu
            by_file.setdefault(file, set()).add(sample.labels["run"])
    return {file: frozenset(runs) for file, runs in by_file.items()}


_CLOSE_S = 5.0


class JobMappingWriter:
    """Updates a job mapping in a thread of its own, since the folder may be on a disk that hangs.

    Failures are reported, and the next `tell` retries.
    on_notice: takes a message on each failure, from any thread.
    """

    def __init__(self, mapping: JobMapping, *, on_notice: Callable[[str], None]) -> None:
        self._mapping = mapping
        self._on_notice = on_notice
        self._runs: Mapping[str, frozenset[str]] = {}
        self._task = BackgroundTask("job-mapping", self._show)

    def tell(self, samples: Sequence[Owned]) -> None:
        """Start to update the mapping from the samples of live runs, unless an update is running; never waits."""
        self._runs = runs_by_file(sample for sample, _ in samples)
        try:
            if not self._task.wait(0.0):
                self._on_notice("job mapping: its folder is sometimes slow, so dcgm-exporter learns of runs late")
        except Exception as error:  # noqa: BLE001  # The exporter must show the runs even if this fails.
            self._on_notice(f"job mapping: {in_words(error)}; dcgm-exporter does not learn of the runs")
        self._task.ask()

    def close(self) -> None:
        """End the thread; a thread that hangs is abandoned."""
        self._task.close(_CLOSE_S)

    def _show(self) -> None:
        self._mapping.show(self._runs)
        for reason in self._mapping.absent:
            self._on_notice(reason)


# GPUs whose performance monitors another program uses, for example DCGM's profiling or a profiler.

_MONITORS = "GPM"
"""Prefix of the names of all questions to the monitors."""


def gpus_with_held_monitors(support: Iterable[FieldSupport]) -> tuple[str, ...]:
    """Return the GPUs whose monitors another program uses; they have no GPM samples meanwhile."""
    in_use = str(NVMLError(NVML_ERROR_IN_USE))  # The table has NVML's message, not its code.
    held = (field.gpu for field in support if field.question.startswith(_MONITORS) and field.reason == in_use)
    return tuple(dict.fromkeys(held))


def gpus_by_monitors(support: Iterable[FieldSupport]) -> dict[SupportState, tuple[str, ...]]:
    """Return the GPUs by their answer to the GPM question, without GPUs that were queried once or never."""
    by_answer: dict[SupportState, list[str]] = {}
    for field in support:
        if field.question == _MONITORS:
            by_answer.setdefault(field.answer, []).append(field.gpu)
    return {answer: tuple(gpus) for answer, gpus in by_answer.items()}


_NAMES = ("nv-hostengine", "dcgm-exporter")
"""Processes: the host engine, and the exporter, which may embed one."""
_PORT = 5555
_LISTENS = "0A"
"""Source: nv-hostengine's manual page (127.0.0.1:5555); include/net/tcp_states.h (TCP_LISTEN)."""


def signs_of_dcgm(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the signs that DCGM runs, as text; empty if there are none. root: the folder that contains proc.

    Another container's processes may be invisible. Sockets count only if no process is found, since any program may
    listen on the port.
    """
    return tuple(_running(root / "proc")) or tuple(_listening(root / "proc/net"))


def _running(proc: Path) -> Iterator[str]:
    for folder in sorted(proc.glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            name = (folder / "comm").read_text().strip()
        except OSError:  # The process ended meanwhile.
            continue
        if name in _NAMES:
            yield f"{name} runs (process {folder.name})"


def _listening(net: Path) -> Iterator[str]:
    sockets = [line.split() for name in ("tcp", "tcp6") for line in _lines(net / name)]
    if any(local.endswith(f":{_PORT:04X}") and state == _LISTENS for _, local, _, state, *_ in sockets):
        yield f"something listens at TCP port {_PORT}, where nv-hostengine does"
    for line in _lines(net / "unix"):
        path = line.split()[-1]
        if path.rpartition("/")[2] == _NAMES[0]:
            yield f"something listens at {path}, as nv-hostengine does"
            return


def _lines(path: Path) -> list[str]:
    """Return the lines without the heading; none if this kernel has no such sockets."""
    try:
        return path.read_text().splitlines()[1:]
    except OSError:
        return []
