"""Runs a function on gloo ranks, and returns their results."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import pickle
import pkgutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, cast

import torch
import torch.distributed as dist

import workloads

Result = TypeVar("Result")

LIMIT_S = 240.0


def preloaded() -> list[str]:
    """Return the modules that the fork server loads once for all ranks: all except those of extras."""
    own = [module.name for module in pkgutil.walk_packages(workloads.__path__, "workloads.")]
    return [
        "pytest",
        "torch._dynamo",  # The first optimizer step of a process would load it.
        "torch.distributed._tools.mem_tracker",
        "torch.distributed.optim",
        "torch.nn.parallel",
        "torch.utils.data",
        "tests.workloads.training.training_runs",
        *(name for name in own if "deepspeed" not in name),
    ]


class RankFailed(RuntimeError):
    """A rank's own report of its failure, as the cause of the exception that the test gets."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    result: Any


def leaving(result: Result) -> Result:
    """Return a result after which the rank ends at once; all other ranks stay until all are done."""
    return cast(Result, _Leaving(result))


class OnRanks(Protocol):
    """Calls a function on n ranks of one gloo group, and returns the results by rank.

    The function must be at the top level of a module, and its arguments and results must be picklable.
    """

    def __call__(self, ranks: int, function: Callable[..., Result], *arguments: object) -> list[Result]:
        """Call the function; raises the exception of the first rank that failed, with its traceback."""


def run_on_ranks(
    ranks: int,
    function: Callable[..., Result],
    *arguments: object,
    store: Path,
    limit_s: float = LIMIT_S,
) -> list[Result]:
    """See `OnRanks`; the ranks are new processes. store: a new file, through which the ranks connect.

    Raises:
        TimeoutError: a rank took longer than the limit.
        RankFailed: a rank ended without a result.
    """
    with closing(RankGroup(ranks)) as group:
        return group.run(function, *arguments, store=store, limit_s=limit_s)


class KeptRanks:
    """Ranks that stay for the next call, so that torch's work per process is done only once.

    Each call has its own process group, environment and warnings. After a call that raised, or that a rank left, its
    ranks are ended, and the next call starts new ones.
    """

    def __init__(self, folder: Path) -> None:
        """folder: of the files through which ranks connect."""
        self._folder = folder
        self._groups: dict[int, RankGroup] = {}
        self._calls = count()

    def run(self, ranks: int, function: Callable[..., Result], *arguments: object) -> list[Result]:
        """See `OnRanks`."""
        group = self._groups.pop(ranks, None) or RankGroup(ranks)
        try:
            results = group.run(function, *arguments, store=self._folder / f"store{next(self._calls)}")
        except BaseException:
            group.close()
            raise
        if group.is_whole:
            self._groups[ranks] = group
        else:
            group.close()
        return results

    def close(self) -> None:
        """End all ranks."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()


class RankGroup:
    """Processes that are the ranks of one call after another."""

    def __init__(self, ranks: int) -> None:
        """Start the processes."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(preloaded())
        self.is_whole = True
        self._stderr_folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._lines: dict[Connection, int] = {}
        self._processes: list[BaseProcess] = []
        try:
            for rank in range(ranks):
                ours, theirs = context.Pipe()
                process: BaseProcess = context.Process(
                    target=_serve, args=(theirs, rank, ranks, self._stderr_of(rank)), name=f"rank {rank}"
                )
                process.start()
                theirs.close()
                self._processes.append(process)
                self._lines[ours] = rank
        except BaseException:
            self.close()
            raise

    def run(
        self, function: Callable[..., Result], *arguments: object, store: Path, limit_s: float = LIMIT_S
    ) -> list[Result]:
        """See `run_on_ranks`."""
        call = pickle.dumps((str(store), limit_s, function, arguments))
        for line in self._lines:
            line.send_bytes(call)
        results: list[Any] = self._collect(time.monotonic() + limit_s)
        self.is_whole = not any(isinstance(result, _Leaving) for result in results)
        return [result.result if isinstance(result, _Leaving) else result for result in results]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for line in self._lines:
            line.close()
        self._stderr_folder.cleanup()

    def _stderr_of(self, rank: int) -> Path:
        return Path(self._stderr_folder.name) / f"rank{rank}.err"

    def _collect(self, deadline_s: float) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < len(self._lines):
            waiting = [line for line, rank in self._lines.items() if rank not in results]
            ready = wait(waiting, timeout=max(0.0, deadline_s - time.monotonic()))
            if not ready:
                late = sorted(self._lines[line] for line in waiting)
                raise TimeoutError(f"ranks {late} are not done at the limit")
            for line in waiting:
                if line in ready:
                    results[self._lines[line]] = self._receive(line, self._lines[line])
        return [results[rank] for rank in range(len(self._lines))]

    def _receive(self, line: Connection, rank: int) -> Any:
        try:
            result, error, trace = pickle.loads(line.recv_bytes())
        except (EOFError, ConnectionError):
            raise RankFailed(self._last_words(rank)) from None
        if error is not None:
            raise error from RankFailed(f"rank {rank}:\n{trace}")
        return result

    def _last_words(self, rank: int) -> str:
        """Return how a rank without a result ended, and what it printed."""
        self._processes[rank].join(timeout=10)
        code = self._processes[rank].exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        printed = self._stderr_of(rank).read_text(errors="replace") if self._stderr_of(rank).exists() else ""
        return f"rank {rank} ended without a result: {how}\n{printed[-8000:]}"


def _serve(line: Connection, rank: int, ranks: int, stderr: Path) -> NoReturn:
    """Run calls until the other end closes the connection or ends this process.

    A rank stays after its answer: another rank may still be connecting to it, and would report a crashed peer; and a
    live process group may abort when the interpreter exits.
    """
    with stderr.open("wb") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)
    environment = dict(os.environ)
    gc.freeze()  # torch makes 300,000 objects that never become garbage; each look at them takes 0.2 s.
    while True:
        try:
            store, limit_s, function, arguments = pickle.loads(line.recv_bytes())
        except EOFError:
            os._exit(0)
        except BaseException as error:  # noqa: BLE001  # The function's module cannot be imported here.
            line.send_bytes(_pickled(error, traceback.format_exc()))
            continue
        _prepare(environment)
        try:
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(store, ranks),  # type: ignore[attr-defined]
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=limit_s),
            )
            result = function(*arguments)
            line.send_bytes(pickle.dumps((result, None, "")))
            if isinstance(result, _Leaving):
                os._exit(0)
        except BaseException as error:  # noqa: BLE001  # Whatever it is, the test gets it.
            line.send_bytes(_pickled(error, traceback.format_exc()))


def _prepare(environment: dict[str, str]) -> None:
    """Undo what the previous call may have changed; all ranks have answered it."""
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()  # Before the environment changes: threads of a group that still lives may read it.
    os.environ.clear()
    os.environ.update(environment, TORCH_FR_BUFFER_SIZE="2000")  # Tests count collectives in the Flight Recorder.
    warnings.resetwarnings()
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    torch.manual_seed(0)


def _pickled(error: BaseException, trace: str) -> bytes:
    try:
        data = pickle.dumps((None, error, trace))
        pickle.loads(data)
    except Exception:  # noqa: BLE001  # Some exceptions cannot be pickled; then send the text alone.
        data = pickle.dumps((None, RankFailed(str(error)), trace))
    return data
