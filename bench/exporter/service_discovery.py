"""A list of targets that several nodes keep together in one file, from which Prometheus learns whom to ask.

Each node has a page of its own in the folder FILE.nodes, which it touches from time to time. The list is made of
them, and replaced as a whole, so that who reads it never sees half of it. How old a page is, is told by comparing it
with a file that was touched just now, and not with a clock: on a shared disk both times are the file server's.
Not covered: a Prometheus on another machine is not told when the file changes; its refresh_interval must be short.
Source: prometheus/prometheus, docs/configuration/configuration.md, file_sd_config.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
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

STALE_S = 3600.0
"""Age at which a silent node is taken for gone: long enough for the alerts on a target that is down to be seen."""

LOOK_S = 600.0
"""Pause between two looks at the pages of all nodes, whichever node looks: with a thousand it is not cheap."""
LOCK_WAIT_S = 10.0
"""How long another may hold the lock before one goes on without."""

_MARK = "__meta_observatory"
"""The label of entries that are ours, which Prometheus drops; others in the list are somebody else's and stay."""

_Group = dict[str, Any]
"""An entry of the list: targets, and labels that they share."""


class Targets:
    """The list in the file at `path`, which any number of processes and nodes may keep at the same time.

    stale_s, look_s, lock_wait_s: see the constants. on_notice: is told what is left out or done without.

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
        self._numbers = itertools.count()

    def check(self) -> None:
        """Nothing, where the file holds a list, or is not there yet.

        Raises:
            Misuse: it holds something else.
            InfrastructureFailed: it cannot be read, or its folder is missing.
        """
        with self._writing():
            if not self._path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path.parent))
            self._groups()

    def add(self, address: str, labels: Mapping[str, str]) -> None:
        """Put the address into the list; again and again, so that it is known to live.

        Raises:
            Misuse: the address is none, or the file holds something else than targets.
            InfrastructureFailed: the file cannot be written.
        """
        if "/" in address or ":" not in address:
            raise Misuse(f'"{address}" is no target; it may be HOST:PORT')
        group = {"targets": [address], "labels": {**labels, _MARK: "serve"}}
        page, text = self._page(address), json.dumps(group)
        with self._writing():
            self._pages.mkdir(exist_ok=True)
            is_known = page.exists() and page.read_text() == text
            if is_known:
                os.utime(page)  # Without a time: the file server's is taken.
            else:
                self._replace(page, text)
            if not is_known or self._is_look_due(page) or group not in self._groups():
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
        """Make the list anew of the pages, and forget the stale ones."""
        with self._alone():
            self._looked.touch()
            now_s = self._looked.stat().st_mtime
            groups = [group for group in self._groups() if _MARK not in (group.get("labels") or {})]
            for page in sorted(self._pages.glob("*.json")):
                with contextlib.suppress(FileNotFoundError):  # Its node took it away just now.
                    if now_s - page.stat().st_mtime > self._stale_s:
                        page.unlink()
                    else:
                        groups += self._group(page)
            text = json.dumps(groups, indent=2) + "\n"
            if not self._path.exists() or self._path.read_text() != text:
                self._replace(self._path, text)

    def _groups(self) -> list[_Group]:
        """What is in the list now."""
        try:
            groups = json.loads(read_small(self._path))
        except FileNotFoundError:
            return []
        except (ValueError, RecursionError):
            groups = None
        if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
            raise Misuse(f"{self._path}: holds no list of targets, and is left as it is; name another file")
        return groups

    def _group(self, page: Path) -> list[_Group]:
        """What a page says; nothing where that is no target."""
        try:
            return [json.loads(page.read_text())]
        except ValueError:
            self._on_notice(f"{page}: cannot be read, and is left out of {self._path}; delete it")
            return []

    def _is_look_due(self, page: Path) -> bool:
        try:
            return page.stat().st_mtime - self._looked.stat().st_mtime > self._look_s
        except FileNotFoundError:
            return True

    def _page(self, address: str) -> Path:
        return self._pages / f"{quote(address, safe='')}.json"

    def _replace(self, path: Path, text: str) -> None:
        """Put the text there in one piece; whoever may read other new files may read this one."""
        name = f"{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}.{next(self._numbers)}.new"
        new = self._pages / name
        try:
            with new.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Who is inside makes the list alone, where the file system can lock.

        Where it cannot, a node may be lost from the list, and puts itself back at its next sign of life.
        """
        fd = os.open(self._pages / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        until_s = time.monotonic() + self._lock_wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    self._on_notice(
                        f"{self._path}: another has held its lock for {self._lock_wait_s:g} s; going on without"
                    )
                    return
                time.sleep(0.02)
            except OSError as error:
                self._on_notice(f"{self._path}: its disk has no locks ({error.strerror}); going on without")
                return
            else:
                return

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InfrastructureFailed(
                f"{error.filename or self._path}: {error.strerror}; name a file whose folder this user may write"
            ) from None


# This node in a list of targets, as long as it serves.

BEAT_S = 60.0
"""Pause between two signs of life."""
_END_S = 20.0
"""How long the disk may take for the sign that is just given, when it is time to end."""


def published_address(host: str, port: int) -> str:
    """Where others reach what listens there: in place of a host that means "all", this node's name."""
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
    """The address is in the list in this file as long as one is inside.

    on_notice: is told of trouble on the way, and again where it lasts; the next sign of life tries again.

    Raises:
        Misuse: the file is none that Prometheus would read, or holds something else.
        InfrastructureFailed: it cannot be written.
    """
    targets = Targets(path, on_notice=on_notice)
    targets.add(address, labels)
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(beat_s):
            with _saying(on_notice):
                targets.add(address, labels)

    # A daemon: a disk that does not answer must not keep the program from ending.
    keeping = threading.Thread(target=keep, name="targets", daemon=True)
    keeping.start()
    try:
        yield
    finally:
        ended.set()
        keeping.join(_END_S)
        if keeping.is_alive():
            on_notice(f"{path}: the disk does not answer; {address} stays in the list until others find it stale")
        else:
            with _saying(on_notice):
                targets.remove(address)


@contextlib.contextmanager
def _saying(on_notice: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except (InfrastructureFailed, Misuse) as error:
        on_notice(str(error))
