"""Service discovery for Prometheus: a list of targets that several nodes keep together in one file.

Each node has a page of its own in the folder FILE.nodes, which it touches from time to time. The list is made from
these pages and replaced as a whole, so that no reader sees half of it. The age of a page is counted from a file that
was touched just now, and not from a clock: on a shared disk both times are the file server's.
Not covered: a Prometheus on another machine is not told when the file changes; its refresh_interval must be short.
Source: prometheus/prometheus, docs/configuration/configuration.md, file_sd_config.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.errors import InfrastructureFailed, Misuse
from bench.runs.files import read_small
from collectors.background import BackgroundThread
from collectors.files import drafted, holder_of, open_to_append, try_lock
from collectors.regular_files import NotRegular

STALE_S = 3600.0
"""Age at which a silent node counts as gone: long enough for the alerts on a target that is down to be seen."""

LOOK_S = 600.0
"""Pause between two looks at the pages of all nodes, whichever node looks: with a thousand nodes it is not cheap."""
LOCK_WAIT_S = 10.0
"""How long to wait for another's lock before going on without it."""

_MARK = "__meta_observatory"
"""Label of our entries, which Prometheus drops; entries without it are somebody else's and stay."""

_Group = dict[str, Any]
"""An entry of the list: targets, and the labels that they share."""


class Targets:
    """The list in the file at `path`, which any number of processes and nodes may keep at the same time.

    stale_s, look_s, lock_wait_s: see the constants. on_notice: is told of a page left out and of a missing lock.

    Raises:
        Misuse: Prometheus reads no file of this name.
    """

    def __init__(
        self,
        path: Path,
        *,
        stale_s: float = STALE_S,
        look_s: float = LOOK_S,
        lock_wait_s: float = LOCK_WAIT_S,
        on_notice: Callable[[str], None],
    ) -> None:
        if path.suffix != ".json":
            raise Misuse(f"{path}: the list of targets is JSON; name a file that ends in .json")
        self._path = path
        self._pages = path.with_name(f"{path.name}.nodes")
        self._looked = self._pages / "looked"
        self._stale_s, self._look_s, self._lock_wait_s = stale_s, look_s, lock_wait_s
        self._on_notice = on_notice

    def check(self) -> None:
        """Check that the file holds a list, or does not exist yet.

        Raises:
            Misuse: it holds something else.
            InfrastructureFailed: it cannot be read, or its folder is missing.
        """
        with self._writing():
            if not self._path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path.parent))
            self._groups()

    def add(self, address: str, labels: Mapping[str, str]) -> None:
        """Put the address into the list; called again and again, as a sign of life.

        Raises:
            Misuse: the address is not HOST:PORT, or the file holds something else than targets.
            InfrastructureFailed: the file cannot be written.
        """
        if "/" in address or ":" not in address:
            raise Misuse(f'"{address}" is no target; it may be HOST:PORT')
        group = {"targets": [address], "labels": {**labels, _MARK: "serve"}}
        page, text = self._page(address), json.dumps(group)
        with self._writing():
            self._pages.mkdir(0o750, exist_ok=True)
            is_known = page.exists() and read_small(page) == text.encode()
            if is_known:
                os.utime(page)  # Without a time, so that the file server's is taken.
            else:
                self._replace(page, text)
            try:
                is_look_due = page.stat().st_mtime - self._looked.stat().st_mtime > self._look_s
            except FileNotFoundError:
                is_look_due = True
            if not is_known or is_look_due or group not in self._groups():
                self._make()

    def remove(self, address: str) -> None:
        """Take the address out of the list.

        Raises:
            Misuse: the file holds something else than targets.
            InfrastructureFailed: the file cannot be written.
        """
        with self._writing():
            if self._pages.is_dir():
                self._page(address).unlink(missing_ok=True)
                self._make()

    def _make(self) -> None:
        """Make the list anew from the pages, and delete the stale ones."""
        with self._alone():
            os.close(open_to_append(self._looked))
            os.utime(self._looked)
            now_s = self._looked.stat().st_mtime
            groups = [group for group in self._groups() if _MARK not in (group.get("labels") or {})]
            for page in sorted(self._pages.glob("*.json")):
                try:
                    if now_s - page.stat().st_mtime > self._stale_s:
                        page.unlink()
                    else:
                        groups.append(json.loads(read_small(page)))
                except FileNotFoundError:  # Its node has just removed it.
                    continue
                except ValueError:
                    self._on_notice(f"{page}: cannot be read, and is left out of {self._path}; delete it")
            text = json.dumps(groups, indent=2) + "\n"
            if not self._path.exists() or read_small(self._path) != text.encode():
                self._replace(self._path, text)

    def _groups(self) -> list[_Group]:
        """Return the entries that the list has now."""
        try:
            groups = json.loads(read_small(self._path))
        except FileNotFoundError:
            return []
        except (ValueError, RecursionError, NotRegular):
            groups = None
        if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
            raise Misuse(f"{self._path}: holds no list of targets, and is left as it is; name another file")
        return groups

    def _page(self, address: str) -> Path:
        return self._pages / f"{quote(address, safe='')}.json"

    def _replace(self, path: Path, text: str) -> None:
        """Replace the file in one piece. All may read it: Prometheus runs as another user."""
        with drafted(path, mode=0o644, is_any_folder=path == self._path) as file:
            file.write(text.encode())

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock on making the list, where the file system can lock.

        Without a lock a node may be lost from the list until its next sign of life.
        """
        fd = open_to_append(self._pages / "lock")
        try:
            self._wait_for_lock(fd)
            yield
        finally:
            os.close(fd)

    def _wait_for_lock(self, fd: int) -> None:
        until_s = time.monotonic() + self._lock_wait_s
        try:
            while not try_lock(fd):
                if time.monotonic() > until_s:
                    self._on_notice(
                        f"{self._path}: {holder_of(fd)} has held its lock for {self._lock_wait_s:g} s; going on"
                        " without it"
                    )
                    return
                time.sleep(0.02)
        except OSError as error:
            self._on_notice(f"{self._path}: its file system has no locks ({error.strerror}); going on without one")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InfrastructureFailed(
                f"{error.filename or self._path}: {error.strerror}; name a file whose folder this user may write"
            ) from None


# This node's entry in the list while it serves.

BEAT_S = 60.0
"""Pause between two signs of life."""
_END_S = 20.0
"""How long to wait at the end for a sign of life that is still being written."""


def published_address(host: str, port: int) -> str:
    """Return where others reach the server: this node's name in place of a host that means "all"."""
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    return f"{f'[{name}]' if ':' in name else name}:{port}"


@contextlib.contextmanager
def listed(
    path: Path,
    address: str,
    labels: Mapping[str, str],
    *,
    beat_s: float = BEAT_S,
    on_notice: Callable[[str], None],
) -> Iterator[None]:
    """Keep the address in the file's list while the context is open.

    on_notice: is told of each sign of life that fails; the next one tries again.

    Raises:
        Misuse: Prometheus would not read the file, or it holds something else.
        InfrastructureFailed: it cannot be written.
    """
    targets = Targets(path, on_notice=on_notice)
    targets.add(address, labels)

    def show_life(stop_requested: threading.Event) -> None:
        while not stop_requested.wait(beat_s):
            with _saying(on_notice):
                targets.add(address, labels)

    thread = BackgroundThread("targets", show_life)
    thread.start()
    try:
        yield
    finally:
        if thread.stop(_END_S):
            with _saying(on_notice):
                targets.remove(address)
        else:
            on_notice(f"{path}: the disk does not answer; {address} stays in the list until others find it stale")


@contextlib.contextmanager
def _saying(on_notice: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except (InfrastructureFailed, Misuse) as error:
        on_notice(str(error))
