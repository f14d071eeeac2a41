"""Going on with a run whose runner or agent died: its complete trials stay, what an incomplete one wrote is cut."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import msgspec
import psutil

from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine
from bench.store import run_dir
from bench.store.active_runs import lock_folder, lock_holder
from collectors.files import locked, open_folder, open_to_append, open_to_read
from collectors.sample_log import Ended, Opened

_OPENED, _ENDED = b'{"type":"opened",', b'{"type":"ended",'
"""How the lines of these records begin."""
GONE_S = 15.0
"""How long ranks may outlive their runner: an agent misses it after 8 s, and then ends them."""


def resume(folder: Path, machine: Machine) -> tuple[run_dir.Run, int]:
    """Lock the run's folder as `run_dir.begin` does; return the run, and how many of its trials are complete.

    The complete trials are those before the first in which a rank has no good end. Records and traces of later ones are
    removed, so that the trials can be measured again; what ranks printed (rank<k>.err) stays. The run's own begin
    stays, and case.json notes the moment at which it goes on.

    machine: the one that will measure the rest.

    Raises:
        Misuse: the folder holds no run, a process works on it, or its trials were measured by another program, torch or
            driver or on another hardware, so that they would not belong together.
        InfrastructureFailed: the folder cannot be written.
    """
    file = run_dir.case_file(folder)
    folder = folder.absolute()
    try:
        os.close(open_folder(folder))
        lock = lock_folder(folder)
        if lock is None:
            raise Misuse(f"{folder} is still active: {lock_holder(folder)} is working on it; wait until it ends")
        try:
            check_same_machine(folder, machine)
            logs = [folder / f"rank{rank}.jsonl" for rank in range(file.case.ranks)]
            _wait_until_gone(logs)
            # What is complete, by the ranks' own accounts, and where in each log it ends.
            ends = [_good_ends(log) for log in logs]
            done = next(trial for trial in count() if any(trial not in trials for trials in ends))
            for log, trials in zip(logs, ends, strict=True):
                if log.exists():
                    with os.fdopen(open_to_append(log), "ab") as opened:
                        opened.truncate(trials[done - 1] if done else 0)
            for trial in range(done, file.case.trials):
                shutil.rmtree(folder / f"trial{trial}", ignore_errors=True)
            (folder / "summary.json").unlink(missing_ok=True)
            slot = _note(file, folder, done)
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        raise InfrastructureFailed(f"run folder {folder} cannot be written: {error.strerror}") from None
    run = run_dir.Run(id=file.run, case=file.case, machine=machine, folder=folder, slot=slot, lock=lock)
    return run, done


def check_same_machine(folder: Path, machine: Machine) -> None:
    """Refuse a run that was begun on another machine, or by other software: its trials would not belong together.

    Raises:
        Misuse: with the differences; or the folder holds no run.
    """
    if changes := changes_since(folder, machine):
        raise Misuse(f"run {run_dir.case_file(folder).run} cannot continue: it was begun with {changes}")


def changes_since(folder: Path, machine: Machine) -> str:
    """Return in what hardware and software the run's machine differs from this one; "" where it does not.

    Raises:
        Misuse: the folder holds no run.
    """
    before, device = run_dir.machine_of(folder), run_dir.case_file(folder).case.device
    pairs = (
        ("hardware", before.hardware(device), machine.hardware(device)),
        ("torch", before.torch_version, machine.torch_version),
        ("driver", before.driver_version, machine.driver_version),
        ("commit", before.commit, machine.commit),
        ("parallel-observatory", before.own_version, machine.own_version),
    )
    return "; ".join(f"{name} {its or 'unknown'}, now {ours or 'unknown'}" for name, its, ours in pairs if its != ours)


def _wait_until_gone(logs: Sequence[Path]) -> None:
    """Wait for ranks of this machine that still write: those of a runner that was killed end some seconds later.

    Raises:
        Misuse: one of them does not end.
    """
    host, until_s = socket.gethostname(), time.monotonic() + GONE_S
    for log in logs:
        opened = _last_opened(log)
        while opened is not None and opened.host == host and _is_alive(opened):
            if time.monotonic() >= until_s:
                raise Misuse(
                    f"{log.parent}: process {opened.pid}, rank {opened.rank} of this run, is still working; end it"
                )
            time.sleep(0.1)


def _last_opened(log: Path) -> Opened | None:
    if not log.exists():
        return None
    with open_to_read(log) as file:
        lines = [line for line in file if line.startswith(_OPENED) and line.endswith(b"\n")]
    return msgspec.json.decode(lines[-1], type=Opened) if lines else None


def _is_alive(opened: Opened) -> bool:
    """Whether the process is the rank's, and not a later one with the same number."""
    try:
        process = psutil.Process(opened.pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() * 1e9 <= opened.time_ns
    except psutil.NoSuchProcess:
        return False


def _good_ends(log: Path) -> dict[int, int]:
    """Return, for each trial that the rank ended well, the number of bytes up to and with the record of its end.

    A log is read by lines, and only ends are decoded: readings are most of it, and do not matter here.
    """
    ends: dict[int, int] = {}
    position = 0
    if not log.exists():
        return ends
    with open_to_read(log) as file:
        for line in file:
            position += len(line)
            if line.startswith(_ENDED) and line.endswith(b"\n"):
                record = msgspec.json.decode(line, type=Ended)
                if record.error_type is None:
                    ends[record.trial] = position
    return ends


def _note(file: run_dir.CaseFile, folder: Path, trials_done: int) -> int:
    """Write into case.json that the run goes on now; return the slot that it has from now on."""
    with locked(folder.parent):
        slot = run_dir.free_slot(folder.parent)
        resumed = (*file.resumed, run_dir.Resumed(trials_done=trials_done, time_ns=time.time_ns()))
        run_dir.write_json(folder / "case.json", msgspec.structs.replace(file, slot=slot, resumed=resumed))
    return slot
