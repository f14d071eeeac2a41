"""Two ordinary users of one machine: one who measures, and one who attacks.

Their processes run under user ids that no account has, so that nothing is written into /etc/passwd. Where the project
or its Python lies in a folder that only root may enter, they see it through a mount namespace of their own.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
_FIRST_UID, _UIDS = 61_000, 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An ordinary user without an account. home: belongs to them, mode 0700."""

    uid: int
    home: Path

    def start(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a program as this user, in their home; return when it has begun.

        options: of `subprocess.Popen`; `env` is added to the user's own.
        """
        own = {
            "HOME": str(self.home),
            "USER": f"user{self.uid}",
            "LOGNAME": f"user{self.uid}",
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
        }
        inherited = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS")}
        identity = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups", "--", *argv]
        options.setdefault("umask", 0o022)
        env = inherited | own | options.pop("env", {})
        cwd = options.pop("cwd", self.home)
        process = subprocess.Popen([*_seen_by_all(), *identity], text=True, cwd=cwd, env=env, **options)
        # Until then it is root's, and `two_users` would not find it at its end.
        while process.poll() is None and psutil.Process(process.pid).uids().real != self.uid:
            time.sleep(0.002)
        return process

    def run(self, argv: Sequence[str], *, timeout_s: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program as this user to its end; return it with what it printed."""
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(argv, **streams | options) as process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, output, errors)

    def observatory(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run our command as this user; see `run`."""
        return self.run([sys.executable, "-P", "-m", "bench", *words], **options)

    def python(self, program: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a Python program as this user; see `run`."""
        return self.run([sys.executable, "-P", "-c", program, *words], **options)

    def owns(self, folder: Path, mode: int = 0o700) -> Path:
        """Make a folder of this user's; return it."""
        folder.mkdir()
        os.chown(folder, self.uid, self.uid)
        folder.chmod(mode)
        return folder


@contextmanager
def two_users() -> Iterator[tuple[User, User]]:
    """Give two users, with homes in one folder that both may enter; at the end nothing of them is left.

    Skips the test where users cannot be made: not as root, or without util-linux.
    """
    if os.geteuid() != 0:
        pytest.skip("two users can be made by root only")
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("two users cannot be made: util-linux's setpriv and unshare are missing")
    folder = Path(tempfile.mkdtemp(prefix="users-"))
    folder.chmod(0o755)
    users = []
    try:
        for name, uid in zip(("victim", "attacker"), _free_uids(), strict=False):
            home = folder / name
            user = User(uid=uid, home=home)
            user.owns(home)
            users.append(user)
        yield users[0], users[1]
    finally:
        for user in users:
            _end_all(user.uid)
        shutil.rmtree(folder)


def _free_uids() -> Iterator[int]:
    """Return user ids that no account and no process has; processes of pytest that run at once begin apart."""
    taken = {process.info["uids"].real for process in psutil.process_iter(["uids"])}  # Skips those that end meanwhile.
    start = os.getpid() * 8 % _UIDS
    for number in range(_UIDS):
        uid = _FIRST_UID + (start + number) % _UIDS
        with suppress(KeyError):
            pwd.getpwuid(uid)
            continue
        if uid not in taken:
            yield uid


def processes_of(uid: int) -> list[psutil.Process]:
    """Return the processes of a user that have not ended."""
    return [
        process
        for process in psutil.process_iter(["uids", "status"])
        if process.info["uids"].real == uid and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def _end_all(uid: int, limit_s: float = 10.0) -> None:
    """End each process of a user whom `two_users` made."""
    until_s = time.monotonic() + limit_s
    while True:
        left = processes_of(uid)
        if not left:
            return
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        assert time.monotonic() < until_s, f"{left} cannot be ended"
        time.sleep(0.02)


def _seen_by_all() -> list[str]:
    """Return words before a command that let every user reach the project and its Python; none where they can."""
    wanted = {ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    hidden: dict[Path, set[Path]] = {}
    for path in wanted:
        for folder in reversed(path.parents):
            if not folder.stat().st_mode & 0o001:
                hidden.setdefault(folder, set()).add(path)
                break
    if not hidden:
        return []
    lines = ["set -e", "wanted=$(umask)", "umask 022", "aside=$(mktemp -d)", "mount -t tmpfs -o mode=755 none $aside"]
    for number, (folder, paths) in enumerate(hidden.items()):
        # What is wanted is kept aside while an empty folder is laid over the hidden one.
        for path_number, path in enumerate(sorted(paths)):
            lines += [f"mkdir $aside/{number}.{path_number}"]
            lines += [f"mount --bind {shlex.quote(str(path))} $aside/{number}.{path_number}"]
        lines += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(folder))}"]
        for path_number, path in enumerate(sorted(paths)):
            lines += [f"mkdir -p {shlex.quote(str(path))}"]
            lines += [f"mount --move $aside/{number}.{path_number} {shlex.quote(str(path))}"]
    lines += ["umount $aside", "rmdir $aside", "umask $wanted", 'exec "$@"']
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines), "sh"]
