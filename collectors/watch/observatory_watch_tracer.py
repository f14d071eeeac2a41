"""Traces steps of this process with torch's profiler, for a window of `observatory_watch_window`.

The trace is torch's own JSON, with the same annotation around each step as in other runs' traces; the phases' times
are a file next to it. It never runs together with the script's own profiler: if the script starts one, ours stops.
Imports only the standard library; torch is taken from the modules that are loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STEP = "observatory step"
"""The annotation around a step; the same as `collectors.traces.event_names.STEP`."""
LOG_LEVEL, SILENT = "KINETO_LOG_LEVEL", "6"
"""Variable from which kineto reads its log level when it first starts; unset, it prints two lines for each window."""
STARTS = ("_prepare_profiler", "_enable_profiler")
"""Functions of `torch.autograd.profiler` through which every profiler of a script starts."""
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of GPU drivers."""
STILL = "observatory_watch_still"
PATH = rb'(?<=["\s=:(,])/(?:[^\s"/\\:]+/)+[^\s"/\\:]*'
"""An absolute path in a trace, as a whole string or within one."""
CHUNK_BYTES = 4 << 20
BEFORE_BACKWARD = "before backward"
PHASES = ("data", "forward", "backward", "optimizer", BEFORE_BACKWARD)
"""Without a batch of a DataLoader, nothing shows where in a step forward begins: the time is only before backward."""


class CannotTrace(Exception):
    """The window cannot be traced in this process; the message says why."""


class Tracer:
    """Runs torch's profiler over a few steps: `prepare`, a step later `start`, `step_ends` at each end, then `stop`.

    watch: the `Watch` of this process. on_theirs: called before a profiler of the script starts; it must call `abort`.
    """

    def __init__(self, watch: Any, on_theirs: Callable[[], None]) -> None:
        self._watch, self._on_theirs = watch, on_theirs
        self._torch: Any = sys.modules["torch"]
        self._profiler: Any = self._torch.autograd.profiler
        self._profile: Any = None
        self._step: Any = None
        self._is_recording = self._is_ours = False
        self._guards: dict[str, tuple[Any, Any]] = {}
        self._phases: Phases | None = None
        self.steps_ns: list[tuple[int, int]] = []

    def prepare(self) -> None:
        """Set the profiler up a step before it records, so that no traced step contains the cost of it.

        Raises:
            CannotTrace: the script's own profiler is active, or ours would start a GPU's driver.
        """
        torch, profiler = self._torch, self._profiler
        if profiler._is_profiler_enabled or torch.autograd._profiler_enabled() or _is_warming_up():
            raise CannotTrace("the script's own profiler is active")
        is_cuda = torch.cuda.is_initialized()
        if not is_cuda and (torch.version.cuda or torch.version.hip) and any(map(os.path.exists, DRIVERS)):
            raise CannotTrace("the script uses no GPU, and the profiler of a torch for GPUs would start their driver")
        options: dict[str, Any] = {}
        # Threads that are older than the window are traced too: gloo's, and those of a strategy.
        with contextlib.suppress(AttributeError, TypeError):
            options["experimental_config"] = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        # Not torch.profiler.profile: it would import all of torch._inductor, which takes seconds.
        self._profile = profiler.profile(
            use_cpu=True, use_device="cuda" if is_cuda else None, use_kineto=True, **options
        )
        self._guard()
        is_quiet = LOG_LEVEL not in os.environ
        if is_quiet:
            os.environ[LOG_LEVEL] = SILENT
        try:
            self._ours(self._profile._prepare_trace)
        finally:
            if is_quiet:
                del os.environ[LOG_LEVEL]

    def start(self) -> None:
        """Start recording; the first traced step begins now."""
        self._ours(self._profile._start_trace)
        self._is_recording = True
        self._add_metadata()
        self._phases = Phases(self._watch)
        self._begin_step()

    def step_ends(self) -> None:
        """End a traced step and begin the next one."""
        self._note_step()
        self._leave_step()
        self._begin_step()
        if self._phases is not None:
            self._phases.step_ends()

    def stop(self, path: str) -> dict[str, list[tuple[int, int]]]:
        """End the last step and the recording, and write the trace; return each phase's begins and ends in Unix ns.

        In the trace the last step lasts until the recording ended; `steps_ns` has its true end.

        Raises:
            OSError: the trace cannot be written.
        """
        self._note_step()
        phases = self._phases.close() if self._phases is not None else {}
        self._phases = None
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()  # The trace must hold all device work of its steps.
        profile, self._profile = self._profile, None
        try:
            profile.__exit__(None, None, None)
        finally:
            self._is_recording = False
            self._leave_step()
            self._unguard()
        profile.export_chrome_trace(path)
        if self._watch.settings.get("redact"):
            _redact(path)
        return phases

    def abort(self) -> None:
        """Stop without writing a trace."""
        if self._phases is not None:
            self._phases.close()
            self._phases = None
        try:
            if self._profile is not None:
                if not self._is_recording:  # A prepared profiler must start before it can stop.
                    self._ours(self._profile._start_trace)
                self._profile.__exit__(None, None, None)
        finally:
            self._profile, self._is_recording = None, False
            self._leave_step()
            self._unguard()

    def _begin_step(self) -> None:
        self._step = self._profiler.record_function(STEP)
        self._step.__enter__()
        self._began_ns = time.time_ns()

    def _note_step(self) -> None:
        self.steps_ns.append((self._began_ns, time.time_ns()))

    def _leave_step(self) -> None:
        """End the annotation around the step, if there is one.

        The last one only once the profiler has stopped: a step may end inside ranges of the script, for example in an
        optimizer that backward calls, and torch warns about two nested ranges without an end within one with an end.
        """
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _ours(self, function: Callable[[], None]) -> None:
        self._is_ours = True
        try:
            function()
        finally:
            self._is_ours = False

    def _guard(self) -> None:
        """Intercept the script's own profiler before it starts, since two at once would spoil both."""
        for name in STARTS:
            original = getattr(self._profiler, name)

            def start(*words: Any, _original: Any = original, **named: Any) -> Any:
                if not self._is_ours:
                    self._on_theirs()
                return _original(*words, **named)

            self._guards[name] = original, start
            setattr(self._profiler, name, start)

    def _unguard(self) -> None:
        for name, (original, guard) in self._guards.items():
            if getattr(self._profiler, name) is guard:
                setattr(self._profiler, name, original)
        self._guards = {}

    def _add_metadata(self) -> None:
        """Put the rank, the process groups and the host into the trace, as torch.profiler.profile does."""
        import json
        import socket

        add = self._torch._C._autograd._add_metadata_json
        add("host_name", json.dumps(socket.gethostname()))
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            add("distributedInfo", json.dumps({"rank": 0, "world_size": 1}))
            return
        configurations = getattr(distributed.distributed_c10d, "_get_all_pg_configs", list)
        about = {
            "backend": str(distributed.get_backend()),
            "rank": distributed.get_rank(),
            "world_size": distributed.get_world_size(),
            "pg_config": configurations(),
        }
        add("distributedInfo", json.dumps(about, default=str))


class Phases:
    """Records the times of the phases while it is open: it wraps the watch's functions that the hooks call."""

    NAMES = ("enter_data", "leave_data", "enter_backward", "leave_backward", "enter_optimizer", "leave_optimizer")

    def __init__(self, watch: Any) -> None:
        self._watch = watch
        self._times: dict[str, list[tuple[int, int]]] = {name: [] for name in PHASES}
        self._depth = dict.fromkeys(PHASES, 0)
        self._began_ns = dict.fromkeys(PHASES, 0)
        self._free_ns, self._has_batch = time.time_ns(), False
        for name in self.NAMES:
            setattr(watch, name, self._around(getattr(watch, name), *name.split("_")))

    def _around(self, original: Callable[..., None], way: str, phase: str) -> Callable[..., None]:
        note = self._enter if way == "enter" else self._leave

        def call(*words: Any) -> None:
            note(phase)
            original(*words)

        return call

    def _enter(self, phase: str) -> None:
        now = time.time_ns()
        self._depth[phase] += 1
        if self._depth[phase] == 1:
            self._began_ns[phase] = now
            if phase == "backward":
                self._add("forward" if self._has_batch else BEFORE_BACKWARD, self._free_ns, now)

    def _leave(self, phase: str) -> None:
        now = time.time_ns()
        self._depth[phase] = max(0, self._depth[phase] - 1)
        if self._depth[phase] == 0:
            # An optimizer's closure runs forward and backward; only the time after them is the optimizer's.
            began_ns = self._began_ns[phase]
            self._add(phase, max(began_ns, self._free_ns) if phase == "optimizer" else began_ns, now)
            self._free_ns = now
            self._has_batch |= phase == "data"

    def step_ends(self) -> None:
        """Begin the next step, which needs a batch of its own."""
        self._has_batch = False

    def _add(self, phase: str, began_ns: int, ended_ns: int) -> None:
        if began_ns and began_ns < ended_ns:
            self._times[phase].append((began_ns, ended_ns))

    def close(self) -> dict[str, list[tuple[int, int]]]:
        """Remove the wrappers; return the times of each phase, in order."""
        for name in self.NAMES:
            self._watch.__dict__.pop(name, None)
        return self._times


def _redact(path: str) -> None:
    """Shorten paths in a trace as in stacks: the trace's own, of generated kernels, and in the script's names."""
    import re
    from importlib import import_module

    still = import_module(f"{__package__}.{STILL}" if __package__ else STILL)
    pattern = re.compile(PATH)

    def shorten(match: re.Match[bytes]) -> bytes:
        short: str = still.redacted(os.fsdecode(match[0]))
        return os.fsencode(short)

    with open(path, "rb") as whole, open(f"{path}.new", "wb") as short:
        while lines := whole.readlines(CHUNK_BYTES):
            short.write(pattern.sub(shorten, b"".join(lines)))
    os.replace(f"{path}.new", path)


def _is_warming_up() -> bool:
    """Whether a profiler of the script is in its schedule's warm-up, which no flag of torch shows."""
    import gc

    module = sys.modules.get("torch.profiler.profiler")
    if module is None:
        return False
    kinds = {module.profile, *module.profile.__subclasses__()}
    return any(
        type(each) in kinds
        and each.current_action == module.ProfilerAction.WARMUP
        and each.profiler is not None
        and each.profiler.kineto_results is None
        for each in gc.get_objects()
    )
