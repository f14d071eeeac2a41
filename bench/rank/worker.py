"""One rank of one trial: warm up, measure, write. The front door of every engine.

`python -P -m bench.rank.worker ORDER.json` does the same by hand, for a debugger.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import msgspec

from bench.rank.convergence import witness
from bench.rank.distributed import Position, give_up, gpu_uuid, named, stay_on_device
from bench.rank.messages import ABORT, DUMP, RankOrder
from bench.rank.probe import run_probe
from bench.rank.train import measure
from collectors.rank import flight_recorder
from collectors.sample_log import Ended, LogUnwritable, Opened, SampleLog
from workloads.options import check_of


def serve(order_json: bytes, line: Connection) -> NoReturn:
    """A forked rank's whole life; it never returns.

    line: to the supervisor. Its end of file means that the supervisor is gone, and then this rank's group must be too.
    """
    os.setsid()
    order = msgspec.json.decode(order_json, type=RankOrder)
    _take_over_streams(Path(order.folder) / f"rank{order.rank}.err")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    threading.Thread(target=_mind_supervisor, args=(line, order), daemon=True).start()
    try:
        log = SampleLog(Path(order.folder) / f"rank{order.rank}.jsonl")
        code = work(order, log)
    except LogUnwritable as error:  # No file can tell it.
        line.send_bytes(f"{error.strerror}: {error.filename}".encode())
        code = os.EX_IOERR
    leave(code)


def work(order: RankOrder, log: SampleLog) -> int:
    """Measure, and end the log with how it went; the exit code.

    Raises:
        LogUnwritable: the log cannot be written, and so cannot say this itself.
    """
    log.write(
        Opened(
            run=order.run,
            trial=order.trial,
            rank=order.rank,
            time_ns=time.time_ns(),
            pid=os.getpid(),
            host=socket.gethostname(),
            gpu_uuid=gpu_uuid(order),
        )
    )
    position = Position()
    error: BaseException | None = None
    try:
        _part(order)(order, log, position)
    except LogUnwritable:
        raise
    except BaseException as caught:  # noqa: BLE001  # Whatever it was, the log shall say so.
        error = named(caught)
        traceback.print_exc()
    log.write(
        Ended(
            trial=order.trial,
            time_ns=time.time_ns(),
            step=position.step,
            error_type=None if error is None else type(error).__name__,
            error=None if error is None else _first_line(error),
        )
    )
    log.close(durable=True)
    if error is not None:
        dump_flight_record(order)
        give_up(order)
    return 0 if error is None else 1


def _part(order: RankOrder) -> Callable[[RankOrder, SampleLog, Position], None]:
    """What a rank of such a case does."""
    if order.case.card().kind == "probe":
        return run_probe
    return measure if check_of(order.case) is None else witness


def leave(code: int) -> NoReturn:
    """End without the interpreter's farewell, in which a live process group may abort (gloo, torch 2.13)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def dump_flight_record(order: RankOrder) -> None:
    """Write which collectives this rank has entered, for whoever looks for the rank that did not.

    From any thread: the record of NCCL asks the device how far it came, which must be the rank's own.
    """
    with suppress(RuntimeError):  # What CUDA says is of no use here.
        stay_on_device(order)
    with suppress(OSError):  # A full disk; blame does without it.
        (Path(order.folder) / f"rank{order.rank}.flight.json").write_bytes(flight_recorder.dump(order.case.backend))


def _mind_supervisor(line: Connection, order: RankOrder) -> None:
    mind(line, dump=partial(dump_flight_record, order), abort=partial(give_up, order), end=_end_group)


def mind(
    line: Connection, *, dump: Callable[[], object], abort: Callable[[], object], end: Callable[[], object]
) -> None:
    """Do what the supervisor says until it says no more, or is gone; then this rank's group must be, too.

    What fails is printed. The dump asks the device, which may be why the rank is being ended.
    """
    while True:
        try:
            message = line.recv_bytes()
        except (EOFError, OSError):
            break
        try:
            if message == DUMP:
                dump()
            elif message == ABORT:
                abort()
        except Exception:  # noqa: BLE001  # Whatever it was, the supervisor goes on to be minded.
            traceback.print_exc()
        if message == ABORT:
            break
    end()


def _end_group() -> None:
    """End this rank and its loaders."""
    sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)


def _take_over_streams(path: Path) -> None:
    """Send what this process and its children print to the rank's own file, or to nowhere if the disk is full."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else ""


def _main(path: str) -> NoReturn:
    order = msgspec.json.decode(Path(path).read_bytes(), type=RankOrder)
    leave(work(order, SampleLog(Path(order.folder) / f"rank{order.rank}.jsonl")))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -P -m bench.rank.worker ORDER.json")
    _main(sys.argv[1])
