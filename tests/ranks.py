"""Runs a function on fresh gloo ranks, and brings home what each returned."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, cast

import torch
import torch.distributed as dist

Result = TypeVar("Result")

LIMIT_S = 120.0
PRELOADED = [
    "pytest",
    "torch._dynamo",  # The first optimizer step of a process would load it.
    "torch.distributed._tools.mem_tracker",
    "torch.distributed.device_mesh",
    "torch.nn.parallel",
    "torch.utils.data",
]


class RankFailed(RuntimeError):
    """What a rank said of its own failure, beneath the exception that the test sees."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    result: object


def leaving(result: Result) -> Result:
    """What a rank's function returns to be gone at once with this result; all others stay until all are done."""
    return cast(Result, _Leaving(result))


class OnRanks(Protocol):
    """Calls a function on n ranks of one gloo group; the results, by rank.

    The function is one of a module, and its arguments and results can be pickled.
    """

    def __call__(self, ranks: int, function: Callable[..., Result], *arguments: object) -> list[Result]:
        """Raises what the first rank to fail raised, with its traceback."""


def run_on_ranks(
    ranks: int,
    function: Callable[..., Result],
    *arguments: object,
    store: Path,
    limit_s: float = LIMIT_S,
) -> list[Result]:
    """See `OnRanks`. store: a file that does not exist yet, where the ranks meet.

    Raises:
        TimeoutError: a rank took longer than the limit.
        RankFailed: a rank ended without a word.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    lines: dict[Connection, int] = {}
    processes: list[BaseProcess] = []
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(
                target=_rank, args=(theirs, rank, ranks, str(store), limit_s, function, arguments), name=f"rank {rank}"
            )
            process.start()
            theirs.close()
            processes.append(process)
            lines[ours] = rank
        return _collect(lines, time.monotonic() + limit_s)
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        for line in lines:
            line.close()


def _collect(lines: dict[Connection, int], deadline_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(lines):
        waiting = [line for line, rank in lines.items() if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise TimeoutError(f"ranks {sorted(lines[line] for line in waiting)} are not done at the limit")
        for line in waiting:
            if line in ready:
                results[lines[line]] = _receive(line, lines[line])
    return [results[rank] for rank in range(len(lines))]


def _receive(line: Connection, rank: int) -> Any:
    try:
        result, error, trace = pickle.loads(line.recv_bytes())
    except EOFError:
        raise RankFailed(f"rank {rank} ended without a result") from None
    if error is not None:
        raise error from RankFailed(f"rank {rank}:\n{trace}")
    return result


def _rank(
    line: Connection,
    rank: int,
    ranks: int,
    store: str,
    limit_s: float,
    function: Callable[..., object],
    arguments: tuple[object, ...],
) -> NoReturn:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"  # Tests count collectives in the Flight Recorder.
    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, ranks),  # type: ignore[attr-defined]
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=limit_s),
        )
        result = function(*arguments)
        if isinstance(result, _Leaving):
            line.send_bytes(pickle.dumps((result.result, None, "")))
            os._exit(0)
        line.send_bytes(pickle.dumps((result, None, "")))
    except BaseException as error:  # noqa: BLE001  # Whatever it is, the test shall see it.
        line.send_bytes(_pickled(error, traceback.format_exc()))
    # Another rank may still be connecting to this one, to which it would say that its peer crashed: all stay until
    # they are killed. A live process group may abort in the interpreter's farewell.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def _pickled(error: BaseException, trace: str) -> bytes:
    try:
        data = pickle.dumps((None, error, trace))
        pickle.loads(data)
    except Exception:  # noqa: BLE001  # An exception of any make may refuse to travel; then its text must do.
        data = pickle.dumps((None, RankFailed(str(error)), trace))
    return data
