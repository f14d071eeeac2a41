"""Shared files are replaced whole, locked by one process at a time, and tell their schema version."""

import os
import socket
from pathlib import Path

import msgspec
import pytest

from collectors.files import locked, replace_file, schema_version_of, try_lock


def test_a_file_is_replaced_whole_with_nothing_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text("old")
    replace_file(path, b"new", mode=0o640)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_replaced_stays_and_leaves_no_draft(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(folder, b"new")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_pipe_or_socket_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    before = sorted(tmp_path.iterdir())
    for path in before:
        with pytest.raises(OSError, match="a pipe, a socket or a device is there"):
            replace_file(path, b"new")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "socket").is_socket()


def test_a_lock_is_held_by_one_and_ends_with_its_file(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    assert (try_lock(first), try_lock(second)) == (True, False)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_a_locked_folder_is_free_again_afterwards(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    with locked(tmp_path):
        assert not try_lock(other)
    assert try_lock(other)
    os.close(other)


def test_a_document_tells_its_version_whatever_else_it_holds() -> None:
    assert schema_version_of(b'{"of a later version": {}, "schema_version": 7}') == 7
    with pytest.raises(msgspec.ValidationError):
        schema_version_of(b"{}")
