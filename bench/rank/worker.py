"""The process of one rank in one trial: its start, the thread that obeys the supervisor, and its end.

Every engine starts ranks here. bench/session/torchrun.py starts them by hand, with torchrun or in a debugger.
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

from bench.rank.convergence import train_with_evidence
from bench.rank.distributed import TrialLog, as_full_disk, give_up, gpu_uuid, stay_on_device, with_cause
from bench.rank.gpu_of_rank import Binding, confirmed, prepare
from bench.rank.messages import ABORT, DUMP, RankOrder
from bench.rank.probe import run_probe
from bench.rank.train import measure
from collectors.files import open_to_append, replace_file
from collectors.rank import flight_recorder
from collectors.sample_log import Ended, LogUnwritable, Opened, SampleLog
from workloads.options import check_of


def serve(order_json: bytes, pipe: Connection) -> NoReturn:
    """Run a forked rank from start to end; never returns.

    pipe: connects to the supervisor. Its end of file means that the supervisor is gone; this rank then ends its process
    group.
    """
    os.setsid()
    order = msgspec.json.decode(order_json, type=RankOrder)
    _take_over_streams(Path(order.folder) / f"rank{order.rank}.err")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    binding = prepare(order.case, order.gpu)  # Before any thread starts.
    obey = partial(
        obey_supervisor,
        pipe,
        dump=partial(dump_flight_record, order, is_printed=True),
        abort=partial(give_up, order),
        end=_end_group,
    )
    threading.Thread(target=obey, daemon=True).start()
    try:
        log = SampleLog(Path(order.folder) / f"rank{order.rank}.jsonl")
        code = work(order, log, binding)
    except LogUnwritable as error:  # No file can record it, so the pipe reports it.
        pipe.send_bytes(f"{error.strerror}: {error.filename}".encode())
        code = os.EX_IOERR
    leave(code)


def work(order: RankOrder, log: SampleLog, binding: Binding) -> int:
    """Measure, and end the log with the rank's own account of its success or failure; return the exit code.

    Raises:
        LogUnwritable: the log cannot be written, and so cannot record this failure.
    """
    uuid = gpu_uuid(order)
    binding = confirmed(binding, order.gpu, uuid)
    log.write(
        Opened(
            run=order.run,
            trial=order.trial,
            rank=order.rank,
            time_ns=time.time_ns(),
            pid=os.getpid(),
            host=socket.gethostname(),
            gpu_uuid=uuid,
            cpus=binding.cpus,
        )
    )
    trial_log = TrialLog(log, order.trial)
    if binding.reason is not None:
        trial_log.note(binding.reason)
    error: BaseException | None = None
    try:
        if order.case.spec().kind == "probe":
            run_probe(order, trial_log)
        elif check_of(order.case) is None:
            measure(order, trial_log)
        else:
            train_with_evidence(order, trial_log)
    except LogUnwritable:
        raise
    except BaseException as failure:  # noqa: BLE001  # The log must record any failure.
        error = as_full_disk(failure) or with_cause(failure)
        _print_error()
    log.write(
        Ended(
            trial=order.trial,
            time_ns=time.time_ns(),
            step=trial_log.step,
            error_type=None if error is None else type(error).__name__,
            error=None if error is None else next(iter(str(error).splitlines()), ""),
        )
    )
    log.close(durable=True)
    if error is not None:
        dump_flight_record(order, is_printed=GAVE_UP_WAITING in str(error))
        give_up(order)
    return 0 if error is None else 1


def leave(code: int) -> NoReturn:
    """End without the interpreter's shutdown, during which a live process group may abort (gloo, torch 2.13)."""
    _flush()
    os._exit(code)


ENTRIES_PRINTED = 5
"""The number of flight record entries that a rank prints if it hangs or gave up waiting for a peer."""

GAVE_UP_WAITING = "Timed out waiting"
"""Gloo's error when a peer's message did not arrive in time; such a rank ends before it is asked for stacks."""


def dump_flight_record(order: RankOrder, *, is_printed: bool = False) -> None:
    """Write which collectives this rank has entered, so that a rank that did not enter them can be found.

    May run in any thread, so it selects the rank's GPU first: NCCL's record asks the current device for its progress.
    """
    with suppress(RuntimeError):  # An error of CUDA does not matter here.
        stay_on_device(order)
    record = flight_recorder.dump(order.case.backend)
    with suppress(OSError):  # The disk is full; the root cause is found without it.
        replace_file(Path(order.folder) / f"rank{order.rank}.flight.json", record)
    if is_printed:
        lines = ["Flight Recorder, newest entry last:", *flight_recorder.last_entries(record, ENTRIES_PRINTED)]
        with suppress(OSError):  # In one write: the stacks are printed at the same time.
            os.write(2, "\n  ".join(lines).encode() + b"\n")


def obey_supervisor(
    pipe: Connection, *, dump: Callable[[], object], abort: Callable[[], object], end: Callable[[], object]
) -> None:
    """Obey the supervisor's messages until `ABORT`, or until the supervisor is gone; then end the process group.

    Errors are printed. A dump may fail because it asks the device, whose failure may be why the rank is being ended.
    """
    while True:
        try:
            message = pipe.recv_bytes()
        except (EOFError, OSError):
            break
        try:
            if message == DUMP:
                dump()
            elif message == ABORT:
                abort()
        except Exception:  # noqa: BLE001  # After any error, the next message is still obeyed.
            _print_error()
        if message == ABORT:
            break
    end()


def _end_group() -> None:
    """End this rank and its data loaders."""
    _flush()
    os.killpg(0, signal.SIGKILL)


# What a rank prints goes to a file whose disk may be full; the rank's end is recorded anyway.


def _print_error() -> None:
    """Print the exception that is being handled."""
    with suppress(OSError):
        traceback.print_exc()


def _flush() -> None:
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.flush()


def _take_over_streams(path: Path) -> None:
    """Redirect stdout and stderr of this process and its children to the rank's file, or to nowhere on a full disk."""
    try:
        fd = open_to_append(path)
    except OSError:
        fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
