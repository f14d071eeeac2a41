"""A regular file is read; whatever else a name may be of is refused at once, and never waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from collectors.files import NotRegular, open_regular, read_regular


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fsencode(path))


def test_a_regular_file_is_read_through_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"


@pytest.mark.timeout(10)  # A pipe without a writer would be waited for.
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (os.mkfifo, "Is a named pipe"),
        (_bind, "Is a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "Is a device"),
        (lambda path: path.symlink_to("/dev/null"), "Is a device"),
    ],
    ids=["pipe", "socket", "endless device", "empty device"],
)
def test_what_is_no_file_is_refused_with_its_kind(make: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    path = tmp_path / "name"
    make(path)
    with pytest.raises(NotRegular) as refused:
        open_regular(path)
    assert (refused.value.strerror, refused.value.filename) == (says, str(path))


def test_a_pipe_that_has_a_writer_is_refused_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    both = os.open(path, os.O_RDWR)
    try:
        os.write(both, b"meant for another")
        with pytest.raises(NotRegular):
            open_regular(path)
        assert os.read(both, 100) == b"meant for another"
    finally:
        os.close(both)


def test_a_folder_and_a_missing_name_are_refused_as_python_does(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


def test_no_descriptor_is_left_open_by_a_refusal(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    for path in (tmp_path, Path("/dev/null"), tmp_path / "missing"):
        with suppress(OSError):
            open_regular(path)
    assert psutil.Process().num_fds() == before
