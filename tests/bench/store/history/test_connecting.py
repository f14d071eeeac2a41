"""Stores that cannot be opened, read or written: each is said in one line that names it and the next move."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import platformdirs
import pytest

from bench.errors import InfrastructureFailed, Misuse
from bench.store.database import default_url, parse_url, shown
from bench.store.history import History, NoStoreYet
from tests.bench.made.examples import make_machine, make_summary
from tests.bench.made.small_disk import on_a_small_disk
from tests.support.servers import PostgresServer


def _refusal(url: str, *, writable: bool = True) -> str:
    with pytest.raises(InfrastructureFailed) as refused, History(url, writable=writable):
        pass
    message = str(refused.value)
    assert "\n" not in message
    return message


def _misuse(url: str) -> str:
    with pytest.raises(Misuse) as refused:
        parse_url(url)
    return str(refused.value)


def test_the_default_is_a_file_in_the_users_data_folder() -> None:
    assert default_url() == f"sqlite:///{platformdirs.user_data_dir('parallel-observatory')}/history.sqlite"


_INTERRUPTED_RETURN = """
import sys
from sqlalchemy import event, text
from bench.store.database import connect, parse_url

def interrupt(*_):
    raise KeyboardInterrupt

engine = connect(parse_url(sys.argv[1]), writable=True)
event.listen(engine, "reset", interrupt)
try:
    with engine.connect() as connection:
        connection.execute(text("select 1"))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interruption_while_a_connection_is_returned_prints_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _INTERRUPTED_RETURN, f"sqlite:///{tmp_path / 'history.sqlite'}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


def test_the_users_data_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with History() as history:
        assert history.known() == frozenset()
    assert (tmp_path / "data/parallel-observatory/history.sqlite").is_file()


def test_what_is_committed_is_on_the_disk(tmp_path: Path) -> None:
    with History(f"sqlite:///{tmp_path}/history.sqlite") as history, history.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL: each commit is synced.


def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    assert f"folder {tmp_path}/no does not exist; make it" in _refusal(f"sqlite:///{tmp_path}/no/history.sqlite")
    assert not (tmp_path / "no").exists()


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"folder {tmp_path}/file is a file" in _refusal(f"sqlite:///{tmp_path}/file/history.sqlite")


def test_a_file_that_is_a_folder_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder; name a file in it" in _refusal(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize("writable", [True, False])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, writable: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but somebody's notes\n" * 100)
    message = _refusal(f"sqlite:///{path}", writable=writable)
    assert "file is not a database; choose another file with --store" in message
    assert path.read_text().startswith("not a database, but")


def test_reading_a_store_that_was_never_made_says_who_makes_it(tmp_path: Path) -> None:
    message = _refusal(f"sqlite:///{tmp_path}/history.sqlite", writable=False)
    assert "does not exist yet; `observatory run` makes it" in message
    assert not (tmp_path / "history.sqlite").exists()


def test_reading_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.sqlite")
    connection.execute("CREATE TABLE things (id INTEGER)")
    connection.close()
    assert "is another program's database" in _refusal(f"sqlite:///{tmp_path}/other.sqlite", writable=False)


def test_an_empty_database_is_no_history_yet(store_url: str) -> None:
    if store_url.startswith("sqlite"):
        Path(store_url.removeprefix("sqlite:///")).touch()
    expected = pytest.raises(NoStoreYet, match="`observatory run` with this store turns it into a history")
    with expected, History(store_url, writable=False):
        pass


def test_a_store_that_may_only_be_read_is_refused_before_a_run(
    open_folder: Path, without_right_to_write: AbstractContextManager[None]
) -> None:
    url = f"sqlite:///{open_folder}/history.sqlite"
    with History(url) as history:
        history.add(make_summary(), make_machine())
    with without_right_to_write:
        assert "the file belongs to user root (uid 0), and this program writes only to your own files" in _refusal(url)


@pytest.mark.parametrize("size_bytes", [50, 4096, 20_000])
@pytest.mark.parametrize("writable", [True, False])
def test_a_store_that_is_cut_off_is_said_to_be_damaged(tmp_path: Path, size_bytes: int, writable: bool) -> None:
    path = tmp_path / "history.sqlite"
    with History(f"sqlite:///{path}") as history:
        history.add(make_summary(), make_machine())
    path.write_bytes(path.read_bytes()[:size_bytes])
    message = _refusal(f"sqlite:///{path}", writable=writable)
    assert (
        "the file is damaged or cut off: restore a copy, or move it away, and `observatory show --rebuild`" in message
    )


ON_ITS_DISK = """
import contextlib, os, subprocess, sys
from bench.errors import InfrastructureFailed
from bench.store.history import History
from tests.bench.made.examples import make_machine, make_summary
folder, what = sys.argv[1:]
url = f"sqlite:///{folder}/history.sqlite"
with History(url) as history:
    history.add(make_summary(), make_machine())
if what == "read-only":
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
else:
    with contextlib.suppress(OSError), open(f"{folder}/filler", "wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            if what == "nearly" and os.statvfs(folder).f_bavail <= 10:
                break
try:
    with History(url) as history:
        for _ in range(99):
            history.add(make_summary(), make_machine())
except InfrastructureFailed as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("full", "its disk is full: make room, or choose a file on another disk with --store"),
        ("nearly", "its disk is full: make room, or choose a file on another disk with --store"),
        ("read-only", "its file system is mounted read-only; choose a file on another one with --store"),
    ],
)
def test_a_store_on_a_full_disk_or_a_read_only_one_is_refused_with_that_reason(
    tmp_path: Path, what: str, said: str
) -> None:
    command = on_a_small_disk(tmp_path / "disk", sys.executable, "-c", ON_ITS_DISK, str(tmp_path / "disk"), what)
    tried = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert tried.stdout.endswith(f"; {said}\n"), tried
    assert tried.stdout.count("\n") == 1


def test_a_store_that_may_only_be_read_can_be_read(
    open_folder: Path, without_right_to_write: AbstractContextManager[None]
) -> None:
    url = f"sqlite:///{open_folder}/history.sqlite"
    with History(url) as history:
        history.add(make_summary(), make_machine())
    with without_right_to_write, History(url, writable=False) as history:
        assert history.known() == {"run-a"}
    assert [path.name for path in open_folder.iterdir()] == ["history.sqlite"]


def test_a_new_store_in_a_folder_that_may_only_be_read_is_refused(
    open_folder: Path, without_right_to_write: AbstractContextManager[None]
) -> None:
    with without_right_to_write:
        message = _refusal(f"sqlite:///{open_folder}/history.sqlite")
    assert "unable to open database file; check who may write the file and its folder" in message


def test_a_store_opened_only_for_reading_cannot_be_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.sqlite"
    with History(url):
        pass
    with History(url, writable=False) as history, pytest.raises(InfrastructureFailed, match="readonly database"):
        history.add(make_summary(), make_machine())


@pytest.mark.parametrize("url", ["mysql://root:hunter2@host/db", "oracle://root:hunter2@host/db"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    message = _misuse(url)
    assert "is not supported; it may be sqlite or postgresql" in message
    assert "hunter2" not in message


def test_what_is_no_url_is_refused_without_showing_it() -> None:
    message = _misuse("root:hunter2@host")
    assert "use for example sqlite:////FOLDER/history.sqlite or postgresql://" in message
    assert "hunter2" not in message


def test_a_missing_driver_names_the_extra() -> None:
    message = _refusal("postgresql+psycopg2://user:hunter2@host/db")  # Installed by none of our extras.
    assert "driver psycopg2 is not installed; pip install 'parallel-observatory[postgres]'" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_is_spoken_to_by_the_driver_that_we_install(scheme: str) -> None:
    assert parse_url(f"{scheme}://host/db").drivername == "postgresql+psycopg"


def test_a_password_is_never_shown_wherever_it_stands() -> None:
    assert shown(parse_url("postgresql://u:hunter2@h/d?password=hunter2")) == "postgresql+psycopg://u:***@h/d"


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    message = _refusal("postgresql://user:hunter2@127.0.0.1:1/db")  # Nobody listens on port 1.
    assert "check that the server runs" in message
    assert "hunter2" not in message


@pytest.mark.stack
def test_a_wrong_password_is_not_shown(postgres: PostgresServer) -> None:
    message = _refusal(postgres.url("postgres").replace(postgres.password, "hunter2"))
    assert "password authentication failed" in message
    assert "hunter2" not in message


@pytest.mark.stack
def test_a_server_that_may_only_be_read_is_refused_before_a_run(postgres: PostgresServer) -> None:
    url = postgres.url("postgres")
    with History(url):
        pass
    reading_only = f"{url}?options=-c%20default_transaction_read_only%3Don"
    assert "read-only transaction" in _refusal(reading_only)
    with History(reading_only, writable=False) as history:
        assert history.known() == frozenset()
