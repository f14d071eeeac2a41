"""A command as a child that does not notice us: same streams, same terminal, same signals, same exit code."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
GROUP_S = 0.5
"""Time in which the witness says that a signal came to the whole process group."""


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    umask: int | None = None,
    on_beat: Callable[[], None] = lambda: None,
) -> int:
    """Run a command to its end and return its code; a negative one is the signal that ended it.

    It gets our streams and open files, and each signal that only we get: one to the whole process group, as `timeout`
    sends it, reaches the child by itself. umask: of the child; None: as ours.
    on_beat: called about once a second meanwhile.

    Raises:
        InfrastructureFailed: it cannot be started.
    """
    waited_for = _PASSED_ON | {signal.SIGCHLD}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)  # Read below, one at a time, with their senders.
    try:
        with _witness() as seen:
            try:
                child = subprocess.Popen(
                    command,
                    env=environment,
                    close_fds=False,  # Ours are closed by exec; those that a shell opened, as 3>file, are the child's.
                    umask=-1 if umask is None else umask,
                    preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, former),
                )
            except OSError as error:
                raise InfrastructureFailed(f"{command[0]} cannot be started: {error.strerror}") from None
            return _wait(child, waited_for, seen, on_beat)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _wait(
    child: subprocess.Popen[bytes], waited_for: frozenset[signal.Signals], seen: int, on_beat: Callable[[], None]
) -> int:
    """Wait for the child and pass signals on. seen: see `_witness`."""
    next_s = time.monotonic() + BEAT_S
    while (code := child.poll()) is None:
        if (left_s := next_s - time.monotonic()) <= 0:
            on_beat()
            next_s, left_s = time.monotonic() + BEAT_S, BEAT_S
        received = signal.sigtimedwait(waited_for, left_s)
        if received is None or received.si_signo == signal.SIGCHLD or received.si_pid == _OF_KERNEL:
            continue
        if not (_is_in_our_group(child.pid) and _was_seen(received.si_signo, seen)):
            _pass_on(child.pid, received.si_signo)
    return code


@contextmanager
def _witness() -> Iterator[int]:
    """Have a process of our group that gets what the whole group gets; yield a pipe with the numbers of its signals."""
    seen, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_witness(write_end)
    os.close(write_end)
    try:
        yield seen
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(seen)


def _be_witness(write_end: int) -> None:
    """Write the number of each signal, until the process that we watch for is gone. Never returns."""
    try:
        parent = os.getppid()
        os.closerange(0, write_end)
        os.closerange(write_end + 1, os.sysconf("SC_OPEN_MAX"))
        while os.getppid() == parent:
            if (received := signal.sigtimedwait(_PASSED_ON, BEAT_S)) is not None:
                os.write(write_end, bytes([received.si_signo]))
    finally:
        os._exit(0)


def _was_seen(number: int, seen: int) -> bool:
    """Whether the witness got this signal as well."""
    end_s = time.monotonic() + GROUP_S
    while select.select([seen], [], [], max(0.0, end_s - time.monotonic()))[0]:
        (other,) = os.read(seen, 1)
        if other == number:
            return True
    return False


def _is_in_our_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:  # It has ended; its code is read next.
        return False


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
