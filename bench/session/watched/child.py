"""A command as a child that does not notice us: same streams, same terminal, same signals, same exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.errors import InfrastructureFailed

BEAT_S = 1.0
_PASSED_ON = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
"""Signals that the child gets from us. Ctrl-Z is not one: a terminal stops both, and `fg` continues both."""
_OF_KERNEL = 0
"""Sender of a signal that the terminal makes: it goes to all processes in the foreground, so the child has it."""
SHELL_SIGNAL = 128


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    umask: int | None = None,
    on_beat: Callable[[], None] = lambda: None,
) -> int:
    """Run a command to its end and return its code; a negative one is the signal that ended it.

    It gets our streams and open files, and each signal that we get. umask: of the child; None: as ours.
    on_beat: called about once a second meanwhile.

    Raises:
        InfrastructureFailed: it cannot be started.
    """
    waited_for = _PASSED_ON | {signal.SIGCHLD}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)  # Read below, one at a time, with their senders.
    try:
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                close_fds=False,  # Ours are closed by exec; those that a shell opened, such as 3>file, are the child's.
                umask=-1 if umask is None else umask,
                preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, former),
            )
        except OSError as error:
            raise InfrastructureFailed(f"{command[0]} cannot be started: {error.strerror}") from None
        next_s = time.monotonic() + BEAT_S
        while (code := child.poll()) is None:
            if (left_s := next_s - time.monotonic()) <= 0:
                on_beat()
                next_s, left_s = time.monotonic() + BEAT_S, BEAT_S
            received = signal.sigtimedwait(waited_for, left_s)
            if received is not None and received.si_signo != signal.SIGCHLD and received.si_pid != _OF_KERNEL:
                _pass_on(child.pid, received.si_signo)
        return code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _pass_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # It has ended; its code is read next.
        pass
    except PermissionError:  # It runs as another user, as sudo does.
        pass


def exit_code(code: int) -> int:
    """Return a child's code as a shell would: 128 and the signal's number where one ended it."""
    return code if code >= 0 else SHELL_SIGNAL - code
