"""Connect to the history's database, SQLite or PostgreSQL, from its URL.

Every failure becomes a message of one line, which never shows the password.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import resource
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url

from bench.errors import InfrastructureFailed, Misuse, size_limit_words
from bench.store.files import data_folder, is_data_folder
from collectors.files import is_ours, make_folder, user_name

_LOCK_WAIT_S = 30
_CONNECT_WAIT_S = 10


class StoreGone(InfrastructureFailed):
    """The store does not answer now: its server is down or busy, or another process holds its lock."""


class NoStoreYet(InfrastructureFailed):
    """The store does not exist yet. A separate error, so that a reader can simply report that there are no runs."""


def default_url() -> str:
    """Return the URL of the default store: SQLite in the platform's folder for user data.

    Raises:
        Misuse: the folder's name is not UTF-8, as a URL must be.
    """
    folder = str(data_folder())
    if (readable := os.fsencode(folder).decode(errors="backslashreplace")) != folder:
        raise Misuse(
            f"the data folder {readable} is not UTF-8, so no store can be in it; set XDG_DATA_HOME to another"
            " folder, or name them with --store and --runs"
        )
    return f"sqlite:///{folder}/history.sqlite"


def parse_url(text: str) -> URL:
    """Parse a store's URL, and set the driver that this program installs.

    Raises:
        Misuse: it is not a URL, names another kind of database, or is SQLite without a file.
    """
    try:
        text.encode()  # Fails on surrogates, which stand for argument bytes that are not UTF-8.
    except UnicodeEncodeError:  # The URL is not shown: unparsed, its password cannot be removed.
        raise Misuse("the store's URL is not UTF-8; use a folder whose name is") from None
    try:
        if "\0" in text:  # It would end a C string.
            raise ValueError
        url = make_url(text)
    except (exc.ArgumentError, ValueError):  # The URL is not shown: unparsed, its password cannot be removed.
        raise Misuse(
            "the store's URL cannot be read; use for example sqlite:////FOLDER/history.sqlite or postgresql://USER@HOST/NAME"
        ) from None
    # libpq accepts several hosts, also after the question mark; some are folders of sockets.
    texts = (url.host or "", *url.normalized_query.get("host", ()))
    for host in (host for text in texts for host in text.split(",") if not host.startswith(("/", "@"))):
        try:
            host.encode("idna")
        except UnicodeError:
            raise Misuse(
                f'store {shown(url)}: "{host}" is not a host name; parts between dots have 1 to 63 letters'
            ) from None
    if url.drivername in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise Misuse(f"store {shown(url)}: {url.get_backend_name()} is not supported; it may be sqlite or postgresql")
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise Misuse(
            f"store {shown(url)} names no file and would store nothing; use for example sqlite:////FOLDER/history.sqlite"
        )
    return url


def shown(url: URL) -> str:
    """Return the URL without its passwords, for printing."""
    return url.difference_update_query(["password", "sslpassword"]).render_as_string(hide_password=True)


def connect(url: URL, *, writable: bool, is_glance: bool = False) -> Engine:
    """Create an engine for the store. It opens nothing yet, but checks the folder and that the driver is installed.

    is_glance: the store is read only for a moment, so SQLite need not put its own files next to an idle store.

    Raises:
        NoStoreYet: the store does not exist, and should only be read.
        Misuse: the URL requests something impossible.
        InfrastructureFailed: the folder or the driver is missing.
    """
    pool_log = logging.getLogger("sqlalchemy.pool")
    if not pool_log.handlers:  # Else a Ctrl-C while a connection closes prints a traceback before our own line.
        pool_log.addHandler(logging.NullHandler())
    try:
        if url.get_backend_name() == "sqlite":
            return _connect_sqlite(url, writable, is_glance)
        return create_engine(url, connect_args={"connect_timeout": _CONNECT_WAIT_S})
    except (ModuleNotFoundError, exc.NoSuchModuleError):
        raise InfrastructureFailed(
            f"store {shown(url)}: its driver {url.get_driver_name()} is not installed;"
            " pip install 'parallel-observatory[postgres]', and write the URL as postgresql://"
        ) from None
    except Misuse:
        raise
    except ValueError as error:
        raise Misuse(f"store {shown(url)}: the part after its ? cannot be read: {error}") from None


@contextlib.contextmanager
def saying(url: URL) -> Iterator[None]:
    """Turn the database's errors into messages of one line.

    Raises:
        Misuse: a name is not UTF-8, which no store accepts.
        StoreGone: the store does not answer now.
        InfrastructureFailed: the store cannot be read or written.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise Misuse(f'"{error.object}" is not UTF-8 text, which all names in a history are') from None
    except (exc.IntegrityError, exc.DataError):
        raise  # Our own bug, not a failure of the store.
    except exc.DBAPIError as error:
        reason = re.sub(r"\[Errno -?\d+\] ", "", " ".join(str(error.orig).split()))
        if url.password:
            reason = reason.replace(str(url.password), "***")
        kind = StoreGone if _is_gone(error, reason) else InfrastructureFailed
        raise kind(f"store {shown(url)}: {reason}; {_advice(url, error)}") from None


def _is_gone(error: exc.DBAPIError, reason: str) -> bool:
    """Whether the store may answer later although nobody changes the request or the access rights."""
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:  # From the server: 08 connection, 53300 too many connections, 57P starting or ending.
        return str(state).startswith(("08", "53300", "57P"))
    # Without a connection there is no state. A final refusal by the server itself begins with FATAL.
    is_of_net = isinstance(error, exc.OperationalError | exc.InterfaceError) and _OF_THE_NET.search(reason) is not None
    return is_of_net and ("FATAL:" not in reason or _FATAL_FOR_NOW.search(reason) is not None)


_OF_THE_NET = re.compile(r"connection to server|timeout|resolve|closed|lost|consuming input")
_FATAL_FOR_NOW = re.compile(r"starting up|shutting down|not (?:yet )?accepting|recovery|too many|slots|terminating")


def _advice(url: URL, error: exc.DBAPIError) -> str:
    if url.get_backend_name() != "sqlite":
        if getattr(error.orig, "sqlstate", None) == "53100":
            return "make room on the server's disk"
        return "check that the server runs, and that this user may use the database"
    folder = Path(url.database or "").absolute().parent
    code = _sqlite_code(error)
    if code == sqlite3.SQLITE_IOERR and shutil.disk_usage(folder).free < _SHARED_MEMORY_BYTES:
        code = sqlite3.SQLITE_FULL
    if code == sqlite3.SQLITE_IOERR and resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        return size_limit_words()
    is_refused = code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
    if is_refused and os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only; choose a file on another one with --store"
    return _SQLITE_ADVICE.get(code, "check who may write the file and its folder, or choose another file with --store")


def _sqlite_code(error: exc.DBAPIError) -> int:
    """Return SQLite's code without its extension; 0 if there is none."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF


_SQLITE_ADVICE = {
    sqlite3.SQLITE_NOTADB: "choose another file with --store",
    sqlite3.SQLITE_BUSY: f"another process has locked it for {_LOCK_WAIT_S} s; try again when that process has ended",
    sqlite3.SQLITE_FULL: "its disk is full: make room, or choose a file on another disk with --store",
    sqlite3.SQLITE_CORRUPT: (
        "the file is damaged or cut off: restore a copy, or move it away, and `observatory show --rebuild` makes a"
        " new one of the folder of runs"
    ),
}
_SHARED_MEMORY_BYTES = 1 << 15
"""Disk space that SQLite needs to open a store; if there is less, it only reports "disk I/O error"."""


def _connect_sqlite(url: URL, writable: bool, is_glance: bool) -> Engine:
    create_engine(url)  # Refuses invalid options after the ?, even without a file.
    path = _file_of(url)
    if path is not None:
        _check_file(url, path, writable)
        if not writable:
            url = url.set(database=path.absolute().as_uri()).update_query_dict(
                {"uri": "true"} | ({"mode": "ro", "immutable": "1"} if _is_frozen(path, is_glance) else {"mode": "rw"})
            )
    engine = create_engine(url, connect_args={"timeout": _LOCK_WAIT_S})
    event.listen(engine, "connect", _prepare)
    if not writable and path is not None:
        event.listen(engine, "connect", _refuse_writing)
    if writable and path is not None:
        event.listen(engine, "connect", _keep_readers_going)
    event.listen(engine, "begin", _begin_writing if writable else _begin_reading)
    return engine


def _file_of(url: URL) -> Path | None:
    """Return SQLite's file; None without one, and for file: URIs, which have their own options for opening."""
    name = url.database
    return None if not name or name == ":memory:" or name.startswith("file:") else Path(name)


def check_writable(url: URL) -> None:
    """Refuse an SQLite file that this user may not write or create; leave nothing there.

    Raises:
        InfrastructureFailed: with the reason.
    """
    path = _file_of(url) if url.get_backend_name() == "sqlite" else None
    if path is None or not path.parent.is_dir():  # The user's data folder is created with the store.
        return
    try:
        if path.exists():
            path.open("ab").close()
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise InfrastructureFailed(
            f"store {shown(url)} cannot be written: {error.strerror}; choose another place with --store"
        ) from None


def _check_file(url: URL, path: Path, writable: bool) -> None:
    folder = path.absolute().parent
    try:
        if writable and is_data_folder(folder):
            make_folder(data_folder())
        if not writable and is_data_folder(folder) and not data_folder().exists():
            raise NoStoreYet(f"store {shown(url)} does not exist yet; `observatory run` makes it")
        if not folder.is_dir():
            is_what = "is a file" if folder.exists() else "does not exist"
            raise InfrastructureFailed(
                f"store {shown(url)}: folder {folder} {is_what}; make it, or choose another --store"
            )
        if path.is_dir():
            raise InfrastructureFailed(f"store {shown(url)}: {path} is a folder; name a file in it")
        if path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid()):
            raise InfrastructureFailed(
                f"store {shown(url)}: {path} is a link of {user_name(path.lstat().st_uid)}; name the file itself"
            )
        if writable and path.exists() and not is_ours(path.resolve()):
            raise InfrastructureFailed(
                f"store {shown(url)}: the file belongs to {user_name(path.stat().st_uid)}, and this program writes"
                " only to your own files; choose another file, or a PostgreSQL database for several users, with --store"
            )
        if is_ours(path.resolve()) or (writable and not path.exists()):
            _check_neighbours(url, path.resolve())
        if path.exists() and not path.is_file():
            raise InfrastructureFailed(f"store {shown(url)}: {path} is not a regular file; choose another --store")
        if not writable and not path.exists():
            raise NoStoreYet(f"store {shown(url)} does not exist yet; `observatory run` makes it")
    except OSError as error:
        raise InfrastructureFailed(
            f"store {shown(url)}: {error.filename}: {error.strerror}; choose another file with --store"
        ) from None


def _check_neighbours(url: URL, path: Path) -> None:
    """Refuse our store if others could add a file to its folder: SQLite replays a log that is there.

    Raises:
        InfrastructureFailed: everybody may write to the folder, or a log next to the store belongs to another user.
    """
    if path.parent.stat().st_mode & stat.S_IWOTH:
        raise InfrastructureFailed(
            f"store {shown(url)}: everybody may write in {path.parent}, and SQLite reads files next to a store;"
            " choose a file in a folder of your own with --store"
        )
    for suffix in ("-wal", "-shm", "-journal"):
        neighbour = path.with_name(path.name + suffix)
        if os.path.lexists(neighbour) and not is_ours(neighbour):
            raise InfrastructureFailed(
                f"store {shown(url)}: {neighbour} belongs to {user_name(neighbour.lstat().st_uid)} or is a link, and"
                " SQLite would read it; delete it"
            )


def _is_frozen(path: Path, is_glance: bool) -> bool:
    """Whether SQLite may open the file as immutable, without its own files next to it.

    This is allowed if no process is writing the store (there is no write-ahead log), and we may not write to the
    folder, or read only for a moment.
    """
    is_ours_to_write = os.access(path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    return (is_glance or not is_ours_to_write) and not path.with_name(path.name + "-wal").exists()


def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
    # `_begin_writing` and `_begin_reading` begin transactions: the driver's own leave CREATE TABLE outside.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    # Commits are on disk, even if SQLite was built to sync a write-ahead log only sometimes.
    connection.execute("PRAGMA synchronous = FULL")


def _refuse_writing(connection: sqlite3.Connection, _record: Any) -> None:
    # Not by opening it read-only: such a connection cannot remove the write-ahead log when it closes, and leaves an
    # empty one behind.
    connection.execute("PRAGMA query_only = ON")


def _keep_readers_going(connection: sqlite3.Connection, _record: Any) -> None:
    """Switch to a write-ahead log, so that readers do not wait for writers; not every file system supports it.

    If two processes switch a new file at once, one may get "locked" although the driver should wait, so we wait here.
    """
    give_up_s = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_s:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_writing(connection: Connection) -> None:
    # IMMEDIATE: two processes that read the version and then migrate wait for each other instead of failing.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_reading(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
