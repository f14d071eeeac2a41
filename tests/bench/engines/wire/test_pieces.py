"""Pieces of files at the runner: each is written once, and none through a link to somewhere else."""

from __future__ import annotations

import hashlib
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from bench.engines.wire.run_files import FileReceiver, LogSizes
from bench.rank.messages import FilePiece, FileSent, LogTail, LogTails

RUN = "20261123-010203-ddp-abc123"


def _piece(name: str, content: bytes) -> FilePiece:
    return FilePiece(run=RUN, name=name, start=0, data=zlib.compress(content))


def _tail(name: str, content: bytes, *, start: int = 0) -> LogTails:
    tail = LogTail(name=name, start=start, size=len(content))
    return LogTails(run=RUN, tails=(tail,), data=zlib.compress(content))


def _sent(name: str, content: bytes) -> FileSent:
    return FileSent(run=RUN, name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The runner's folder of runs, with the folder of one run."""
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    return tmp_path / "runs"


def test_a_tail_that_comes_twice_is_written_once(runs: Path) -> None:
    with closing(FileReceiver(LogSizes(runs))) as receiver:
        receiver.expect(RUN)
        for _ in range(2):
            receiver.take(_tail("rank0.jsonl", b"1\n"))
        receiver.take(_tail("rank0.jsonl", b"2\n", start=2))
        receiver.take(_tail("rank0.jsonl", b"1\n"))
        assert (runs / RUN / "rank0.jsonl").read_bytes() == b"1\n2\n"


def test_a_tail_is_not_written_through_a_link(runs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(content := b"x" * len(str(outside)))  # As long as the link is: the tail would come behind it.
    (runs / RUN / "rank0.jsonl").symlink_to(outside)
    with closing(FileReceiver(LogSizes(runs))) as receiver:
        receiver.expect(RUN)
        receiver.take(_tail("rank0.jsonl", b"1\n"))
        assert receiver.lost(RUN) == ("rank0.jsonl",)
        receiver.take(_piece("rank0.jsonl", b"1\n"))  # Sent again as a whole.
        (problem,) = receiver.finish(RUN)
    assert problem == "rank0.jsonl cannot be stored: it is a link, but must be a file"
    assert outside.read_bytes() == content


def test_a_whole_file_takes_the_place_of_a_link_and_not_of_what_it_leads_to(runs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"another's\n")
    (runs / RUN / "rank0.err").symlink_to(outside)
    with closing(FileReceiver(LogSizes(runs))) as receiver:
        receiver.expect(RUN)
        receiver.take(_piece("rank0.timeline.npz", b"1\n"))
        (runs / RUN / "rank0.timeline.npz").symlink_to(outside)
        receiver.take(_sent("rank0.timeline.npz", b"1\n"))
        assert receiver.finish(RUN) == ()
        receiver.take(_piece("rank0.err", b"1\n"))  # A log that goes on: what it had is not read from elsewhere.
        receiver.take(_sent("rank0.err", b"1\n"))
        assert receiver.finish(RUN) == ("rank0.err cannot be stored: it is a link, but must be a file",)
    assert (runs / RUN / "rank0.timeline.npz").read_bytes() == b"1\n"
    assert outside.read_bytes() == b"another's\n"


@pytest.mark.parametrize("is_run", [True, False])
def test_a_folder_that_is_a_link_gets_no_file(is_run: bool, runs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with closing(FileReceiver(LogSizes(runs))) as receiver:
        receiver.expect(RUN)
        link = runs / RUN if is_run else runs / RUN / "trial0"
        if is_run:
            link.rmdir()
        link.symlink_to(outside)
        name = "rank0.jsonl" if is_run else "trial0/rank0.timeline.npz"
        if is_run:
            receiver.take(_tail(name, b"1\n"))
        receiver.take(_piece(name, b"1\n"))
        receiver.take(_sent(name, b"1\n"))
        (problem,) = receiver.finish(RUN)
    assert problem == f"{name} cannot be stored: it is a link, but must be a folder"
    assert list(outside.iterdir()) == []


def test_a_log_that_is_sent_again_goes_on_behind_what_the_run_had_before_and_not_behind_its_tail(runs: Path) -> None:
    log = runs / RUN / "rank0.jsonl"
    log.write_bytes(b"0\n")
    with closing(FileReceiver(LogSizes(runs))) as receiver:
        receiver.expect(RUN)
        receiver.take(_tail("rank0.jsonl", b"1\n"))
        assert log.read_bytes() == b"0\n1\n"
        with log.open("ab") as other:
            other.write(b"by another\n")
        receiver.take(_tail("rank0.jsonl", b"2\n", start=2))
        assert receiver.lost(RUN) == ("rank0.jsonl",)
        receiver.take(_piece("rank0.jsonl", b"1\n2\n"))
        receiver.take(_sent("rank0.jsonl", b"1\n2\n"))
        assert receiver.finish(RUN) == ()
    assert log.read_bytes() == b"0\n1\n2\n"
