"""A line is added to and taken from a job file without touching what others wrote there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from collectors.dcgm.job_mapping import add_line, lines_of, remove_line


def _add(path: Path, line: str) -> bool:
    return add_line(path, line, path.with_name(".draft"))


def _remove(path: Path, line: str) -> None:
    remove_line(path, line)


def test_a_file_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "0") == ()


def test_a_first_line_makes_a_file_that_anybody_may_read(tmp_path: Path) -> None:
    assert _add(tmp_path / "0", "run-a")
    assert (tmp_path / "0").read_bytes() == b"run-a\n"
    assert (tmp_path / "0").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"run-a\n"),
        (b"4711\n", b"4711\nrun-a\n"),
        (b"4711", b"4711\nrun-a\n"),
        (b"run-a2\n", b"run-a2\nrun-a\n"),
    ],
)
def test_a_line_comes_after_those_of_others(before: bytes, after: bytes, tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(before)
    assert _add(tmp_path / "0", "run-a")
    assert (tmp_path / "0").read_bytes() == after


def test_a_line_that_stands_there_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"run-a")
    assert not _add(tmp_path / "0", "run-a")
    assert (tmp_path / "0").read_bytes() == b"run-a"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"secret\n")
    (tmp_path / "0").symlink_to("elsewhere")
    with pytest.raises(OSError, match="it is a link, and must be a file itself"):
        _add(tmp_path / "0", "run-a")
    assert (tmp_path / "elsewhere").read_bytes() == b"secret\n"


def test_a_line_is_taken_away_and_others_stay_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"4711\r\n\nrun-a\nrun-a2\n\xff")
    (tmp_path / "0").chmod(0o664)
    _remove(tmp_path / "0", "run-a")
    assert (tmp_path / "0").read_bytes() == b"4711\r\n\nrun-a2\n\xff"
    assert (tmp_path / "0").stat().st_mode & 0o777 == 0o664
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_who_has_the_file_open_reads_it_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"run-a\n4711\n")
    with (tmp_path / "0").open("rb") as file:
        _remove(tmp_path / "0", "run-a")
        assert file.read() == b"run-a\n4711\n"
    assert lines_of(tmp_path / "0") == ("4711",)


def test_the_last_line_goes_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"run-a\n")
    _remove(tmp_path / "0", "run-a")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_need_not_be_taken_away(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"4711\n")
    inode = (tmp_path / "0").stat().st_ino
    _remove(tmp_path / "0", "run-a")
    _remove(tmp_path / "1", "run-a")
    assert ((tmp_path / "0").stat().st_ino, (tmp_path / "0").read_bytes()) == (inode, b"4711\n")


def test_who_reads_meanwhile_sees_whole_lines_and_never_an_empty_file(tmp_path: Path) -> None:
    path, is_done, seen = tmp_path / "0", threading.Event(), set[bytes]()

    def read() -> None:
        while not is_done.is_set():
            try:
                seen.add(path.read_bytes())
            except FileNotFoundError:
                continue

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(300):
            _add(path, "run-a")
            _add(path, "run-b")
            _remove(path, "run-a")
            _remove(path, "run-b")
    finally:
        is_done.set()
        reader.join()
    assert seen <= {b"run-a\n", b"run-a\nrun-b\n", b"run-b\n"}


def test_what_others_append_while_lines_are_added_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "0"
    path.write_bytes(b"")

    def append() -> None:
        for number in range(300):
            with path.open("a") as file:
                file.write(f"job-{number}\n")

    other = threading.Thread(target=append)
    other.start()
    for number in range(300):
        _add(path, f"run-{number}")
    other.join()
    assert set(lines_of(path)) == {f"{kind}-{number}" for kind in ("job", "run") for number in range(300)}
