"""Runs a command under watch: makes the run's folder with the hook, runs the command, and stores the run."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench.errors import InfrastructureFailed, Misuse, end_signals_interrupt, say
from bench.machine.machine import Machine
from bench.machine.machine import read as read_machine
from bench.report.table import open_console, print_page
from bench.session.watched.child import exit_code, run_child
from bench.session.watched.command_line import check_waits, known_words, read_script, script_word
from bench.session.watched.progress import JobProgress, LiveLine
from bench.session.watched.slower import BLOCK_NS, SlowerSteps
from bench.session.watched.windows import STEPS, JobWindows
from bench.store import run_dir
from bench.store.active_runs import lock_folder
from bench.store.files import read_small
from collectors.files import locked, make_folder, replace_file

VERSION = 1
HOOK_FILES = (
    *("observatory_watch.py", "observatory_watch_process.py", "observatory_watch_still.py"),
    *("observatory_watch_window.py", "observatory_watch_tracer.py"),
    *("observatory_watch_hooks.py", "sitecustomize.py"),
)
"""Files of `collectors/watch` that the command's interpreters load; Python runs the last by itself."""
HOOK_FOLDER = "hook"
OWN = frozenset({HOOK_FOLDER, "watch.json", "machine.json"})
"""Content of a run's folder before the command begins."""
SETTINGS = "settings.json"
FAILURES, MOST_FAILURES = "watch_failures.txt", 3
SWITCH = "OBSERVATORY_WATCH"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_HOOK = Path(__file__).parents[3] / "collectors" / "watch"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """A command to watch. name: of the series that the run belongs to. umask: of the command; None keeps ours.

    tags: declared by the user; runs with other tags are another series. is_quiet: print no progress.
    window_every_s: time between windows of `window_steps` traced steps; None traces no such windows. has_slow_windows:
    trace a window when the steps become slower than their own past. block_ns: length of the compared blocks of steps.
    is_drawn: redraw the progress in one line of a terminal. is_redacted: leave folders out of stored paths: the
    script's, and those in stacks and traces.
    """

    command: Sequence[str]
    name: str
    runs: Path
    store_url: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    is_quiet: bool = False
    is_drawn: bool = False
    is_redacted: bool = False
    umask: int | None = None
    window_every_s: float | None = None
    window_steps: int = STEPS
    has_slow_windows: bool = True
    block_ns: int = BLOCK_NS


def watch(request: WatchRequest) -> int:
    """Run the command under watch, store its run, and return the command's own exit code.

    Raises:
        Misuse: there is no such command, it returns before its job begins, or the folder of runs cannot be used.
        InfrastructureFailed: the run's folder cannot be written, or the command cannot be started.
    """
    find_program(request.command[0])
    if os.environ.get(SWITCH, "").lower() == "off":
        say(f"{SWITCH}=off: the command runs unwatched, and no run is kept")
        return exit_code(run_child(request.command, os.environ, umask=request.umask))
    check_waits(request.command)
    run_dir.check_place(request.runs)
    with ExitStack() as stack:
        with end_signals_interrupt():
            folder = _make_folder(request, stack)
            document = _describe(request, folder)
        if not request.is_quiet:
            say(f"run {folder.name}: `observatory show {request.name}` shows it while it runs")
        slower = SlowerSteps(request.block_ns) if request.has_slow_windows else None
        live, progress = LiveLine(is_drawn=request.is_drawn), JobProgress(folder, slower=slower)
        windows = JobWindows(folder, every_s=request.window_every_s, steps=request.window_steps, slower=slower)

        is_script_known = document["script"] is not None or request.is_redacted  # A redacted rank tells no folder.

        def read() -> None:
            nonlocal is_script_known
            progress.read()
            if not is_script_known and progress.script is not None:  # `python -m`, or a script in a shell's line.
                is_script_known = True
                document.update(_of_script(progress.script, request))

        def beat() -> None:
            read()
            windows.beat()
            if not request.is_quiet and live.is_due() and (line := progress.line()) is not None:
                live.show("   ".join(filter(None, (line, windows.line()))))

        try:
            code = run_child(
                request.command, environment(os.environ, folder / HOOK_FOLDER), umask=request.umask, on_beat=beat
            )
        finally:
            live.close()
        with suppress(OSError):  # `_keep` reads again, and says why it cannot.
            read()
        _keep(request, folder, document | _end_of(code), progress, windows)
    return exit_code(code)


def find_program(name: str) -> str:
    """Return the path of a command's program.

    Raises:
        Misuse: there is no program that can be run.
    """
    path = shutil.which(name)
    if path is None:
        if not name:
            why = "it is empty; name a program"
        elif Path(name).is_dir():
            why = "it is a folder"
        elif Path(name).is_file():
            why = "it is not executable; put its interpreter first, for example `python`"
        else:
            why = "there is no such program; check the name, and that its environment is active"
        raise Misuse(f"command {name!r} cannot be run: {why}")
    return path


def environment(variables: Mapping[str, str], hook: Path) -> dict[str, str]:
    """Return the command's environment: ours, with the hook's folder first on PYTHONPATH."""
    former = variables.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": os.pathsep.join([str(hook), *([former] if former else [])])}


def write_hook(folder: Path, **settings: object) -> Path:
    """Make the hook's folder, private to this user, in a run's folder; return it. settings: more settings of the hook.

    Raises:
        OSError: the folder cannot be written.
    """
    hook = folder / HOOK_FOLDER
    hook.mkdir(0o700)
    for name in HOOK_FILES:
        replace_file(hook / name, read_small(_HOOK / name))
    run_dir.write_json(hook / SETTINGS, {"version": VERSION, "folder": str(folder)} | settings)
    return hook


def _make_folder(request: WatchRequest, stack: ExitStack) -> Path:
    """Make the run's folder, locked until the stack closes; the lock marks the run as active."""
    started = datetime.now(tz=UTC)
    folder = request.runs.absolute() / f"{started:%Y%m%d-%H%M%S}-{request.name}-{secrets.token_hex(3)}"
    if os.pathsep in str(folder):
        raise Misuse(f"the folder of runs {request.runs} has a {os.pathsep!r}, which ends an entry of PYTHONPATH")
    try:
        make_folder(folder, exist_ok=False)
        stack.push(partial(_remove_unused, folder))
        lock = lock_folder(folder)
        assert lock is not None, "nobody else knows the folder yet"
        stack.callback(os.close, lock)
        write_hook(folder, redact=request.is_redacted)
        run_dir.write_json(folder / "machine.json", _machine())
    except OSError as error:
        raise InfrastructureFailed(
            f"run folder {folder} cannot be written: {error.strerror}; choose another place with --runs"
        ) from None
    return folder


def _machine() -> Machine:
    """Return this machine without the commit of this program: watch.json has the watched program's."""
    machine = read_machine()
    why = "this program's commit is not the watched program's"
    absent = {**machine.absent, "commit": why, "is_dirty": why}
    return replace(machine, commit=None, is_dirty=None, absent=absent)


def _describe(request: WatchRequest, folder: Path) -> dict[str, object]:
    """Write watch.json before the command starts, and return its content."""
    document: dict[str, object] = {
        "version": VERSION,
        "name": request.name,
        "run_id": folder.name,
        "command": known_words(request.command),
        **_of_script(script_word(request.command), request),
        "tags": dict(request.tags),
        "start_unix_s": time.time(),
        "end_unix_s": None,
        "exit_code": None,
        "signal": None,
        "store": run_dir.store_name(request.store_url),
    }
    with locked(folder.parent):  # Each process that begins a run here takes this lock, so slots are unique.
        document["slot"] = run_dir.free_slot(folder.parent)
        _write_document(folder, document)
    return document


def _of_script(word: str | None, request: WatchRequest) -> dict[str, str | None]:
    """Return the path, the hash and the commit of the script at this path."""
    script = None if word is None else read_script(word)
    if script is None:
        return {"script": None, "script_sha256": None, "git_commit": None}
    path = script.path.name if request.is_redacted else str(script.path)
    return {"script": path, "script_sha256": script.sha256, "git_commit": script.commit}


def _end_of(code: int) -> dict[str, object]:
    return {
        "end_unix_s": time.time(),
        "exit_code": code if code >= 0 else None,
        "signal": -code if code < 0 else None,
    }


def _write_document(folder: Path, document: dict[str, object]) -> None:
    try:
        run_dir.write_json(folder / "watch.json", document)
    except OSError as error:
        raise InfrastructureFailed(f"{folder}/watch.json cannot be written: {error.strerror}; make room") from None


def _keep(
    request: WatchRequest, folder: Path, document: dict[str, object], progress: JobProgress, windows: JobWindows
) -> None:
    """Write how the command ended, store the run, and show its ranks; errors are printed and do not change its code."""
    try:
        _write_document(folder, document)
        windows.finish()
        progress.read(most_ranks=None)
        print_page(progress.page(), open_console(sys.stderr))
        for line in _failures(folder):
            say(line)
        if any(rank.steps for rank in progress.ranks.values()):
            _store(folder, request.store_url)
    except (InfrastructureFailed, Misuse, OSError) as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted while the run was stored")
    if _remove_empty(folder):
        say("no process reported anything, so the run's folder was removed")
    else:
        say(f"run {folder.name}: {folder}")


def _remove_unused(folder: Path, error: type[BaseException] | None, *_: object) -> None:
    """Remove the folder of a command that was not started: interrupted before, or the folder could not be written."""
    if error is not None:
        _remove_empty(folder)


def _remove_empty(folder: Path) -> bool:
    """Remove a run's folder if it holds only what we wrote before the command began; return whether it was removed."""
    try:
        if {path.name for path in folder.iterdir()} - OWN:
            return False
        shutil.rmtree(folder)
    except OSError:  # `observatory prune` handles what is left.
        return False
    return True


def _store(folder: Path, store_url: str | None) -> None:
    """Summarise the run and store it; imported here, so that the command's start does not wait for it."""
    from bench.session.keep_watched import keep_watched

    keep_watched(folder, store_url)


def _failures(folder: Path) -> list[str]:
    """Return the failures of processes without a rank's file, each once, `MOST_FAILURES` at most."""
    try:
        text = read_small(folder / FAILURES, follows_link=False).decode(errors="replace")
    except (OSError, Misuse):
        return []
    return list(dict.fromkeys(text.splitlines()))[:MOST_FAILURES]
