"""What a database reports becomes one line: whether the store may answer later, what to do, and never a password."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import exc

from bench.errors import InfrastructureFailed, Misuse
from bench.store.database import StoreGone, check_writable, connect, parse_url, saying, shown
from bench.store.history import History, NoStoreYet
from tests.bench.made.examples import make_machine, make_summary

SERVER = "postgresql://ada:hunter2@db.example.org/runs"
SHOWN = "postgresql+psycopg://ada:***@db.example.org/runs"
CHECK = "check that the server runs, and that this user may use the database"


def _said(url: str, error: Exception) -> tuple[type[Exception], str]:
    """Kind and words of what a use of the store raises when its database reports this error."""
    with pytest.raises(InfrastructureFailed) as refused, saying(parse_url(url)):
        raise error
    return type(refused.value), str(refused.value)


def _of_sqlite(text: str, code: int) -> exc.DBAPIError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return exc.OperationalError("SELECT 1", {}, error)


def _of_server(text: str, state: str | None = None) -> exc.DBAPIError:
    kind = psycopg.OperationalError if state is None else psycopg.errors.lookup(state)
    return exc.OperationalError("SELECT 1", {}, kind(text))


@pytest.mark.parametrize(
    ("text", "state", "kind"),
    [
        # From a server that answers: its state decides.
        ("connection failure", "08006", StoreGone),
        ("sorry, too many clients already", "53300", StoreGone),
        ("terminating connection due to administrator command", "57P01", StoreGone),
        ("the database system is starting up", "57P03", StoreGone),
        ("out of memory, connection closed", "53200", InfrastructureFailed),
        ("permission denied, connection lost", "42501", InfrastructureFailed),
        # Without a state there was no connection, or it broke.
        ("connection to server at 127.0.0.1 failed: Connection refused", None, StoreGone),
        ("connection timeout expired", None, StoreGone),
        ("failed to resolve host 'db.example.org'", None, StoreGone),
        ("the connection is closed", None, StoreGone),
        ("the connection is lost", None, StoreGone),
        ("consuming input failed: server gone", None, StoreGone),
        ("something else", None, InfrastructureFailed),
        # The server itself refused, for good or for now.
        ('connection to server failed: FATAL:  role "ada" does not exist', None, InfrastructureFailed),
        ("connection to server failed: FATAL:  the database system is starting up", None, StoreGone),
        ("connection to server failed: FATAL:  the database system is shutting down", None, StoreGone),
        ("connection to server failed: FATAL:  the database system is not accepting connections", None, StoreGone),
        ("connection to server failed: FATAL:  the database system is not yet accepting connections", None, StoreGone),
        ("connection to server failed: FATAL:  the database system is in recovery mode", None, StoreGone),
        ("connection to server failed: FATAL:  sorry, too many clients already", None, StoreGone),
        ("connection to server failed: FATAL:  remaining connection slots are reserved", None, StoreGone),
        ("connection to server failed: FATAL:  terminating connection", None, StoreGone),
    ],
)
def test_a_server_that_may_answer_later_is_told_from_one_that_refuses(
    text: str, state: str | None, kind: type[Exception]
) -> None:
    assert _said(SERVER, _of_server(text, state)) == (kind, f"store {SHOWN}: {' '.join(text.split())}; {CHECK}")


def test_an_interface_that_broke_is_gone_and_another_error_of_the_driver_is_not() -> None:
    text = "the connection is closed"
    broken = exc.InterfaceError("SELECT 1", {}, psycopg.InterfaceError(text))
    assert _said(SERVER, broken)[0] is StoreGone
    other = exc.ProgrammingError("SELECT 1", {}, psycopg.ProgrammingError(text))
    assert _said(SERVER, other)[0] is InfrastructureFailed


def test_a_full_disk_of_the_server_is_said() -> None:
    kind, words = _said(SERVER, _of_server("could not extend file", "53100"))
    assert (kind, words) == (
        InfrastructureFailed,
        f"store {SHOWN}: could not extend file; make room on the server's disk",
    )


def test_what_the_driver_says_is_one_line_without_numbers_of_errors_and_without_the_password() -> None:
    text = "connection failed:\n\t[Errno -2] no such\n  host,  [Errno 111] refused for ada:hunter2"
    _, words = _said(SERVER, _of_server(text))
    assert words == f"store {SHOWN}: connection failed: no such host, refused for ada:***; {CHECK}"


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (
            sqlite3.SQLITE_BUSY,
            StoreGone,
            "another process has locked it for 30 s; try again when that process has ended",
        ),
        (
            sqlite3.SQLITE_BUSY_SNAPSHOT,
            StoreGone,
            "another process has locked it for 30 s; try again when that process has ended",
        ),
        (
            sqlite3.SQLITE_LOCKED,
            StoreGone,
            "check who may write the file and its folder, or choose another file with --store",
        ),
        (
            sqlite3.SQLITE_IOERR,
            InfrastructureFailed,
            "check who may write the file and its folder, or choose another file with --store",
        ),
        (
            sqlite3.SQLITE_FULL,
            InfrastructureFailed,
            "its disk is full: make room, or choose a file on another disk with --store",
        ),
        (sqlite3.SQLITE_NOTADB, InfrastructureFailed, "choose another file with --store"),
        (
            sqlite3.SQLITE_READONLY,
            InfrastructureFailed,
            "check who may write the file and its folder, or choose another file with --store",
        ),
    ],
)
def test_each_error_of_sqlite_has_its_advice(tmp_path: Path, code: int, kind: type[Exception], advice: str) -> None:
    url = f"sqlite:///{tmp_path}/history.sqlite"
    assert _said(url, _of_sqlite("it failed", code)) == (kind, f"store {url}: it failed; {advice}")


def test_a_bug_of_ours_is_not_taken_for_a_failure_of_the_store() -> None:
    for kind in (exc.IntegrityError, exc.DataError):
        with pytest.raises(kind), saying(parse_url(SERVER)):
            raise kind("INSERT", {}, sqlite3.IntegrityError("NOT NULL constraint failed"))


def test_a_name_that_is_not_utf_8_is_misuse(tmp_path: Path) -> None:
    with (
        History(f"sqlite:///{tmp_path}/history.sqlite") as history,
        pytest.raises(Misuse, match="is not UTF-8 text, which all names in a history are"),
    ):
        history.find("\udcff")


# The URL


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "sqlite://",
            "store sqlite:// names no file and would store nothing; use for example sqlite:////FOLDER/history.sqlite",
        ),
        ("sqlite:///:memory:", "names no file and would store nothing"),
        ("sqlite:////tmp/a\0b", "the store's URL cannot be read; use for example"),
        ("sqlite:////tmp/\udcff", "the store's URL is not UTF-8; use a folder whose name is"),
        (f"postgresql://{'a' * 64}/runs", f'"{"a" * 64}" is not a host name; parts between dots have 1 to 63 letters'),
        (
            "postgresql://one,two..three/runs",
            '"two..three" is not a host name; parts between dots have 1 to 63 letters',
        ),
        ("postgresql:///runs?host=one&host=.two", '".two" is not a host name; parts between dots have 1 to 63 letters'),
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str, says: str) -> None:
    with pytest.raises(Misuse) as refused:
        parse_url(url)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///runs?host=/var/run/postgresql",
        "postgresql:///runs?host=@abstract..name",
        "postgresql://one,two/runs",
    ],
)
def test_folders_of_sockets_and_several_hosts_are_taken(url: str) -> None:
    assert parse_url(url).drivername == "postgresql+psycopg"


def test_each_password_in_a_url_is_hidden() -> None:
    url = parse_url("postgresql://ada:hunter2@host/runs?sslpassword=hunter2&password=hunter2&sslmode=require")
    assert shown(url) == "postgresql+psycopg://ada:***@host/runs?sslmode=require"


def test_options_that_cannot_be_read_are_misuse(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"the part after its \? cannot be read: "):
        connect(parse_url(f"sqlite:///{tmp_path}/history.sqlite?timeout=soon"), writable=True)


# The file


def test_whether_a_store_may_be_written_is_tried_without_leaving_anything(tmp_path: Path) -> None:
    url = parse_url(f"sqlite:///{tmp_path}/history.sqlite")
    check_writable(url)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "history.sqlite").write_bytes(b"as it was")
    check_writable(url)
    assert (tmp_path / "history.sqlite").read_bytes() == b"as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["history.sqlite"]


@pytest.mark.parametrize("url", ["sqlite:////proc/history.sqlite", "sqlite:////dev"])
def test_a_place_that_nobody_can_write_is_refused_before_a_run(url: str) -> None:
    with pytest.raises(InfrastructureFailed, match=r"cannot be written: .*; choose another place with --store"):
        check_writable(parse_url(url))


@pytest.mark.parametrize("url", ["sqlite:////nowhere/history.sqlite", "sqlite:///file:x?mode=memory&uri=true", SERVER])
def test_what_cannot_be_tried_is_not_refused(url: str) -> None:
    check_writable(parse_url(url))


def test_a_glance_leaves_nothing_beside_the_store_and_a_reader_opens_one_that_is_being_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.sqlite"
    with History(url) as history:
        history.add(make_summary(), make_machine())
        with History(url, writable=False, is_glance=True) as reader:
            assert reader.known() == {"run-a"}  # Also what is in the write-ahead log alone.
            history.add(make_summary("run-b"), make_machine())
            assert reader.known() == {"run-a", "run-b"}
    with History(url, writable=False, is_glance=True) as reader:
        assert reader.known() == {"run-a", "run-b"}
        assert [path.name for path in tmp_path.iterdir()] == ["history.sqlite"]


def test_a_pipe_is_no_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "history.sqlite")
    for writable in (True, False):
        with (
            pytest.raises(InfrastructureFailed, match="is not a regular file; choose another --store"),
            History(f"sqlite:///{tmp_path}/history.sqlite", writable=writable),
        ):
            pass


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_link_next_to_the_store_is_refused(tmp_path: Path, suffix: str) -> None:
    neighbour = tmp_path / f"history.sqlite{suffix}"
    neighbour.symlink_to("nowhere")
    with (
        pytest.raises(
            InfrastructureFailed, match=f"{neighbour} belongs to .* or is a link, and SQLite would read it; delete it"
        ),
        History(f"sqlite:///{tmp_path}/history.sqlite"),
    ):
        pass


def test_a_folder_that_everybody_may_write_holds_no_store(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with (
        pytest.raises(InfrastructureFailed, match=r"everybody may write in .*, and SQLite reads files next to a store"),
        History(f"sqlite:///{tmp_path}/history.sqlite"),
    ):
        pass


def test_a_link_of_ones_own_leads_to_the_store(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("history.sqlite")
    with History(f"sqlite:///{tmp_path}/link") as history:
        history.add(make_summary(), make_machine())
    with History(f"sqlite:///{tmp_path}/history.sqlite", writable=False) as history:
        assert history.known() == {"run-a"}


def test_reading_before_there_is_a_data_folder_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with pytest.raises(NoStoreYet, match="does not exist yet; `observatory run` makes it"), History(writable=False):
        pass
    assert list(tmp_path.iterdir()) == []
