"""The `observatory` command: imports subcommands when called, and turns errors into a line and an exit code."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from bench.cli.completion import COMPLETION_VARIABLE, register
from bench.cli.options import offer_nearest
from bench.errors import (
    FINE,
    INFRASTRUCTURE,
    INTERRUPTED,
    MISUSE,
    OUR_BUG,
    InfrastructureFailed,
    Misuse,
    open_limit_words,
    say,
    size_limit_words,
)
from bench.store.files import data_folder
from collectors.files import PRIVATE, NotRegular, make_folder, replace_file

COMMANDS = {
    "list": ("bench.cli.planning.list", "List strategies and probes, with the requirements and options of each."),
    "run": ("bench.cli.run.command", "Measure one strategy, on this machine or on nodes."),
    "predict": (
        "bench.cli.planning.predict",
        "Predict memory, step and throughput of a strategy, and what decides.",
    ),
    "choose": (
        "bench.cli.planning.choose",
        "Choose the strategy and setup that train a model best.",
    ),
    "suite": ("bench.cli.suite.command", "Run, plan and show suites: many cases from one file."),
    "check": ("bench.cli.check", "Report what became worse in the newest night, and what is missing."),
    "show": ("bench.cli.show", "List runs, or show one run in full."),
    "diagnose": ("bench.cli.diagnose", "Explain what limits a run, with evidence and what to try."),
    "compare": (
        "bench.cli.compare",
        "Compare two runs, suites or commits, and separate changes from noise.",
    ),
    "prune": ("bench.cli.prune", "Delete folders of old runs, except those that baselines need."),
    "analyse": ("bench.cli.analyse", "Analyse traces of a run, or of any program that used torch.profiler."),
    "doctor": ("bench.cli.doctor", "Describe this machine on one page, with changes since the last good run."),
    "dashboards": (
        "bench.cli.dashboards",
        "Render Grafana's dashboards and Prometheus's rules, or push them to a Grafana.",
    ),
    "watch": ("bench.cli.watching.watch", "Run a training command, watch its steps, and keep them as a run."),
    "serve": ("bench.cli.watching.serve", "Serve /metrics of this node, its runs and results to Prometheus."),
    "stack": (
        "bench.cli.watching.stack",
        "Start Prometheus, Alertmanager and Grafana with our alerts and dashboards.",
    ),
    "runbook": (
        "bench.cli.watching.runbook",
        "Print the runbook of an alert; without a name, list all alerts.",
    ),
    "completion": (
        "bench.cli.completion",
        "Print a shell script that completes strategies, options and runs.",
    ),
}
"""The module of each command, which is imported when the command is called, and its line in `--help`."""

_NO_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)
"""Errors for names that no file can have, raised where a path from the command line is first used."""
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM),
)
"""Errors of the machine: permissions, a failing disk, or limits of files, processes and memory."""

_NO_MORE_THREADS = (
    "no more processes or threads can be started; end other processes of this user, or raise the limit (`ulimit"
    " -u`, or pids.max"
    " of the container)"
)


class _LateGroup(click.Group):
    """A group that imports a command's module only when the command is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[name][0]).command
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        offer_nearest(context, args, COMMANDS)
        return super().resolve_command(context, args)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        named = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return named or click.Command.shell_complete(self, context, incomplete)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="parallel-observatory", prog_name="observatory")
def observatory() -> None:
    """Measure distributed training: every parallelism strategy, with intervals.

    \b
    Example:
      observatory run ddp --ranks 2
    """


def run(arguments: Sequence[str], *, umask: int | None = None) -> int:
    """Run one command line and return its exit code. umask: for commands that a user names; None for ours."""
    is_completion = COMPLETION_VARIABLE in os.environ
    try:
        if is_completion:
            register()
        else:
            _check_current_folder()
        code = observatory.main(args=list(arguments), prog_name="observatory", standalone_mode=False, obj=umask)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message(), is_page=True)
        return MISUSE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else _command_path(arguments)
        return _fail(MISUSE, f"{error.format_message()} (`{path} --help`)")
    except click.ClickException as error:
        return _fail(MISUSE, error.format_message())
    except Misuse as error:
        return _fail(MISUSE, str(error))
    except InfrastructureFailed as error:
        return _fail(INFRASTRUCTURE, str(error))
    except (KeyboardInterrupt, click.Abort):
        # OpenBLAS interrupts the process if it cannot start a thread; otherwise a person did.
        return _fail(INTERRUPTED, "interrupted") if _starts_threads() else _fail(INFRASTRUCTURE, _NO_MORE_THREADS)
    except (BrokenPipeError, SystemExit):  # The reader closed our output, for example `observatory show | head`.
        _drop_output()
        return FINE
    except MemoryError:
        return _fail(INFRASTRUCTURE, "this process ran out of memory; name fewer or smaller files")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _drop_output()
            return _fail(
                INFRASTRUCTURE, f"the disk is full: {error.filename or 'standard output'}; make room and try again"
            )
        if error.errno == errno.ENOENT and error.filename is None and "temporary" in str(error.strerror):
            return _fail(
                INFRASTRUCTURE,
                "no temporary file can be written in TMPDIR or /tmp; make room there, or set TMPDIR to another folder",
            )
        if error.errno == errno.EFBIG:
            return _fail(
                INFRASTRUCTURE, f"{_short(error.filename or 'a file')} cannot be written: {size_limit_words()}"
            )
        if error.errno == errno.EMFILE:
            return _fail(INFRASTRUCTURE, f"{_short(error.filename or 'a file')} cannot be opened: {open_limit_words()}")
        if error.errno in _NO_NAMES or isinstance(error, (NotRegular, IsADirectoryError, NotADirectoryError)):
            return _fail(MISUSE, f"{_short(error.filename)}: {error.strerror}; name another file or folder")
        if error.errno == errno.EAGAIN and not error.filename:
            return _fail(INFRASTRUCTURE, _NO_MORE_THREADS)
        if error.errno in _REFUSED:
            what = _short(error.filename) if error.filename else "the system"
            return _fail(INFRASTRUCTURE, f"{what}: {error.strerror}; the command cannot continue without it")
        return _fail(OUR_BUG, _crash(arguments, traceback.format_exc()))
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            return _fail(OUR_BUG, _crash(arguments, traceback.format_exc()))
        return _fail(INFRASTRUCTURE, _NO_MORE_THREADS)
    except Exception:  # noqa: BLE001  # Anything that arrives here is a bug.
        if is_completion:  # A key press in a shell: write and print nothing.
            return OUR_BUG
        return _fail(OUR_BUG, _crash(arguments, traceback.format_exc()))
    return code if isinstance(code, int) else FINE


def main() -> NoReturn:
    """The entry point of the installed command."""
    umask = os.umask(PRIVATE)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # If our parent ignores it, the kernel drops our children's codes.
    _open_standard_streams()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # Names in a trace may contain any character.
    code = run(sys.argv[1:], umask=umask)
    _drop_unsaid()
    sys.exit(code)


def _command_path(arguments: Sequence[str]) -> str:
    """Return the command that the first words name; click's error for an option without its value has no context."""
    command: click.Command | None = observatory
    path = "observatory"
    for word in arguments:
        context = click.Context(command or observatory)
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
        if command is None:
            break
        path += f" {word}"
    return path


def _check_current_folder() -> None:
    """Refuse a current folder that was deleted: names are relative to it, and libraries of torch do not load in it.

    Raises:
        Misuse: the current folder no longer exists.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise Misuse("the current folder was deleted; change to another one, for example `cd`, and try again") from None


def _open_standard_streams() -> None:
    """Open closed standard streams on the null device, so that no other file gets their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)  # Gets the lowest free descriptor, which is this number.
            setattr(sys, name, os.fdopen(descriptor, "r" if number == 0 else "w"))


def _drop_output() -> None:
    """Send the rest of standard output to the null device, so that a failed flush cannot change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _drop_unsaid() -> None:
    """Send the rest of standard error to the null device if it cannot be flushed."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _fail(code: int, message: str) -> int:
    say(f"observatory: {' '.join(message.split())}")
    return code


def _starts_threads() -> bool:
    """Whether this process can start a thread."""
    try:
        thread = threading.Thread(target=bool)
        thread.start()
        thread.join()
    except RuntimeError:
        return False
    return True


def _short(name: object) -> str:
    """Return a file's name, shortened in the middle if it is too long for a message."""
    text = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else str(name)
    return text if len(text) <= 100 else f"{text[:48]}...{text[-48:]}"


def _crash(arguments: Sequence[str], trace: str) -> str:
    """Write a crash file; return the message that names it."""
    from bench.machine.machine import redact

    trace = redact(trace)
    last = trace.strip().splitlines()[-1]
    text = redact(f"observatory {' '.join(arguments)}") + f"\nPython {sys.version}\n\n{trace}"
    try:
        folder = data_folder() / "crashes"
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        make_folder(folder)
        replace_file(path, text.encode(errors="backslashreplace"))  # An argument may contain any bytes.
    except (OSError, Misuse) as error:
        say(text, is_page=True)
        why = error.strerror if isinstance(error, OSError) else str(error)
        return f"this is a bug of ours: {last}; no crash file could be written ({why}), so the traceback is above"
    return f"this is a bug of ours: {last}; please report it with {path}"
