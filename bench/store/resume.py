"""Continue a run whose runner or agent died: keep its complete trials, and cut what an incomplete one wrote."""

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
"""Beginnings of the lines of these records."""
GONE_S = 15.0
"""How long ranks may outlive their runner: an agent notices its death after 8 s, and then ends them."""


def resume(folder: Path, machine: Machine) -> tuple[run_dir.Run, int]:
    """Lock the run's folder as `run_dir.begin` does; return the run, and the number of its complete trials.

    The complete trials are those before the first trial that some rank did not end well. Records and traces of later
    trials are removed, so that these can be measured again; what ranks printed (rank<k>.err) stays. The run keeps its
    own beginning, and case.json records when it continued.

    machine: the machine that will measure the rest.

    Raises:
        Misuse: the folder has no run, a process works on it, or its trials were measured by another program, torch or
            driver or on other hardware, so that they would not belong together.
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
            # The complete trials, according to the ranks' own records, and where each log has their ends.
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
    """Refuse a run that began on another machine, or with other software: its trials would not belong together.

    Raises:
        Misuse: there are differences (the message lists them), or the folder has no run.
    """
    if changes := changes_since(folder, machine):
        raise Misuse(f"run {run_dir.case_file(folder).run} cannot be continued: it began with {changes}")


def changes_since(folder: Path, machine: Machine) -> str:
    """Return the differences in hardware and software between the run's machine and this one; "" if there are none.

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
    return "; ".join(
        f"{name} {value_before or 'unknown'}, now {value_now or 'unknown'}"
        for name, value_before, value_now in pairs
        if value_before != value_now
    )


def _wait_until_gone(logs: Sequence[Path]) -> None:
    """Wait for ranks on this machine that still write: after a runner is killed, its ranks end some seconds later.

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
    """Return, for each trial that the rank ended well, the position in bytes just after the record of its end.

    The log is read line by line, and only end records are decoded: most of it is readings, which do not matter here.
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
    """Record in case.json that the run continues now; return its new slot."""
    with locked(folder.parent):
        slot = run_dir.free_slot(folder.parent)
        resumed = (*file.resumed, run_dir.Resumed(trials_done=trials_done, time_ns=time.time_ns()))
        run_dir.write_json(folder / "case.json", msgspec.structs.replace(file, slot=slot, resumed=resumed))
    return slot
