"""What is on the disk when the power fails: a file's old content or its new one, and never a part."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.engines.wire.run_files import FileReceiver, LogSizes
from bench.machine.placement import NodePlace, write_placement
from bench.rank.messages import FilePiece, FileSent, LogTail, LogTails
from bench.store import run_dir
from collectors.files import drafted, replace_file, sync_folder, write_named
from collectors.sample_log import Note, SampleLog
from tests.bench.made.examples import make_summary
from tests.collectors.files_and_sockets.simulated_disk import SimulatedDisk, after_each_crash


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


# A crash at each call


def _draft_large(path: Path) -> None:
    with drafted(path) as file:
        for number in range(1000):
            file.write(b"%d\n" % number * 100)


def _receive(path: Path) -> None:
    receiver = FileReceiver(LogSizes(path.parents[1]))
    receiver.expect(path.parent.name)
    content = b"received\n" * 1000
    for start in (0, 4500):
        data = zlib.compress(content[start : start + 4500])
        receiver.take(FilePiece(run=path.parent.name, name=path.name, start=start, data=data))
    digest = hashlib.sha256(content).hexdigest()
    receiver.take(FileSent(run=path.parent.name, name=path.name, size=len(content), sha256=digest))


def _place(path: Path) -> None:
    place = NodePlace(number=0, name="node 0", host="host", switch=None, first_rank=0, ranks=2)
    write_placement(path.parent, "slurm", [place])


WRITERS: dict[str, Callable[[Path], object]] = {
    "small": lambda path: replace_file(path, b"content"),
    "large": _draft_large,
    "named by a person": lambda path: write_named(path, b"content"),
    "rank0.timeline.npz": _receive,
    "summary.json": lambda path: run_dir.save(make_summary(folder=str(path.parent))),
    "case.json": lambda path: run_dir.write_json(path, {"run": "run-a"}),
    "placement.json": _place,
}
"""By the name of the file. `tests/project/test_safe_writing.py` sees that no file is written in another way."""


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_the_old_one_or_the_new_one_whenever_the_process_crashes_or_the_power_fails(
    name: str, old: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir()

    def prepare() -> Path:
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_bytes(old)
        return path

    states = list(after_each_crash(monkeypatch, prepare, lambda: WRITERS[name](path)))
    new, _ = states[-1]
    assert len(states) > 3  # It crashes before it makes, syncs and renames a file, and then at none of these.
    assert new not in (None, b"", old)
    for content, after_power_loss in states:
        assert content in (old, new)
        assert after_power_loss <= {old, new}


def test_a_result_that_is_saved_is_on_the_disk_with_the_names_of_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk(monkeypatch)
    folder = tmp_path / "run"
    (folder / "trial0").mkdir(parents=True)
    log = SampleLog(folder / "rank0.jsonl")
    log.write(Note(trial=0, time_ns=1, text="a note"))
    log.close(durable=True)
    replace_file(folder / "trial0" / "rank0.timeline.npz", b"a window")
    run_dir.save(make_summary(folder=str(folder)))
    for path in (folder / "summary.json", folder / "rank0.jsonl", folder / "trial0" / "rank0.timeline.npz"):
        assert disk.after_power_loss(path) == path.read_bytes() != b""
        assert disk.may_hold(path) == {path.read_bytes()}
    assert disk.has_name(folder)
