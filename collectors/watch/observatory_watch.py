"""The hook of `observatory watch`: times the training steps of the process that loads it.

It imports only the standard library, since it runs in the user's interpreter. `observatory watch` copies it and the
files next to it into a folder that goes first on PYTHONPATH: Python runs `sitecustomize.py` by itself, and
`observatory_watch_hooks.py` calls the watch from within torch.

A process writes nothing before its first training step: launchers, compilers and data workers also import torch.
From then on one file in the run's folder holds this rank's steps; `bench.results.watched.rank_files` has its format.
Without a watch, `step` does nothing. It depends on neither bench nor any package but torch, which it never imports.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VERSION = 1
"""Version of the lines that the hook writes."""
RULES = ("optimizer", "deepspeed", "mark")
"""What ends a step, from the weakest rule to the strongest."""
FLUSH_NS = 1_000_000_000
SLOW_FLUSH_NS = 10_000_000_000
JUDGED_NS = 10_000_000_000
"""Least time between two lines, normally and once thinned out; and the span of steps over which our share is judged."""
MOST_OWN = 0.01
"""Highest share of the steps' time that our own code may take; above it, the hook does less."""
FREE_BYTES, BYTES_PER_S = 1_900_000, 1
"""Bytes that a rank's file may have from the start, and its further growth per second: 2 MB in the first day."""
FAILURES, MOST_FAILURE_BYTES = "watch_failures.txt", 64_000
"""Log in the run's folder of failures in processes without a rank's file, and its largest size."""
PROCESS, STILL = "observatory_watch_process", "observatory_watch_still"
"""The modules next to this one: the rank and device of a process, and whether its steps have stopped."""
LONGEST_BATCH = 4096
"""Unwritten steps at which a line is written, whatever the time."""
ALL_UP_TO, RUN = 4096, 8
"""Every step before this number is written; later steps in runs of `RUN`, ever fewer of them: see `stride`."""
COLUMNS = (
    *("end_ns", "step_ns", "device_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns", "tokens", "own_ns"),
    *("skipped", "backward_calls"),
)
ALWAYS = ("end_ns", "step_ns", "data_ns", "own_ns", "skipped")
"""The lists in a line of steps, and those that are never null as a whole."""
TAKES_OVER = 10
"""Steps of another optimizer since the last of the leading one, after which the other leads: the first is gone."""

current: Watch | None = None
"""The watch of this process; None if it is not watched."""


class step:  # noqa: N801  # A context manager, as `torch.no_grad` is.
    """Mark one training step: `with step(tokens=batch.numel()): ...`. Without a watch it does nothing.

    tokens: number of tokens that this rank trains on in the step; a tensor is ignored: reading it could wait for a GPU.
    """

    def __init__(self, tokens: float | None = None) -> None:
        self._tokens = tokens

    def __enter__(self) -> None:
        self._watch = current if current is not None and not current.is_over else None
        if self._watch is not None:
            self._watch.guarded(self._watch.enter_mark)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._watch is not None:
            self._watch.guarded(self._watch.leave_mark, self._tokens, kind is None)


class Watch:
    """Times the steps of this process and writes them to the rank's file.

    settings: "folder" is the run's. clock_ns: monotonic. module_of: returns a module that was imported, else None.
    too_old: why this torch is not watched. on_backward, on_step: called before each backward, and after each step.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        module_of: Callable[[str], Any] = sys.modules.get,
    ) -> None:
        self.settings, self.clock_ns, self.module_of = settings, clock_ns, module_of
        self.pid, self.thread = os.getpid(), get_ident()
        self.too_old: str | None = None
        self.on_backward: Callable[[], None] | None = None
        self.on_step: Callable[[], None] | None = None
        self.windows: Any = None
        self.has_trained = self.is_begun = self.is_over = self.has_ended = False
        self.has_phases = True
        self._fd = -1
        self._witness: Any = None
        self._memory: Callable[[Any], dict[str, int | None]] = lambda cuda: {}
        self._count: Callable[[Any], float | None] = lambda tokens: None
        self._rule: str | None = None
        self._steps = self._unwritten = 0
        # Times of the current step. _free_ns: when the host left the last known phase.
        self._end_ns: int | None = None
        self._is_whole = False
        self._free_ns = clock_ns()
        self._data = self._forward = self._backward = self._optimizer = self._own = 0
        self._backward_calls = 0
        self._data_depth = self._backward_depth = self._mark_depth = 0
        self._stack: list[tuple[int, int]] = []
        self._inner: int | None = None
        self._lead: int | None = None
        self._others: dict[int, int] = {}
        # Steps that are not written yet, a tuple each, and what was written.
        self._rows: list[tuple[Any, ...]] = []
        self._event: Any = None
        self._flushed_ns = self._begun_ns = clock_ns()
        self._flush_ns = FLUSH_NS
        self._written = 0
        self._sum_own = self._sum_elapsed = 0

    def guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call one of our functions; if it fails, the watch ends with one line, and the script continues."""
        try:
            function(*arguments)
        except Exception as error:  # No mistake of ours may stop somebody's training.
            self.is_over = True
            if _is_of_script(error):  # For example a signal handler that raises while our code runs.
                raise
            self._say_failure(f"the watch of process {os.getpid()} ended: {type(error).__name__}: {error}")

    def _say_failure(self, text: str) -> None:
        """Write one line to the rank's file or, if there is none, to the log of failures."""
        try:
            if self.is_begun:
                self.note(text)
                return
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            log = os.open(os.path.join(self.settings["folder"], FAILURES), flags, 0o600)
            if os.fstat(log).st_size < MOST_FAILURE_BYTES:
                os.write(log, " ".join(text.split())[:500].encode() + b"\n")
            os.close(log)
        except Exception:  # noqa: BLE001  # Nothing can be written: another user, or a full disk.
            self.is_begun = False

    # The phases. Each function reads the clock first and adds its own time last.

    def enter_data(self) -> None:
        now = self.clock_ns()
        self._data_depth += 1
        if self._data_depth == 1:
            self._data_began = now

    def leave_data(self) -> None:
        now = self.clock_ns()
        self._data_depth -= 1
        if self._data_depth == 0:
            self._data += now - self._data_began
            self._free_ns = now
        self._own += self.clock_ns() - now

    def enter_backward(self) -> None:
        now = self.clock_ns()
        self._backward_depth += 1
        if self._backward_depth == 1:
            if not self.has_trained:
                self._prepare()
            if self.on_backward is not None:
                self.on_backward()
            self._forward += max(0, now - self._free_ns)
            self._backward_calls += 1
            self._own += self.clock_ns() - now
            self._backward_began = now

    def leave_backward(self) -> None:
        now = self.clock_ns()
        self._backward_depth -= 1
        if self._backward_depth == 0:
            self._backward += now - self._backward_began
            self._free_ns = now
        self._own += self.clock_ns() - now

    def enter_optimizer(self, key: int) -> None:
        """Begin a step of an optimizer, or of a GradScaler for it. key: the optimizer's id, negated for a scaler."""
        now = self.clock_ns()
        keys = [other for other, _ in self._stack]
        if key in keys:  # Its last step raised an error, or its class calls another class's step.
            del self._stack[keys.index(key) :]
        self._stack.append((key, now))
        self._inner = None
        self._own += self.clock_ns() - now

    def leave_optimizer(self, key: int) -> None:
        now = self.clock_ns()
        began_ns = None
        while self._stack and began_ns is None:
            other, other_began_ns = self._stack.pop()
            began_ns = other_began_ns if other == key else None
        is_skipped, self._inner = key < 0 and self._inner is None, key
        if self._stack or began_ns is None:  # An optimizer inside another, as in ZeroRedundancyOptimizer.
            return
        # A closure runs forward and backward; only the time after the last backward is the optimizer's.
        self._optimizer += now - max(began_ns, self._free_ns)
        self._free_ns = now
        if self._is_end_of_step(abs(key)):
            self._end_step("optimizer", now, is_skipped=is_skipped)
        self._own += self.clock_ns() - now

    def _is_end_of_step(self, which: int) -> bool:
        """Whether this optimizer ends the step: of several, the first does, as long as it is used."""
        if self._lead is None or which == self._lead:
            self._lead = which
            self._others.clear()
            return True
        self._others[which] = self._others.get(which, 0) + 1
        if self._others[which] == TAKES_OVER:
            self._lead, self._is_whole = which, False
            self._others.clear()
            return True
        return False

    def enter_engine_step(self) -> None:
        """DeepSpeed's engine, not its optimizers, ends steps: it is at the boundary of gradient accumulation."""
        self._follow("deepspeed")

    def leave_engine_step(self) -> None:
        now = self.clock_ns()
        self._free_ns = now
        self._end_step("deepspeed", now)
        self._own += self.clock_ns() - now

    def enter_mark(self) -> None:
        if self._mark_depth == 0:
            self._follow("mark")
        self._mark_depth += 1

    def leave_mark(self, tokens: Any, is_whole: bool) -> None:
        now = self.clock_ns()
        self._mark_depth -= 1
        if self._mark_depth == 0 and is_whole and self.module_of("torch") is not None:
            self._free_ns = now
            self._end_step("mark", now, tokens)
        self._own += self.clock_ns() - now

    def _follow(self, rule: str) -> bool:
        """Whether this rule ends steps: the strongest rule seen so far does."""
        if self._rule is None or RULES.index(rule) > RULES.index(self._rule):
            self._flush()
            self._rule, self._is_whole = rule, False
        return rule == self._rule

    def _end_step(self, rule: str, now: int, tokens: Any = None, is_skipped: bool = False) -> None:
        if self._is_capturing() or not self._follow(rule):
            return
        if not self.is_begun:
            self._begin()
            if self.is_over:
                return
        elapsed = now - self._end_ns if self._end_ns is not None and self._is_whole else None
        cuda, event = self._cuda(), None
        if cuda is not None:
            event = cuda.Event(enable_timing=True)
            event.record()
        before, self._event = self._event, event
        has_phases, known = self.has_phases, self.has_phases and self._backward_calls > 0
        self._rows.append(
            (
                *(now, elapsed, (before, self._event), self._data if has_phases else None),
                *(self._forward if known else None, self._backward if known else None),
                *(self._optimizer if has_phases and self._optimizer else None, self._count(tokens)),
                *(self._own, is_skipped),
                self._backward_calls if has_phases else None,
            )
        )
        self._steps += 1
        self._end_ns, self._is_whole, self._backward_calls = now, True, 0
        self._data = self._forward = self._backward = self._optimizer = self._own = 0
        if now - self._flushed_ns >= self._flush_ns or len(self._rows) >= LONGEST_BATCH:
            self._flush()
        if self.on_step is not None:
            self.on_step()

    # The device: no CUDA call before the script's first, and none while a graph is captured.

    def _is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured: an event would invalidate the capture."""
        cuda = self._cuda()
        return cuda is not None and bool(cuda.is_current_stream_capturing())

    def _cuda(self) -> Any:
        torch = self.module_of("torch")
        return torch.cuda if torch is not None and torch.cuda.is_initialized() else None

    # The file.

    def _begin(self) -> None:
        """Open the rank's file and write its begin line."""
        import platform
        import socket
        from importlib import import_module

        process, still = (import_module(f"{__package__}.{name}" if __package__ else name) for name in (PROCESS, STILL))
        place, self._memory = process.place(self.module_of), process.memory
        self._count = process.counter(self.note)
        path = os.path.join(self.settings["folder"], f"watch_rank{place['rank']}.jsonl")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        # A second process of this rank (independent scripts under one command) writes nothing.
        if not process.is_only_writer(self._fd):
            os.close(self._fd)
            self.is_over = True
            return
        self._is_open = process.still_open(self._fd)
        self._written = os.fstat(self._fd).st_size
        self.is_begun = True
        torch = self.module_of("torch")
        self._write(
            {
                "kind": "begin",
                "version": VERSION,
                **place,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "unix_s": time.time(),
                "monotonic_ns": self.clock_ns(),
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                **process.device(self._cuda()),
                "script": process.script(self.module_of("__main__"), is_redacted=self.settings.get("redact", False)),
            }
        )
        self._call_end()
        self._flushed_ns = self._begun_ns = self.clock_ns()
        self.thread = get_ident()
        self._witness = still.start(self, place["rank"], path)
        if self.too_old is not None:
            self.is_over = True
            self.note(self.too_old)

    def _prepare(self) -> None:
        """Before the first backward: have a process that trains note at its end if no step was seen."""
        self.has_trained = True
        self._call_end()

    def _call_end(self) -> None:
        """Have `end` called when this process ends; a process forked by multiprocessing runs no atexit functions."""
        import atexit

        atexit.register(self.end)
        forking = self.module_of("multiprocessing.util")
        if forking is not None:
            forking.Finalize(None, self.end, exitpriority=-100)

    def times_phase_here(self) -> bool:
        """Whether phases are timed in this thread: other threads may load data, or run a nested backward."""
        return self.has_phases and self.thread == get_ident()

    def end(self) -> None:
        """Write the remaining steps when the interpreter ends."""
        if os.getpid() == self.pid:
            self.guarded(self._end)

    def _end(self) -> None:
        if not self.is_begun and not self.is_over:
            self._begin()
            self.note(
                "no steps seen: this process called backward, but no optimizer of torch.optim made a step outside of"
                " compiled code and CUDA graphs; mark steps with `with step():`"
            )
        if self.is_begun and not self.has_ended:
            self.has_ended = self.is_over = True
            self._flush(is_last=True)
            self._write({"kind": "end", "unix_s": time.time(), "steps": self._steps})
            self.is_begun = False
            os.close(self._fd)
            if self._witness is not None:
                self._witness.stop()

    def note(self, text: str) -> None:
        """Write a note in plain words."""
        if self.is_begun:
            self._write({"kind": "note", "text": " ".join(text.split())[:500]})

    def _flush(self, *, is_last: bool = False) -> None:
        """Write the steps since the last flush, without those that `is_kept` leaves out.

        Steps that the device has not finished wait for the next flush, unless is_last.
        """
        if self._is_capturing():
            return
        self._flushed_ns = self.clock_ns()
        ready = len(self._rows)
        while ready and not is_last and not _is_done(self._rows[ready - 1][2][1]):
            ready -= 1
        first = self._steps - len(self._rows)
        rows, self._rows = self._rows[:ready], self._rows[ready:]
        if self._witness is not None:
            self._witness.take(rows)
        allowed = FREE_BYTES + BYTES_PER_S * (self._flushed_ns - self._begun_ns) // 1_000_000_000
        at = 0
        while at < len(rows):
            until = at
            while until < len(rows) and is_kept(first + until):
                until += 1
            if until > at and self._written < allowed:
                self._append(self._line(rows[at:until], first + at))
                self._unwritten = 0
            else:
                until = max(until, at + 1)
                self._unwritten += until - at
            at = until
        self._thin_out(rows)

    def _line(self, rows: list[tuple[Any, ...]], first: int) -> bytes:
        columns = [list(column) for column in zip(*rows)]  # noqa: B905  # strict= is newer than Python 3.9.
        columns[2] = [_between(*events) for events in columns[2]]
        line: dict[str, Any] = {"kind": "steps", "rule": self._rule, "first": first}
        for name, column in zip(COLUMNS, columns):  # noqa: B905
            line[name] = column if name in ALWAYS or any(value is not None for value in column) else None
        if not any(line["skipped"]):
            del line["skipped"]
        if self._unwritten:
            line["left_out"] = self._unwritten
        line.update(self._memory(self._cuda()))
        return _encoded(line)

    def _thin_out(self, rows: list[tuple[Any, ...]]) -> None:
        """Do less if our own code takes too much of the steps: first write less often, then stop timing phases."""
        self._sum_own += sum(row[8] for row in rows)
        self._sum_elapsed += sum(row[1] or 0 for row in rows)
        if self._sum_elapsed < JUDGED_NS or not self.has_phases:
            return
        share = self._sum_own / self._sum_elapsed
        self._sum_own = self._sum_elapsed = 0
        if share > MOST_OWN:
            self.has_phases = self._flush_ns == FLUSH_NS
            self._flush_ns = SLOW_FLUSH_NS
            what = "lines are now written every 10 s" if self.has_phases else "phases are no longer timed"
            self.note(f"the watch took {share:.1%} of the steps, more than {MOST_OWN:.0%}: {what}")

    def _write(self, line: dict[str, Any]) -> None:
        self._append(_encoded(line))

    def _append(self, line: bytes) -> None:
        self.is_begun = self._is_open()
        if not self.is_begun:
            raise OSError("the script closed the rank's file")
        os.write(self._fd, line)  # One system call, so that a reader never sees half a line for long.
        self._written += len(line)


def _is_of_script(error: Exception) -> bool:
    """Whether an error passed through code that is neither ours nor torch's nor the standard library's."""
    torch = sys.modules.get("torch")
    ours = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(str(getattr(torch, "__file__", __file__)))]
    library = os.path.dirname(os.__file__)
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        is_library = file.startswith("<frozen") or (file.startswith(library) and "-packages" not in file)
        if not is_library and not any(file.startswith(folder + os.sep) for folder in ours):
            return True
        trace = trace.tb_next
    return False


def stride(number: int) -> int:
    """Return n if one in n runs of `RUN` steps is written at this step number: 1, then 2, 4, 8, ...

    It is the same on all ranks, and each stride is a multiple of the earlier ones, so a job has steps that all ranks
    wrote, evenly spread over its whole time.
    """
    return 1 << (number // ALL_UP_TO).bit_length()


def is_kept(number: int) -> bool:
    """Whether the step of this number is written."""
    return number // RUN % stride(number) == 0


def _encoded(line: dict[str, Any]) -> bytes:
    import json

    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _is_done(event: Any) -> bool:
    return event is None or bool(event.query())


def _between(first: Any, last: Any) -> int | None:
    """Device time between two events in ns; None if one is missing, not reached yet, or on another GPU."""
    try:
        return int(first.elapsed_time(last) * 1e6) if first is not None and last is not None else None
    except RuntimeError:
        return None
