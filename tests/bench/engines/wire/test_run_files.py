"""Files of a run arrive at the runner whole or not at all, under the names that ranks and nodes write."""

from __future__ import annotations

import hashlib
import os
import queue
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from bench.engines.wire.frames import Refused
from bench.engines.wire.run_files import PIECE_BYTES, FileMessage, FileReceiver, FileSender, LogSizes
from bench.errors import InfrastructureFailed
from bench.rank.messages import (
    FilePiece,
    FileSent,
    FilesSent,
    FromAgent,
    LogTail,
    LogTails,
    SendFiles,
    TrialOrder,
    WatchFiles,
)
from bench.store import run_dir
from bench.store.active_runs import stage_of
from tests.bench.made.examples import make_machine, small_case

RUN = "20261123-010203-ddp-abc123"
ORDER = TrialOrder(run=RUN, trial=0, case=small_case(), limit_s=60.0)
WITHIN_S = 60.0


class Node:
    """A node's folder of runs and its sender, with a runner that receives what is sent."""

    def __init__(self, folder: Path) -> None:
        self.runs, self.runner_runs = folder / "node", folder / "runner"
        self.folder, self.kept = self.runs / RUN, self.runner_runs / RUN
        self.kept.mkdir(parents=True)
        self.receiver = FileReceiver(LogSizes(self.runner_runs))
        self.sent: queue.SimpleQueue[FileMessage] = queue.SimpleQueue()
        self.sender = FileSender(self.runs, self._send, look_s=0.01)

    def _send(self, message: msgspec.Struct) -> bool:
        decoded = msgspec.json.decode(msgspec.json.encode(message), type=FileMessage)
        self.receiver.take(decoded)
        self.sent.put(decoded)
        return True

    def begin(self) -> None:
        """As the agent and the runner do with the first order."""
        self.receiver.expect(RUN)
        self.sender.begin(ORDER, make_machine())

    def write(self, **files: bytes) -> None:
        """Append to files of the node; a `__` is a folder's slash, a `_` a dot."""
        for name, content in files.items():
            path = self.folder / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(content)

    def collect(self) -> tuple[str, ...]:
        """Have all files sent."""
        self.sender.ask(SendFiles(run=RUN, again=self.receiver.lost(RUN)))
        while not isinstance(self.sent.get(timeout=WITHIN_S), FilesSent):
            pass
        return self.receiver.finish(RUN)

    def received(self) -> dict[str, bytes]:
        """What the runner has."""
        files = (path for path in self.kept.rglob("*") if path.is_file())
        return {path.relative_to(self.kept).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    with closing(made.sender), closing(made.receiver):
        yield made


def test_what_ranks_and_nodes_wrote_arrives_and_nothing_else(node: Node) -> None:
    node.begin()
    large = os.urandom(2 * PIECE_BYTES + 17)
    node.write(rank0_jsonl=b"{}\n" * 1000, rank0_err=b"", node0_jsonl=b"{}\n", trial0__rank0_timeline_npz=large)
    node.write(secrets_txt=b"not a rank's")
    (node.folder / "rank1.jsonl").symlink_to("/etc/passwd")
    assert node.collect() == ("rank1.jsonl cannot be read: it is a link, but must be a file",)
    assert node.received() == {
        "rank0.jsonl": b"{}\n" * 1000,
        "rank0.err": b"",
        "node0.jsonl": b"{}\n",
        "trial0/rank0.timeline.npz": large,
    }


def test_files_are_sent_again_as_they_are_then(node: Node) -> None:
    node.begin()
    node.write(rank0_jsonl=b"1\n")
    node.collect()
    node.write(rank0_jsonl=b"2\n")
    assert node.collect() == ()
    assert node.received() == {"rank0.jsonl": b"1\n2\n"}


def test_a_node_knows_whether_something_is_left_to_send(node: Node) -> None:
    assert node.sender.is_all_sent
    node.begin()
    assert not node.sender.is_all_sent
    node.collect()
    assert node.sender.is_all_sent


def test_a_run_may_go_on_with_the_same_agent_after_its_files_were_sent(node: Node) -> None:
    node.begin()
    node.write(rank0_jsonl=b"1\n")
    node.collect()
    node.begin()
    node.write(rank0_jsonl=b"2\n")
    assert node.collect() == ()
    assert node.received() == {"rank0.jsonl": b"1\n2\n"}


def test_of_a_run_that_goes_on_the_logs_grow_where_the_runner_has_them(node: Node) -> None:
    """An earlier agent has sent, and the runner has cut what was incomplete; the node still has all of it."""
    node.write(case_json=b"{}")
    node.write(rank0_jsonl=b"1\n2 incomplete\n")
    (node.kept / "rank0.jsonl").write_bytes(b"1\n")
    node.begin()
    node.write(rank0_jsonl=b"2\n3\n", rank0_timeline_npz=b"new")
    assert node.collect() == ()
    assert node.received() == {"rank0.jsonl": b"1\n2\n3\n", "rank0.timeline.npz": b"new"}


def test_a_watched_log_grows_at_the_runner_as_it_does_on_the_node(node: Node) -> None:
    node.receiver.expect(RUN)
    node.sender.ask(WatchFiles(run=RUN, is_watched=True))
    node.sender.begin(ORDER, make_machine())
    node.write(rank0_jsonl=b"1\n", rank0_err=b"not a log")
    assert node.sent.get(timeout=WITHIN_S).run == RUN
    assert node.received() == {"rank0.jsonl": b"1\n"}
    node.write(rank0_jsonl=b"2\n")
    node.sent.get(timeout=WITHIN_S)
    assert node.received() == {"rank0.jsonl": b"1\n2\n"}
    node.sender.ask(WatchFiles(run=RUN, is_watched=False))
    assert node.collect() == ()
    assert node.received() == {"rank0.jsonl": b"1\n2\n", "rank0.err": b"not a log"}


def _watched(node: Node, ranks: int, content: bytes) -> list[FileMessage]:
    """What was sent first of so many ranks that logged this."""
    node.begin()
    for rank in range(ranks):
        node.write(**{f"rank{rank}_jsonl": content})
    node.sender.ask(WatchFiles(run=RUN, is_watched=True))
    return [node.sent.get(timeout=WITHIN_S)]


def test_what_the_ranks_of_a_node_logged_since_the_last_look_is_one_message(node: Node) -> None:
    (message,) = _watched(node, 8, b"1\n")
    assert isinstance(message, LogTails)
    assert [(tail.name, tail.start, tail.size) for tail in message.tails] == [
        (f"rank{rank}.jsonl", 0, 2) for rank in range(8)
    ]


def test_of_a_run_of_many_nodes_the_slowest_and_the_newest_rank_are_sent_at_once_and_the_rest_at_the_end(
    node: Node,
) -> None:
    node.begin()
    node.sender.steps = lambda: {0: 5, 1: 4, 2: 6, 3: 5}
    logs = {f"rank{rank}_jsonl": b"%d\n" % rank for rank in range(4)}
    node.write(node0_jsonl=b"polled\n", **logs)
    node.sender.ask(WatchFiles(run=RUN, is_watched=True, all_ranks=False))
    message = node.sent.get(timeout=WITHIN_S)
    assert isinstance(message, LogTails)
    assert [tail.name for tail in message.tails] == ["node0.jsonl", "rank1.jsonl", "rank2.jsonl"]
    assert node.collect() == ()
    assert node.received() == {
        "node0.jsonl": b"polled\n",
        **{f"rank{rank}.jsonl": b"%d\n" % rank for rank in range(4)},
    }


def test_a_message_of_tails_has_a_part_of_each_log_where_all_would_be_too_much(node: Node) -> None:
    (message,) = _watched(node, 2, b"x" * PIECE_BYTES)
    assert isinstance(message, LogTails)
    assert [(tail.name, tail.size) for tail in message.tails] == [
        ("rank0.jsonl", PIECE_BYTES // 2),
        ("rank1.jsonl", PIECE_BYTES // 2),
    ]


def test_no_byte_of_a_log_is_sent_twice(node: Node) -> None:
    content = os.urandom(3 * PIECE_BYTES)
    sent: list[FileMessage] = []
    take = node.receiver.take

    def recorded(message: FileMessage) -> None:
        sent.append(message)
        take(message)

    node.receiver.take = recorded  # type: ignore[method-assign]
    _watched(node, 2, content)
    assert node.collect() == ()
    assert {name: len(log) for name, log in node.received().items()} == dict.fromkeys(
        ("rank0.jsonl", "rank1.jsonl"), len(content)
    )
    assert all(log == content for log in node.received().values())
    tails = [tail for message in sent if isinstance(message, LogTails) for tail in message.tails]
    assert sum(tail.size for tail in tails) == 2 * len(content)
    assert not any(isinstance(message, FilePiece) for message in sent)
    node.write(rank0_jsonl=b"more")
    assert node.collect() == ()
    assert node.received()["rank0.jsonl"] == content + b"more"
    assert not any(isinstance(message, FilePiece) for message in sent)


def test_a_log_of_which_a_tail_found_no_place_comes_whole_at_the_end(node: Node) -> None:
    node.begin()
    (node.kept / "rank0.jsonl").symlink_to(node.runs / "elsewhere")
    _watched(node, 2, b"1\n")
    assert node.received().get("rank0.jsonl") is None
    (node.kept / "rank0.jsonl").unlink()
    node.write(rank0_jsonl=b"2\n")
    assert node.collect() == ()
    assert node.received() == {"rank0.jsonl": b"1\n2\n", "rank1.jsonl": b"1\n"}


def test_the_folder_of_a_run_is_as_a_runner_makes_it_until_its_files_are_sent(node: Node) -> None:
    node.begin()
    assert run_dir.case_file(node.folder).case == ORDER.case
    assert run_dir.machine_of(node.folder) == make_machine()
    assert stage_of(node.folder) == "running"
    node.collect()
    assert stage_of(node.folder) == "ended"


def test_an_agent_that_is_given_the_runners_own_folder_says_so(node: Node) -> None:
    run = run_dir.begin(ORDER.case, make_machine(), node.runs, name=RUN)
    try:
        with pytest.raises(InfrastructureFailed, match="is in use by the runner or another agent"):
            node.begin()
    finally:
        run.close()


def test_files_of_a_run_that_the_agent_never_ran_are_not_there(node: Node) -> None:
    node.receiver.expect(RUN)
    assert node.collect() == (f"this agent ran no trial of {RUN}",)


# What arrives damaged, or where it must not.


def _piece(content: bytes = b"1\n", **changes: object) -> FilePiece:
    piece = FilePiece(run=RUN, name="rank0.jsonl", start=0, data=zlib.compress(content))
    return msgspec.structs.replace(piece, **changes)


def _tail(content: bytes = b"1\n", *, start: int = 0, size: int | None = None) -> LogTails:
    tail = LogTail(name="rank0.jsonl", start=start, size=len(content) if size is None else size)
    return LogTails(run=RUN, tails=(tail,), data=zlib.compress(content))


SENT = FileSent(run=RUN, name="rank0.jsonl", size=2, sha256="0" * 64)


@pytest.mark.parametrize(
    ("pieces", "problem"),
    [
        ([_piece(), SENT], "rank0.jsonl arrived damaged: 2 of 2 bytes, or with a wrong checksum"),
        ([_piece(), _piece(start=7), SENT], "rank0.jsonl arrived damaged: 2 of 2 bytes"),
        ([_piece(data=b"no zlib"), SENT], "rank0.jsonl cannot be stored: a piece of it is damaged (Error -3"),
        ([_piece(bytes(PIECE_BYTES + 1)), SENT], "(it is cut off, or longer than a piece may be)"),
    ],
)
def test_a_file_that_comes_damaged_is_named_and_the_old_one_stays(
    pieces: list[FilePiece | FileSent], problem: str, node: Node
) -> None:
    node.receiver.expect(RUN)
    (node.kept / "rank0.jsonl").write_bytes(b"old\n")
    for piece in pieces:
        node.receiver.take(piece)
    (line,) = node.receiver.finish(RUN)
    assert problem in line
    assert node.received() == {"rank0.jsonl": b"old\n"}


def test_a_file_that_finds_no_place_is_named_with_the_reason(node: Node) -> None:
    (node.kept / "rank0.jsonl").mkdir()
    node.receiver.expect(RUN)
    for piece in (_piece(), SENT):
        node.receiver.take(piece)
    assert node.receiver.finish(RUN) == ("rank0.jsonl cannot be stored: Is a directory",)


@pytest.mark.parametrize(
    "damaged", [_tail(start=100), _tail(size=3), msgspec.structs.replace(_tail(), data=b"no zlib")]
)
def test_a_tail_that_is_lost_or_damaged_is_asked_for_again(damaged: LogTails, node: Node) -> None:
    node.receiver.expect(RUN)
    node.receiver.take(damaged)
    assert node.received().get("rank0.jsonl", b"") == b""
    assert node.receiver.lost(RUN) == ("rank0.jsonl",)
    assert node.receiver.lost(RUN) == ()


def test_a_log_whose_end_disagrees_with_its_tails_is_named(node: Node) -> None:
    node.receiver.expect(RUN)
    node.receiver.take(_tail())
    node.receiver.take(SENT)
    assert node.receiver.finish(RUN) == ("rank0.jsonl arrived damaged: 2 of 2 bytes, or with a wrong checksum",)


def test_tails_of_an_agent_of_protocol_5_are_kept_until_all_of_the_log_comes(node: Node) -> None:
    node.receiver.expect(RUN)
    node.receiver.take(_piece(is_tail=True, start=100))
    assert node.receiver.lost(RUN) == ()  # It sends all of the log in any case, and knows no such order.
    node.receiver.take(_piece(is_tail=True))
    assert node.received() == {"rank0.jsonl": b"1\n"}
    node.receiver.take(_piece(b"1\n2\n"))
    node.receiver.take(msgspec.structs.replace(SENT, size=4, sha256=hashlib.sha256(b"1\n2\n").hexdigest()))
    assert node.receiver.finish(RUN) == ()
    assert node.received() == {"rank0.jsonl": b"1\n2\n"}


def test_a_tail_behind_one_that_was_lost_is_left_to_the_end(node: Node) -> None:
    node.receiver.expect(RUN)
    node.receiver.take(_piece(is_tail=True))
    node.receiver.take(_piece(is_tail=True, start=100))
    assert node.received() == {"rank0.jsonl": b"1\n"}


def test_a_draft_is_removed_when_the_agent_is_gone(node: Node) -> None:
    node.receiver.expect(RUN)
    node.receiver.take(_piece())
    node.receiver.close()
    assert node.received() == {}


def test_a_file_of_a_run_that_was_not_ordered_is_refused(node: Node) -> None:
    with pytest.raises(Refused, match=f"run {RUN}, which it was not ordered to run"):
        node.receiver.take(_piece())


@pytest.mark.parametrize(
    "name",
    ["../rank0.jsonl", "/etc/passwd", "case.json", "summary.json", "rank0.jsonl\n", "rank0.jsonl/..", "trial0/../x",
     "rank.jsonl", "trial0/rank0.jsonl", ".rank0.jsonl.part", "rank0.jsonl\0", "rank0.py", "rank-1.err", ""],
)  # fmt: skip
def test_a_name_that_no_rank_writes_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"regex .* - at `\$\.name`"):
        msgspec.json.decode(msgspec.json.encode(_piece(name=name)), type=FromAgent)


def test_agents_of_an_engine_list_the_folder_of_a_resumed_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / RUN).mkdir()
    (tmp_path / RUN / "rank0.jsonl").write_bytes(b"before\n")
    listed = Counter[Path]()
    iterdir = Path.iterdir

    def counted(folder: Path) -> Iterator[Path]:
        listed[folder] += 1
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", counted)
    log_sizes = LogSizes(tmp_path)
    receivers = [FileReceiver(log_sizes) for _ in range(8)]
    for rank, receiver in enumerate(receivers):
        receiver.expect(RUN)
        piece = FilePiece(run=RUN, name=f"rank{rank}.jsonl", start=0, data=zlib.compress(b"after\n"), is_tail=True)
        receiver.take(piece)
    assert listed == {tmp_path / RUN: 1}
    assert (tmp_path / RUN / "rank0.jsonl").read_bytes() == b"before\nafter\n"
    assert (tmp_path / RUN / "rank7.jsonl").read_bytes() == b"after\n"
