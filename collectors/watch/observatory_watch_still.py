"""Notices in a rank's process that its steps have stopped, and writes where each of its threads stands.

A daemon thread checks the watch every few seconds. It sends no signal and ends nothing: the stacks come from the
interpreter, so if a thread never releases the interpreter's lock, this thread cannot run and writes none. It does not
exist while the process forks, since Python 3.12 and later warn when a process with threads forks, nor while the
interpreter ends, which would end it by force.
Loaded at a process's first step, next to `observatory_watch`. Imports only the standard library.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread  # `threading` counts no such thread.
from contextlib import suppress
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

BEAT_S = 5.0
LOOK_S = 60.0
"""Least time without a step or a batch after which the rank's stacks are written to the run's folder; no alert."""
PROCESS = "observatory_watch_process"
STALL_S = 300.0
"""Least time after which the run counts as stalled. Most checkpoints and evaluations are shorter, and NCCL ends a job
600 s after a collective hangs, so stacks and records are written before that."""
P99_FACTOR = 10
LONGEST_FACTOR, MOST_LONGEST_S = 2, 1800.0
"""Pauses such as evaluations recur, so a pause may take twice the longest one so far; up to half an hour, so that a
single long interruption does not hide all later ones."""
RECENT = 512
"""Newest steps whose p99 counts."""
ACTIVE_S = 120.0
"""Time between two `active` lines of a rank that writes no steps: in an evaluation, or in a job so long that most steps
are left out. These lines use half of a file's allowed growth."""
MOST_LINES = 1000
MOST_RECORD_BYTES = 64 << 20
MOST_THREADS, MOST_FRAMES = 64, 100
PACKAGES = ("site-packages", "dist-packages")
END_S, END_LOOK_S = 0.5, 0.0002
"""Longest wait of a fork for the thread to end, for example while it writes stacks; and the polling interval."""


def limit_ns(p99_ns: float, longest_ns: float, least_s: float = STALL_S) -> int:
    """Return how long a job may go without a step in ns, from the p99 and the longest of its steps so far."""
    learned = max(P99_FACTOR * p99_ns, min(LONGEST_FACTOR * longest_ns, 1e9 * MOST_LONGEST_S))
    return int(max(1e9 * least_s, learned))


class Past:
    """Statistics of the steps so far, from which the limit is learned."""

    def __init__(self) -> None:
        self._recent: list[int] = []
        self.p99_ns = self.longest_ns = 0

    def take(self, steps_ns: Iterable[int | None]) -> None:
        """Add steps, in ns; those without a time are left out."""
        known = [step_ns for step_ns in steps_ns if step_ns is not None]
        if known:
            self._recent = (self._recent + known)[-RECENT:]
            # The second largest of fewer than 200 steps, so that a single pause is not the p99.
            place = min((99 * len(self._recent) - 1) // 100, max(0, len(self._recent) - 2))
            self.p99_ns = sorted(self._recent)[place]
            self.longest_ns = max(self.longest_ns, *known)

    def limit_ns(self, least_s: float = STALL_S) -> int:
        """Return how long the job may go without a step, in ns."""
        return limit_ns(self.p99_ns, self.longest_ns, least_s)


class Witness:
    """Checks one rank's watch from its own thread.

    watch: an `observatory_watch.Watch` that has begun. fd: of the rank's file; never closed here, since closing it
    would release the lock that makes this process its only writer.
    """

    def __init__(self, watch: Any, rank: int, fd: int) -> None:
        settings = watch.settings
        self._watch, self._rank, self._fd = watch, rank, fd
        self._beat_s = float(settings.get("beat_s", BEAT_S))
        self._look_s, self._stall_s = float(settings.get("look_s", LOOK_S)), float(settings.get("stall_s", STALL_S))
        self._is_redacted = bool(settings.get("redact", False))
        self._past = Past()
        self._active_ns = self._reported_ns = watch.clock_ns()
        self._next_ns = self._lines = 0
        self._wake = allocate_lock()
        self._wake.acquire()  # Held while the thread runs; a fork releases it.
        self._is_alive, self._forks = False, 0
        self._thread: int | None = None  # The kernel's thread id.
        process = import_module(f"{__package__}.{PROCESS}" if __package__ else PROCESS)
        self._is_open = process.still_open(fd)

    def start(self) -> None:
        """Start the thread."""
        self._is_alive = True
        try:
            start_new_thread(self.run, ())
        except RuntimeError:  # The interpreter is ending: a process without steps begins its file only then.
            self._is_alive = False

    def before_fork(self) -> None:
        """End the thread before a fork; several threads may fork at once."""
        self._forks += 1
        self.stop()

    def stop(self) -> None:
        """End the thread, in the kernel as well, where Python counts threads."""
        end_s = time.monotonic() + END_S
        self._let_go()
        while (self._is_alive or os.path.exists(f"/proc/self/task/{self._thread}")) and time.monotonic() < end_s:
            time.sleep(END_LOOK_S)
        self._thread = None

    def after_fork(self) -> None:
        """Note that the fork is over; Python 3.13 counts threads only after this, so `go_on` starts the thread."""
        self._forks -= 1

    def go_on(self) -> None:
        """Start the thread again after a fork; called when a phase begins or a line is written."""
        if not self._is_alive and not self._forks and self._wake.acquire(blocking=False):
            self.start()

    def _let_go(self) -> None:
        with suppress(RuntimeError):  # The thread is gone, or another thread is forking.
            self._wake.release()

    def take(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add the steps of a line; called in the thread that trains."""
        self._past.take(row[1] for row in rows)
        self.go_on()

    def run(self) -> None:
        """Check the watch at each beat until it is over or this process forks."""
        self._thread = get_native_id()
        try:
            while not self._wake.acquire(timeout=self._beat_s):
                if self._watch.is_over or not self._watch.is_begun or os.getpid() != self._watch.pid:
                    return
                self.look()
            self._let_go()
        except Exception as error:  # noqa: BLE001  # Only this thread ends.
            self._append({"kind": "note", "text": f"stall detection stopped: {type(error).__name__}: {error}"})
        finally:
            self._is_alive = False

    def look(self) -> None:
        """Compare the time since the last step or batch with the limits, and write lines that are due."""
        watch, now = self._watch, self._watch.clock_ns()
        stepped_ns = watch._end_ns or 0  # Private to the watch, of which this file is part.
        active_ns = max(stepped_ns, watch._free_ns)
        if active_ns != self._active_ns:
            self._active_ns, self._next_ns = active_ns, 0
            wrote_ns = 0 if watch._unwritten else stepped_ns
            if now - max(wrote_ns, self._reported_ns) >= ACTIVE_S * 1e9:
                self._reported_ns = now
                self._append({"kind": "active", "monotonic_ns": active_ns, "steps": watch._steps})
        still_ns, limit = now - active_ns, self._past.limit_ns(self._stall_s)
        first = self._past.limit_ns(self._look_s)
        if still_ns < (self._next_ns or first):
            return
        self._next_ns = limit if still_ns < limit else 2 * still_ns
        self._say(still_ns, limit)

    def _say(self, still_ns: int, limit: int) -> None:
        """Write a line with the rank's phase, then its stacks, then its Flight Record."""
        watch = self._watch
        frames = sys._current_frames()
        frames.pop(get_ident(), None)  # A frame that holds itself would never be freed.
        try:
            where = place_of(frames.get(watch.thread))
            text = stacks(frames, watch.thread, is_redacted=self._is_redacted)
        finally:
            frames.clear()  # They keep the script's locals alive, for example tensors.
        self._append(
            {
                "kind": "still",
                "unix_s": time.time(),
                "still_ns": still_ns,
                "limit_ns": limit,
                "steps": watch._steps,
                **self._phase(),
                "where": where,
            }
        )
        self._replace("stacks.txt", f"rank {self._rank}, {still_ns / 1e9:.0f} s without a step\n{text}".encode())
        if (record := self._record()) is not None and len(record) <= MOST_RECORD_BYTES:
            self._replace("flight.pickle", record)

    def _phase(self) -> dict[str, Any]:
        """Return the rank's phase and its calls of backward in this step, which show the rank that is behind."""
        watch = self._watch
        if watch._backward_depth:
            phase = "backward"
        elif watch._data_depth:
            phase = "data"
        elif watch._stack:
            phase = "optimizer"
        else:
            phase = "after backward" if watch._backward_calls else "before backward"
        return {"phase": phase, "backward_calls": watch._backward_calls}

    def _record(self) -> bytes | None:
        """Return the content of torch's Flight Recorder; None if there is none."""
        distributed = self._watch.module_of("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        native = self._watch.module_of("torch._C._distributed_c10d")
        is_nccl = "nccl" in str(distributed.get_backend())
        dump = getattr(native, "_dump_nccl_trace" if is_nccl else "_dump_fr_trace", None)
        if dump is None:
            return None
        record = dump(includeCollectives=True, includeStackTraces=not self._is_redacted, onlyActive=False)
        return record if isinstance(record, bytes) else None

    def _append(self, line: dict[str, Any]) -> None:
        import json

        self._lines += 1
        if self._lines <= MOST_LINES and self._is_open():
            text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
            os.write(self._fd, text)
            self._watch._written += len(text)

    def _replace(self, ending: str, content: bytes) -> None:
        """Write or replace a file of this rank in the run's folder."""
        path = os.path.join(self._watch.settings["folder"], f"watch_rank{self._rank}.{ending}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(f"{path}.new", flags, 0o600)
        with open(fd, "wb") as file:
            file.write(content)
        os.replace(f"{path}.new", path)


def start(watch: Any, rank: int, path: str) -> Witness:
    """Start a thread that checks this rank's watch. path: of the rank's file."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    witness = Witness(watch, rank, fd)
    witness.start()
    return witness


def stacks(frames: dict[int, Any], first: int, *, is_redacted: bool = False) -> str:
    """Return the stacks of all threads, the innermost call first, without source lines.

    first: the thread to begin with. is_redacted: leave out the folders of files.
    """
    lines = []
    for thread in sorted(frames, key=lambda each: (each != first, each))[:MOST_THREADS]:
        lines.append(f"\nthread {thread:#x}{' (trains)' if thread == first else ''}, most recent call first:")
        frame, number = frames[thread], 0
        while frame is not None and number < MOST_FRAMES:
            code, number = frame.f_code, number + 1
            name = redacted(code.co_filename) if is_redacted else code.co_filename
            lines.append(f'  File "{name}", line {frame.f_lineno}, in {code.co_name}')
            frame = frame.f_back
    return "\n".join(lines) + "\n"


def redacted(path: str) -> str:
    """Return a path without the user's folders: the path inside its package, else only the file's name."""
    parts = path.replace("\\", "/").split("/")
    for name in PACKAGES:
        if name in parts:
            return "/".join(parts[parts.index(name) + 1 :])
    return parts[-1]


def place_of(frame: Any) -> str | None:
    """Return the innermost line of the script, for example "train.py:31 in main", else of a package."""
    library, ours = os.path.dirname(os.__file__), os.path.dirname(os.path.abspath(__file__))
    of_package = None
    while frame is not None:
        file = frame.f_code.co_filename
        text = f"{os.path.basename(file)}:{frame.f_lineno} in {frame.f_code.co_name}"
        is_package = any(f"/{name}/" in file for name in PACKAGES)
        is_library = file.startswith((library + os.sep, "<frozen", ours + os.sep))
        if not is_package and not is_library:
            return text
        if of_package is None and is_package and "/torch/" not in file:
            of_package = text
        frame = frame.f_back
    return of_package
