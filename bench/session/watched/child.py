"""Runs a command transparently as a child: same streams, same terminal, same signals, same exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from socket import socket, socketpair

from bench.errors import InfrastructureFailed

BEAT_S = 1.0
_PASSED_ON = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
"""Signals that we pass on to the child. Not Ctrl-Z: the terminal stops both processes, and `fg` continues both."""
SHELL_SIGNAL = 128
GROUP_S = 0.1
"""How long a signal may take from us to another process of its group: the kernel needs microseconds."""


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    umask: int | None = None,
    on_beat: Callable[[], None] = lambda: None,
) -> int:
    """Run a command to its end and return its exit code; -n if signal n ended it.

    The child gets our streams and open files, and each signal that only we receive; a signal to the whole process
    group, as from `timeout` or the terminal, reaches it directly.
    umask: of the child; None keeps ours. on_beat: called about once a second.

    Raises:
        InfrastructureFailed: the command cannot be started.
    """
    waited_for = _PASSED_ON | {signal.SIGCHLD}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)  # `_wait` takes them one at a time.
    try:
        with _witness() as witness:
            early = signal.sigpending() & _PASSED_ON  # Sent before the child exists, also from the terminal.
            for number in early:
                signal.sigwait({number})
                _was_seen(number, witness)  # The witness may hold it, and must not take a later one for this one.
            try:
                child = subprocess.Popen(
                    command,
                    env=environment,
                    close_fds=False,  # Ours close on exec; those that a shell opened, such as 3>file, are the child's.
                    umask=-1 if umask is None else umask,
                    preexec_fn=partial(_take_signals, former),
                )
            except OSError as error:
                raise InfrastructureFailed(f"{command[0]} cannot be started: {error.strerror}") from None
            for number in early:
                _pass_on(child.pid, number)
            return _wait(child, waited_for, witness, on_beat)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _take_signals(former: set[int | signal.Signals]) -> None:
    """Unblock signals in the child, before its program runs; one that has come ends it as the program by default."""
    for number in _PASSED_ON:
        if callable(signal.getsignal(number)):  # A handler of ours, which must not run in the child.
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _wait(
    child: subprocess.Popen[bytes], waited_for: frozenset[signal.Signals], witness: socket, on_beat: Callable[[], None]
) -> int:
    """Wait for the child and pass signals on. witness: see `_witness`."""
    next_s = time.monotonic() + BEAT_S
    while (code := child.poll()) is None:
        if (left_s := next_s - time.monotonic()) <= 0:
            on_beat()
            next_s, left_s = time.monotonic() + BEAT_S, BEAT_S
        received = signal.sigtimedwait(waited_for, left_s)
        if received is None or received.si_signo == signal.SIGCHLD:
            continue
        if not (_is_in_our_group(child.pid) and _was_seen(received.si_signo, witness)):
            _pass_on(child.pid, received.si_signo)
    return code


@contextmanager
def _witness() -> Iterator[socket]:
    """Fork a process that gets the signals to our whole group, and yield a connection to it.

    It answers the number of a signal with 1 if it got that signal, else with 0. The signal waits for it in the kernel,
    so that the answer is right however late the process runs.
    """
    ours, its = socketpair()
    pid = os.fork()
    if pid == 0:
        _be_witness(its.fileno())
    its.close()
    try:
        yield ours
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ours.close()


def _be_witness(connection: int) -> None:
    """Answer until the parent is gone. Never returns."""
    try:
        os.closerange(0, connection)
        os.closerange(connection + 1, os.sysconf("SC_OPEN_MAX"))
        while number := os.read(connection, 1):
            os.write(connection, bytes([signal.sigtimedwait(set(number), GROUP_S) is not None]))
    finally:
        os._exit(0)


def _was_seen(number: int, witness: socket) -> bool:
    """Whether the witness got this signal as well. `timeout` sends it to us and to the group; both count as one.

    A witness that somebody killed has seen nothing.
    """
    try:
        witness.sendall(bytes([number]))
        if witness.recv(1) != b"\x01":
            return False
    except OSError:
        return False
    if number in signal.sigpending():
        signal.sigwait({number})
    return True


def _is_in_our_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:  # It has ended; `poll` returns its code next.
        return False


def _pass_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # It has ended; `poll` returns its code next.
        pass
    except PermissionError:  # It runs as another user, for example under sudo.
        pass


def exit_code(code: int) -> int:
    """Return a child's code as a shell would: 128 plus the signal's number if a signal ended it."""
    return code if code >= 0 else SHELL_SIGNAL - code
