"""The file of a key is its owner's own: whatever else stands there is refused, and nobody waits for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.engines.wire.frames import KEY_BYTES, Refused, new_key, read_key, write_key


def test_a_key_is_new_each_time_and_read_as_it_was_written(tmp_path: Path) -> None:
    first, second = new_key(), new_key()
    assert len(first) == KEY_BYTES
    assert first != second
    write_key(tmp_path / "key", first)
    assert read_key(tmp_path / "key") == first
    with pytest.raises(FileExistsError):
        write_key(tmp_path / "key", second)


def test_a_pipe_in_place_of_a_key_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(Refused, match=f"the key file {tmp_path}/key is not a file of this user"):
        read_key(tmp_path / "key")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    write_key(tmp_path / "key", new_key())
    os.chown(tmp_path / "key", 1, 1)
    with pytest.raises(Refused, match=f"the key file {tmp_path}/key is not a file of this user"):
        read_key(tmp_path / "key")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"00" * (KEY_BYTES - 1) + b"\n", b"00" * (KEY_BYTES + 1), b"\xff" * 64]
)
def test_what_is_no_key_is_named_with_its_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(Refused, match=f"the key file {tmp_path}/key holds no key, which is a line of 64 hexadecimal"):
        read_key(tmp_path / "key")
