"""Files of the kernel: read whole, and named as the kernel names them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from collectors.host.procfs import KernelFiles


def test_a_file_longer_than_one_piece_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 200_000)
    assert KernelFiles(root=tmp_path).text("long") == "x" * 200_000


def test_a_missing_file_is_named_as_on_the_host(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        KernelFiles(root=tmp_path).text("proc/stat")
    assert caught.value.filename == "/proc/stat"


def test_a_file_that_refuses_only_when_it_is_read_is_named_as_well(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        KernelFiles(root=tmp_path).text("folder")
    assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, "/folder")


def test_a_folder_is_listed_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).touch()
    assert KernelFiles(root=tmp_path).names("") == ("a", "b", "c")
