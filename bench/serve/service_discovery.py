"""Service discovery for Prometheus: each serving node has its own file in a folder of targets (file_sd).

Prometheus reads all files: `files: [FOLDER/*.json]`. A node touches its file from time to time, and deletes old files.
It compares their times with that of its own file, not with a clock: on a shared disk both times come from the file
server.
Not covered: a Prometheus on another machine does not notice when a file changes; its refresh_interval must be short.
Source: prometheus/prometheus, docs/configuration/configuration.md, file_sd_config.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from bench.errors import InfrastructureFailed, Misuse
from bench.store.files import read_small
from collectors.background import BackgroundThread
from collectors.files import drafted

STALE_S = 3600.0
"""Age at which a silent node counts as gone: long enough for the alerts on a target that is down to be seen.

Each node also waits this long between two looks at all files, because with a thousand nodes a look is not cheap.
"""
BEAT_S = 60.0
"""Pause between two signs of life."""
_END_S = 20.0
"""How long to wait at the end for a sign of life that is still being written."""

_MARK = "__meta_observatory"
"""Label of our targets, which Prometheus drops. A file without it belongs to somebody else and stays."""


def check_targets_folder(folder: Path) -> None:
    """Check that this path can be a folder of targets.

    Raises:
        Misuse: it is a file, or is named like one.
    """
    if folder.suffix == ".json" or (folder.exists() and not folder.is_dir()):
        raise Misuse(
            f"{folder}: name a folder; each node writes a file of its own into it, and Prometheus reads *.json"
        )


def make_targets_folder(folder: Path) -> None:
    """Make the folder of targets unless it exists; Prometheus may read it as another user.

    Raises:
        Misuse: see `check_targets_folder`.
        InfrastructureFailed: it cannot be made.
    """
    with _writing(folder), contextlib.suppress(FileExistsError):
        check_targets_folder(folder)
        folder.mkdir()
        folder.chmod(0o755)


class Target:
    """The file of a node that serves at the address, in the folder of targets.

    labels: added to all its series. stale_s: see STALE_S.
    """

    def __init__(self, folder: Path, address: str, labels: Mapping[str, str], *, stale_s: float = STALE_S) -> None:
        self._folder, self._stale_s = folder, stale_s
        self._path = folder / f"{quote(address, safe='')}.json"
        self._text = json.dumps([{"targets": [address], "labels": {**labels, _MARK: "serve"}}]).encode()
        self._look_s = time.monotonic()

    def show(self) -> None:
        """Write the file, or touch it as a sign of life, and sometimes delete the files of silent nodes.

        Raises:
            Misuse: there is a file of this name that no node wrote.
            InfrastructureFailed: the file cannot be written.
        """
        with _writing(self._path):
            content = None
            with contextlib.suppress(FileNotFoundError):
                content = read_small(self._path, follows_link=False)
            if content == self._text:
                os.utime(self._path)  # Without a time, to get the file server's.
            elif content is None or _is_of_a_node(content):
                # Everybody may read it, because Prometheus runs as another user.
                with drafted(self._path, mode=0o644, is_any_folder=True) as file:
                    file.write(self._text)
            else:
                raise Misuse(f"{self._path}: holds somebody else's targets and is left unchanged; name another folder")
            if time.monotonic() >= self._look_s:
                self._look_s += self._stale_s
                self._delete_stale()

    def remove(self) -> None:
        """Delete the file.

        Raises:
            InfrastructureFailed: it cannot be deleted.
        """
        with _writing(self._path):
            self._path.unlink(missing_ok=True)

    def _delete_stale(self) -> None:
        """Delete the files of this user's nodes that have been silent for `stale_s`."""
        now_s = self._path.stat().st_mtime
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(OSError):  # Another node has just deleted it.
                status = path.lstat()
                is_stale = stat.S_ISREG(status.st_mode) and now_s - status.st_mtime > self._stale_s
                if is_stale and status.st_uid == os.geteuid() and _is_of_a_node(read_small(path, follows_link=False)):
                    path.unlink()


def _is_of_a_node(content: bytes) -> bool:
    """Return whether a node wrote this; files of somebody else may have any number of groups."""
    try:
        (group,) = json.loads(content)
        return _MARK in group["labels"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureFailed(
            f"{error.filename or path}: {error.strerror or error}; name a folder that this user may write"
        ) from None


def published_address(host: str, port: int) -> str:
    """Return the address at which others reach the server: this node's name replaces a host that means "all"."""
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    return f"{f'[{name}]' if ':' in name else name}:{port}"


@contextlib.contextmanager
def listed(target: Target, *, beat_s: float = BEAT_S, on_notice: Callable[[str], None]) -> Iterator[None]:
    """Keep the target's file while the context is open.

    on_notice: called for each sign of life that fails; the next one tries again.

    Raises:
        Misuse: there is a file of this name that no node wrote.
        InfrastructureFailed: it cannot be written.
    """
    target.show()

    def show_life(stop_requested: threading.Event) -> None:
        while not stop_requested.wait(beat_s):
            with _saying(on_notice):
                target.show()

    thread = BackgroundThread("targets", show_life)
    thread.start()
    try:
        yield
    finally:
        if thread.stop(_END_S):
            with _saying(on_notice):
                target.remove()
        else:
            on_notice(
                "the disk of the targets does not answer; this node stays a target until another node removes its file"
            )


@contextlib.contextmanager
def _saying(on_notice: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except (InfrastructureFailed, Misuse) as error:
        on_notice(str(error))
