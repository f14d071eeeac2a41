"""What is on the disk when the power fails: a file's old content or its new one, and never a part."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import pytest

from bench.engines.wire.run_files import FileReceiver, LogSizes
from bench.rank.messages import FilePiece, FileSent, LogTail, LogTails
from collectors.files import drafted, replace_file, sync_folder
from tests.collectors.files_and_sockets.simulated_disk import SimulatedDisk


def test_a_file_takes_its_name_when_its_content_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(monkeypatch)
    replace_file(tmp_path / "small", b"content")
    with drafted(tmp_path / "large") as file:
        for number in range(1000):
            file.write(b"%d\n" % number * 100)
    assert (disk.replaced, disk.unsynced) == (["small", "large"], [])


def test_a_file_that_is_received_takes_its_name_when_its_content_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk(monkeypatch)
    (tmp_path / "run").mkdir()
    receiver = FileReceiver(LogSizes(tmp_path))
    receiver.expect("run")
    receiver.take(FilePiece(run="run", name="rank0.jsonl", start=0, data=zlib.compress(b"first\n")))
    receiver.take(FilePiece(run="run", name="rank0.jsonl", start=6, data=zlib.compress(b"second\n")))
    digest = hashlib.sha256(b"first\nsecond\n").hexdigest()
    receiver.take(FileSent(run="run", name="rank0.jsonl", size=13, sha256=digest))
    assert (tmp_path / "run/rank0.jsonl").read_bytes() == b"first\nsecond\n"
    assert (disk.replaced, disk.unsynced) == (["rank0.jsonl"], [])


def test_a_log_whose_tails_were_received_is_on_the_disk_when_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk(monkeypatch)
    log = tmp_path / "run/rank0.jsonl"
    log.parent.mkdir()
    receiver = FileReceiver(LogSizes(tmp_path))
    receiver.expect("run")
    tails = (LogTail(name="rank0.jsonl", start=0, size=6),)
    receiver.take(LogTails(run="run", tails=tails, data=zlib.compress(b"first\n")))
    receiver.take(FileSent(run="run", name="rank0.jsonl", size=6, sha256=hashlib.sha256(b"first\n").hexdigest()))
    assert receiver.finish("run") == ()
    sync_folder(log.parent)
    assert disk.after_power_loss(log) == b"first\n"


def test_the_disk_of_these_tests_sees_content_that_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    disk = SimulatedDisk(monkeypatch)
    monkeypatch.setattr("os.fsync", lambda fd: None)
    replace_file(tmp_path / "small", b"content")
    assert disk.unsynced == ["small"]
