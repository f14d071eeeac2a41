"""DCGM on this node: job files that tell its exporter which run is on which GPU, and the signs of a DCGM.

Knows no run. Source: dcgm-exporter, `--hpc-job-mapping-dir`: a job file's name is DCGM's number
of a GPU, which is NVML's index, or "GPU.instance" with NVML's number of the GPU instance where MIG splits it, which
older exporters ignore; each line is a job, and becomes the label `hpc_job`.
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
"""How the name of a copy begins. dcgm-exporter reads files whose names are numbers, and ignores all others."""
_FILE = re.compile(r"\d+(\.\d+)?")


class NoMapping(ValueError):
    """The folder cannot hold job files."""


class JobMapping:
    """Keeps a file for each GPU with runs, and leaves those that a scheduler wrote as they are.

    A file is ours while it reads as the copy beside it, which outlives a killed process: the next one goes on with
    both. A GPU whose file is a scheduler's keeps the scheduler's job, and is named in `absent`.
    Not covered: an exporter that lists the folder at the very moment at which a file is removed may fail one scrape,
    and a scheduler that writes at the very moment at which a run begins is overwritten.

    Raises:
        NoMapping: the folder does not exist, may not be written, or another process keeps it.
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
        """What could not be written and why, each reason once."""
        return tuple(self._reasons)

    def show(self, runs: Mapping[str, Set[str]]) -> None:
        """Write the runs into the files of their GPUs and remove all other files of ours; call it at each beat.

        runs: by the name of a GPU's file, see `runs_by_file`. A failure is tried again at the next call.

        Raises:
            ValueError: a name is not that of a GPU's file, or a run is not one line.
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
        """Remove all our files. Those that cannot be removed are left to a later process of ours."""
        self.show({})
        os.close(self._lock)

    def _update(self, file: str, text: bytes) -> None:
        """Let the file hold the text; an empty text removes it."""
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
        # First without the file, so that a crash leaves none that differs from its copy.
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
        OSError: it is no folder, or may not be written.
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

    samples: those of live runs, which include the GPU of each rank (`RANK_GPU`).
    """
    by_file: dict[str, set[str]] = {}
    for sample in samples:
        if sample.metric == RANK_GPU.name:
            # Compute instances share the file of their GPU instance, whose number stands first in "1/0".
            gpu, instance = sample.labels["gpu"], sample.labels["slice"].partition("/")[0]
            file = f"{gpu}.{instance}" if instance else gpu
            by_file.setdefault(file, set()).add(sample.labels["run"])
    return {file: frozenset(runs) for file, runs in by_file.items()}


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
                self._on_notice("job mapping: its folder is sometimes slow, so dcgm-exporter learns of runs late")
        except Exception as error:  # noqa: BLE001  # Whatever fails here, the runs are shown.
            self._on_notice(f"job mapping: {in_words(error)}; dcgm-exporter does not learn of the runs")
        self._task.ask()

    def close(self) -> None:
        """End the thread; one that hangs is left behind."""
        self._task.close(_CLOSE_S)

    def _show(self) -> None:
        self._mapping.show(self._runs)
        for reason in self._mapping.absent:
            self._on_notice(reason)


# GPUs whose performance monitors another program holds, such as a profiling DCGM or a profiler.

_MONITORS = "GPM"
"""Name, or beginning of the name, of each question to the monitors."""


def gpus_with_held_monitors(support: Iterable[FieldSupport]) -> tuple[str, ...]:
    """Return the GPUs whose monitors refused because they are in use; they have no GPM samples while that lasts."""
    in_use = str(NVMLError(NVML_ERROR_IN_USE))  # The table keeps NVML's message, and not its code.
    held = (field.gpu for field in support if field.question.startswith(_MONITORS) and field.reason == in_use)
    return tuple(dict.fromkeys(held))


def gpus_by_monitors(support: Iterable[FieldSupport]) -> dict[SupportState, tuple[str, ...]]:
    """Return the GPUs by their answer to the GPM question; a GPU not yet asked, or asked only once, is left out."""
    by_answer: dict[SupportState, list[str]] = {}
    for field in support:
        if field.question == _MONITORS:
            by_answer.setdefault(field.answer, []).append(field.gpu)
    return {answer: tuple(gpus) for answer, gpus in by_answer.items()}


_NAMES = ("nv-hostengine", "dcgm-exporter")
"""The host engine, and an exporter that may embed one."""
_PORT = 5555
_LISTENS = "0A"
"""Source: nv-hostengine's page (127.0.0.1:5555); include/net/tcp_states.h (TCP_LISTEN)."""


def signs_of_dcgm(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the signs of a DCGM, as text; empty where there is none. root: the folder of /proc.

    Another container's processes may be invisible. Sockets are looked at only where no process is found, since any
    program may listen on the port.
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
            yield f"{path} is listened at, as nv-hostengine does"
            return


def _lines(path: Path) -> list[str]:
    """Return the lines without the heading; none where this kernel has no such sockets."""
    try:
        return path.read_text().splitlines()[1:]
    except OSError:
        return []
