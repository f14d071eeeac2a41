"""Windows of a watched job: requests them, joins their traces, and attaches to a job (`observatory watch --attach`).

`collectors/watch/observatory_watch_window.py` is the ranks' side. A separate process joins the traces, since the
watching process must keep passing signals on: `python -m bench.session.watched.windows RUN NUMBER`.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import InfrastructureFailed, Misuse, end_signals_interrupt, say
from bench.results.watched.details import TracedWindow
from bench.results.watched.still import phase_words
from bench.results.watched.windows import RESULT, WindowFolder, missed, window_folder, window_numbers
from bench.session.watched.active import running_job
from bench.session.watched.slower import SLOWER, SlowerSteps
from bench.store.active_runs import is_running
from bench.store.files import read_small
from collectors.files import make_subfolder, replace_file
from collectors.watch.observatory_watch_window import FOLDER, MOST_STEPS, REQUEST

STEPS = 12
"""Default number of traced steps: on two ranks, fewer seldom separate a late rank from chance."""
MOST_FOLDERS = 1000
"""Most windows of one run; it takes no further request."""
HOOK_FOLDER = "hook"
MISSING_S = 60.0
"""Time that ranks have to write their traces after the first trace exists."""
JOIN_S = 120.0
"""Time to finish a running join after the command's end."""
SLOW_S = 600.0
"""Least time between two windows that a slowdown requested."""
LOOK_S = 0.5
_RANK = re.compile(r"watch_rank(\d+)\.jsonl")


def request_window(run: Path, steps: int, why: str) -> int:
    """Ask the ranks of a job to trace so many steps; return the window's number. run: the job's folder.

    Raises:
        Misuse: a request is already pending, or the run has its maximum of windows.
        InfrastructureFailed: the folder cannot be written.
    """
    path = run / HOOK_FOLDER / REQUEST
    draft = path.with_name(f"{REQUEST}.{secrets.token_hex(4)}")
    try:
        make_subfolder(run / FOLDER)
        number = _new_folder(run / FOLDER)
        try:
            request = {"id": number, "steps": min(MOST_STEPS, steps), "why": why}
            replace_file(draft, msgspec.json.encode(request))
            path.hardlink_to(draft)  # Atomic, and fails if there is another request.
        except BaseException:  # A folder without a request would count as an open window.
            _take_request_away(path, number)
            with suppress(OSError):
                (run / FOLDER / str(number)).rmdir()
            raise
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError:
        raise Misuse(
            f"{run.name} already has a pending window request, which its ranks take up at the end of a step; wait"
            " for it"
        ) from None
    except OSError as error:
        raise InfrastructureFailed(f"{run} cannot be written: {error.strerror}; make room") from None
    return number


def _take_request_away(path: Path, number: int) -> None:
    """Remove the request for this window, if it is there."""
    with suppress(OSError, msgspec.DecodeError, KeyError):
        if msgspec.json.decode(read_small(path, follows_link=False), type=dict[str, Any])["id"] == number:
            path.unlink()


def _new_folder(windows: Path) -> int:
    number = 1 + max((int(path.name) for path in windows.iterdir() if path.name.isdecimal()), default=0)
    for candidate in range(number, MOST_FOLDERS + 1):
        try:
            (windows / str(candidate)).mkdir(0o700)
        except FileExistsError:  # Another process requests at the same time.
            continue
        return candidate
    raise Misuse(f"{windows.parent.name} has {MOST_FOLDERS} windows, and answers no further request; start a new run")


def withdraw_window(run: Path, number: int) -> bool:
    """Withdraw a request for a window; return whether no steps are traced: the ranks had not agreed on any."""
    from bench.analysis.traces.watched_window import drop_window  # Loads the analysers.

    _take_request_away(run / HOOK_FOLDER / REQUEST, number)
    if window_folder(run, number).agreed is None:
        drop_window(run, number, "withdrawn before the ranks agreed on its steps")
        if window_folder(run, number).agreed is None:
            return True
        (run / FOLDER / str(number) / RESULT).unlink(missing_ok=True)  # They agreed meanwhile.
    agreed = window_folder(run, number).agreed
    return agreed is not None and agreed.dropped is not None


class JobWindows:
    """Requests windows of a running job and joins what its ranks have traced.

    every_s: time between two windows; None requests no such windows. slower: detects that the steps have become slower,
    which also requests a window; None requests no such windows. clock_s: monotonic.
    """

    def __init__(
        self,
        run: Path,
        *,
        every_s: float | None = None,
        steps: int = STEPS,
        slower: SlowerSteps | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._every_s, self._steps, self._clock_s = run, every_s, steps, clock_s
        self._due_s = None if every_s is None else clock_s() + every_s
        self._slower, self._slow_due_s = slower, -math.inf
        self._traced: dict[int, tuple[int, int]] = {}
        self._done: set[int] = set()
        self._since_s: dict[int, float] = {}
        self._join: tuple[int, subprocess.Popen[bytes]] | None = None
        self._newest: TracedWindow | None = None

    def beat(self) -> None:
        """Do what is due; called about once a second."""
        self._poll_join()
        waiting = [number for number in window_numbers(self._run) if number not in self._done]
        for window in (window_folder(self._run, number) for number in waiting):
            if window.agreed is not None and window.agreed.first is not None and window.agreed.last is not None:
                self._traced[window.number] = window.agreed.first, window.agreed.last
            if window.result is not None:
                self._take(window.result)
            elif self._join is None and self._is_ready(window):
                self._start_join(window.number)
        if self._due_s is not None and self._clock_s() >= self._due_s and not waiting:
            self._due_s = self._clock_s() + (self._every_s or 0.0)
            try:
                request_window(self._run, self._steps, f"--window-every {(self._every_s or 0.0) / 60:g}")
            except (Misuse, InfrastructureFailed):  # The last request is still pending; the next comes on schedule.
                return
        elif self._slower is not None:
            self._follow(self._slower, is_open=bool(waiting))

    def _follow(self, slower: SlowerSteps, *, is_open: bool) -> None:
        """Request a window if the steps have become slower. is_open: whether one is already open."""
        try:
            slower.judge(self._traced.values())
        except Exception as error:  # noqa: BLE001  # No error of ours may end the watch while its command runs.
            self._slower = None
            say(f"slowdowns are no longer detected: {type(error).__name__}: {error}")
            return
        slowdown, now_s = slower.slowdown, self._clock_s()
        if slowdown is None or is_open or now_s < self._slow_due_s:
            return
        if len(list(self._run.glob("watch_rank*.jsonl"))) < slower.world_size:  # Ranks of other nodes see no request.
            return
        slower.slowdown, self._slow_due_s = None, now_s + SLOW_S
        with suppress(Misuse, InfrastructureFailed):  # Its maximum of windows is reached, or the disk is full.
            request_window(self._run, self._steps, slowdown.words())

    def finish(self) -> None:
        """After the command's end, join the windows that were traced and drop the others."""
        end_s = self._clock_s() + JOIN_S
        while self._join is not None and self._clock_s() < end_s:
            time.sleep(LOOK_S / 5)
            self._poll_join()
        if self._join is not None:
            self._join[1].kill()
            self._join[1].wait()
        folders = (window_folder(self._run, number) for number in window_numbers(self._run))
        left = [window for window in folders if window.result is None]
        if not left:
            return
        from bench.analysis.traces.watched_window import drop_window  # Loads the analysers.

        for window in left:
            if window.agreed is None or (self._join is not None and self._join[0] == window.number):
                ended = "the command ended before the window was traced"
                why = ended if window.agreed is None else "joining took too long"
                drop_window(self._run, window.number, why)
            else:
                _join(self._run, window.number)

    def line(self) -> str | None:
        """Return the newest window in a few words, for the live line.

        Example: traced: exposed 14 %, waiting 80 %, rank 1 late in backward
        A window that a slowdown requested begins with the slowdown: the step became 23 % slower than its past (since
        step 1,200); traced: exposed 14 %
        """
        window = self._newest
        if window is None:
            return None
        is_slow = window.why.startswith(SLOWER)
        if window.dropped is not None:
            return f"{window.why}; not traced: {window.dropped}" if is_slow else None
        ratios = (("exposed", window.exposed_ratio), ("waiting", window.waiting_ratio))
        words = [f"{name} {100 * ratio:.0f} %" for name, ratio in ratios if ratio is not None]
        if window.late is not None and window.late.rank is not None:
            words.append(
                f"rank {window.late.rank} late" + (f" {phase_words(window.late.phase)}" if window.late.phase else "")
            )
        traced = f"traced: {', '.join(words)}" if words else None
        return "; ".join(filter(None, (window.why if is_slow else None, traced))) or None

    def _take(self, result: TracedWindow) -> None:
        self._done.add(result.number)
        self._newest = result

    def _is_ready(self, window: WindowFolder) -> bool:
        """Whether every rank has a trace, or the window can be decided without the missing ones."""
        if window.agreed is None:
            return False
        if window.agreed.dropped is not None or missed(window):
            return True
        traces = len([path for path in window.path.glob("rank*.json") if path.stem.removeprefix("rank").isdecimal()])
        if traces >= (window.agreed.world_size or 1):
            return True
        return traces > 0 and self._clock_s() - self._since_s.setdefault(window.number, self._clock_s()) > MISSING_S

    def _start_join(self, number: int) -> None:
        words = [sys.executable, "-P", "-m", __name__, str(self._run), str(number)]
        nothing = subprocess.DEVNULL
        try:
            # In a new session, so that Ctrl-C at the terminal reaches only the command.
            child = subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
        except OSError:  # Not enough memory: `finish` joins the window.
            self._done.add(number)
            return
        self._join = number, child

    def _poll_join(self) -> None:
        if self._join is not None and self._join[1].poll() is not None:
            number, _ = self._join
            self._join = None
            if window_folder(self._run, number).result is None:
                from bench.analysis.traces.watched_window import drop_window  # Loads the analysers.

                drop_window(self._run, number, "the process that joined its traces died")


# Attaching to a job that another process watches.


def attach(name: str, runs: Path, steps: int) -> TracedWindow | None:
    """Request a window from the watched job of this name or run id, and return it once its traces are joined.

    Returns None if the job ended first. Ctrl-C, SIGTERM and a closed terminal withdraw the request.

    Raises:
        Misuse: this user has no such active job, its run lacks rank 0, or a request is already pending.
        InfrastructureFailed: the run's folder cannot be written.
        KeyboardInterrupt: the wait was interrupted.
    """
    run = running_job(name, runs)
    ranks = [int(match[1]) for path in run.iterdir() if (match := _RANK.fullmatch(path.name))]
    if ranks and 0 not in ranks:
        raise Misuse(f"{run.name} has no rank 0, which chooses the steps; trace the run of that rank's node")
    with end_signals_interrupt():
        number = request_window(run, steps, "--attach")
        try:
            say(f"{run.name}: asked the ranks to trace {steps} steps; they take up the request at the end of a step")
            return _wait_for(run, number, name)
        except KeyboardInterrupt:
            if withdraw_window(run, number):
                say(f"window {number} is withdrawn; no step is traced")
            else:
                say(
                    f"the ranks have agreed on window {number} and trace it; `observatory show {name}` shows its result"
                )
            raise


def _wait_for(run: Path, number: int, name: str) -> TracedWindow | None:
    """Wait for a window's result; None if the job ended first."""
    has_agreed = False
    while (window := window_folder(run, number)).result is None:
        if not has_agreed and window.agreed is not None and window.agreed.first is not None:
            has_agreed = True
            say(f"window {number}: steps {window.agreed.first} to {window.agreed.last} will be traced on all ranks")
        if not is_running(run) and window_folder(run, number).result is None:
            say(f"{run.name} ended before window {number} was joined; `observatory show {name}` shows how it ended")
            return None
        time.sleep(LOOK_S)
    return window.result


def main() -> None:
    """Join one window, in the process that `JobWindows` starts."""
    os.nice(10)
    _join(Path(sys.argv[1]), int(sys.argv[2]))


def _join(run: Path, number: int) -> None:
    """Join a window, or drop it with the error: no window may affect the run or the command's exit code."""
    from bench.analysis.traces.watched_window import drop_window, join_window

    try:
        join_window(run, number)
    except Exception as error:  # noqa: BLE001  # From an analysis of the user's traces.
        drop_window(run, number, f"its traces could not be joined: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
