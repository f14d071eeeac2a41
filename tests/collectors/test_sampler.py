"""The sampler polls on the beat, survives what it polls, and ends when told; its clock is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from collectors.catalogue import host
from collectors.metric import Sample
from collectors.roster import OPENERS, NodeCollector, open_collectors
from collectors.sample_log import NodeOpened, Note, Polled, Record, SampleLog, read
from collectors.sampler import Sampler, open_node_log, polling

SECOND = 1_000_000_000
needs_full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full, a disk that is always full")


class FakeTime:
    """A clock that only waiting and `pass_s` move; tells to stop when its waits are over."""

    def __init__(self, waits: int) -> None:
        self.now = 5 * SECOND + 17
        self.waited_s: list[float] = []
        self._left = waits

    def clock_ns(self) -> int:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.waited_s.append(seconds)
        self.now += round(seconds * SECOND)
        self._left -= 1
        return self._left < 0

    def pass_s(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


class FakeCollector:
    """Counts its reads into its samples. at_read: what else happens at a read, by its number."""

    def __init__(
        self, name: str = "fake", absent: tuple[str, ...] = (), at_read: dict[int, Callable[[], None]] | None = None
    ) -> None:
        self.name = name
        self.absent = absent
        self.reads = 0
        self._at_read = at_read or {}

    def read(self) -> list[Sample]:
        self.reads += 1
        self._at_read.get(self.reads - 1, lambda: None)()
        return [host.HOST_LOAD.at(self.reads)]


def _sample(path: Path, time: FakeTime, *collectors: NodeCollector, trial: int = 0) -> Sampler:
    log = open_node_log(path, run="r", node=0, now_ns=lambda: 1)
    with Sampler(
        collectors, log, trial=trial, stop_s=60, now_ns=time.clock_ns, clock_ns=time.clock_ns, wait=time.wait
    ) as sampler:
        pass
    return sampler


def _polled(path: Path) -> list[Polled]:
    return [record for record in read(path).records if isinstance(record, Polled)]


def _times_s(path: Path) -> list[float]:
    return [(record.time_ns - 5 * SECOND - 17) / SECOND for record in _polled(path)]


def _notes(path: Path) -> list[str]:
    return [record.text for record in read(path).records if isinstance(record, Note)]


def _raise() -> None:
    raise RuntimeError("lost my way")


def test_it_polls_at_once_on_each_beat_and_at_the_end(tmp_path: Path) -> None:
    sampler = _sample(tmp_path / "node0.jsonl", FakeTime(waits=3), FakeCollector())
    assert _times_s(tmp_path / "node0.jsonl") == [0, 1, 2, 3, 4]
    assert (sampler.missed, sampler.problem, sampler.absent) == (0, None, ())


def test_a_log_says_whose_it_is_then_what_was_polled(tmp_path: Path) -> None:
    _sample(tmp_path / "node0.jsonl", FakeTime(waits=0), FakeCollector("a"), FakeCollector("b"))
    first, *rest = read(tmp_path / "node0.jsonl").records
    assert isinstance(first, NodeOpened)
    assert (first.run, first.node, first.time_ns) == ("r", 0, 1)
    begun_ns = 5 * SECOND + 17
    expected: list[Record] = [
        Polled(time_ns=begun_ns + beat * SECOND, samples=[host.HOST_LOAD.at(beat + 1)] * 2) for beat in (0, 1)
    ]
    assert rest == expected


def test_a_slow_poll_shortens_the_wait_and_moves_no_beat(tmp_path: Path) -> None:
    time = FakeTime(waits=2)
    _sample(tmp_path / "log", time, FakeCollector(at_read={1: lambda: time.pass_s(0.75)}))
    assert time.waited_s == [1.0, 0.25, 1.0]
    assert _times_s(tmp_path / "log") == [0, 1, 2, 3]


def test_beats_that_went_by_are_skipped_and_counted_and_never_bunched(tmp_path: Path) -> None:
    time = FakeTime(waits=3)
    sampler = _sample(tmp_path / "log", time, FakeCollector(at_read={1: lambda: time.pass_s(3.5)}))
    assert _times_s(tmp_path / "log") == [0, 1, 5, 6, 7]
    assert sampler.missed == 3
    assert _notes(tmp_path / "log") == ["node: 3 of 7 beats of 1 s were missed"]


def test_a_collector_that_raises_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    good = FakeCollector("good")
    bad = FakeCollector("bad", at_read={1: _raise})
    sampler = _sample(tmp_path / "log", FakeTime(waits=3), bad, good)
    assert (bad.reads, good.reads) == (2, 5)
    assert [len(record.samples) for record in _polled(tmp_path / "log")] == [2, 1, 1, 1, 1]
    assert sampler.absent == ("bad: RuntimeError: lost my way; its samples end here",)
    assert sampler.problem is None


def test_what_is_absent_is_noted_once_a_trial_and_when_it_becomes_so(tmp_path: Path) -> None:
    path = tmp_path / "log"

    def lose() -> None:
        late.absent = ("no driver", "GPU 1 is lost")

    late = FakeCollector(absent=("no driver",), at_read={2: lose})
    _sample(path, FakeTime(waits=3), late, trial=4)
    notes = [record for record in read(path).records if isinstance(record, Note)]
    assert [(note.trial, note.text) for note in notes] == [(4, "no driver"), (4, "GPU 1 is lost")]
    assert [round((note.time_ns - 5 * SECOND - 17) / SECOND) for note in notes] == [0, 2]


def test_a_second_trial_appends_to_the_log_of_its_run(tmp_path: Path) -> None:
    for _ in range(2):
        _sample(tmp_path / "log", FakeTime(waits=0), FakeCollector())
    kinds = [type(record) for record in read(tmp_path / "log").records]
    assert kinds == [NodeOpened, Polled, Polled] * 2


@needs_full_disk
def test_a_disk_that_fills_up_ends_the_polling_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "node0.jsonl"
    path.symlink_to("/dev/full")
    collector, time = FakeCollector(), FakeTime(waits=5)
    with Sampler([collector], SampleLog(path), trial=0, stop_s=60, clock_ns=time.clock_ns, wait=time.wait) as sampler:
        pass
    assert collector.reads == 1
    assert sampler.problem == f"the node's log cannot be written: No space left on device: {path}"


def test_a_clock_that_is_set_back_moves_no_beat(tmp_path: Path) -> None:
    time = FakeTime(waits=2)
    walls = iter([9 * SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND])
    log = open_node_log(tmp_path / "log", run="r", node=0)
    with Sampler(
        [FakeCollector()], log, trial=0, stop_s=60, now_ns=lambda: next(walls), clock_ns=time.clock_ns, wait=time.wait
    ):
        pass
    assert [record.time_ns // SECOND for record in _polled(tmp_path / "log")] == [9, 2, 3, 4]
    assert time.waited_s == [1.0, 1.0, 1.0]


def test_told_to_stop_it_does_not_wait_for_the_beat(tmp_path: Path) -> None:
    log = open_node_log(tmp_path / "log", run="r", node=0)
    has_polled = threading.Event()
    with Sampler([FakeCollector(at_read={0: has_polled.set})], log, trial=0, beat_s=86_400, stop_s=60) as sampler:
        has_polled.wait()
    assert sampler.problem is None
    assert len(_polled(tmp_path / "log")) == 2


def test_a_driver_that_does_not_answer_is_left_behind_and_writes_no_more(tmp_path: Path) -> None:
    log = open_node_log(tmp_path / "log", run="r", node=0)
    is_asked, answers = threading.Event(), threading.Event()

    def hang() -> None:
        is_asked.set()
        answers.wait()

    with Sampler([FakeCollector(at_read={0: hang})], log, trial=0, stop_s=0.01) as sampler:
        is_asked.wait()
    (left_behind,) = [thread for thread in threading.enumerate() if thread.name == "node-sampler"]
    answers.set()
    left_behind.join()
    assert sampler.problem == "the node's collectors did not answer within 0.01 s and were left behind"
    assert _polled(tmp_path / "log") == []


def test_a_node_is_polled_while_what_is_inside_goes_on(tmp_path: Path) -> None:
    problems: list[str] = []
    collector = FakeCollector()
    with polling([collector], tmp_path / "log", run="r", node=3, trial=0, on_problem=problems.append):
        pass
    opened, *polled = read(tmp_path / "log").records
    assert isinstance(opened, NodeOpened)
    assert (opened.run, opened.node) == ("r", 3)
    assert len(polled) == collector.reads == 2
    assert problems == []


def test_a_log_that_cannot_be_opened_is_said_and_ends_nothing(tmp_path: Path) -> None:
    problems: list[str] = []
    path = tmp_path / "gone" / "node0.jsonl"
    is_done = False
    with polling([FakeCollector()], path, run="r", node=0, trial=0, on_problem=problems.append):
        is_done = True
    assert is_done
    assert problems == [f"the node's log cannot be written: No such file or directory: {path}"]


@needs_full_disk
def test_a_log_that_cannot_be_begun_is_said_and_leaves_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "node0.jsonl"
    path.symlink_to("/dev/full")
    problems: list[str] = []
    before = psutil.Process().num_fds()
    with polling([FakeCollector()], path, run="r", node=0, trial=0, on_problem=problems.append):
        pass
    assert problems == [f"the node's log cannot be written: No space left on device: {path}"]
    assert psutil.Process().num_fds() == before


def test_a_collector_that_cannot_be_opened_fails_no_other() -> None:
    def broken() -> NodeCollector:
        raise OSError("no such device")

    good = FakeCollector("good")
    opened = open_collectors((("broken", broken), ("good", lambda: good)))
    assert [collector.name for collector in opened] == ["broken", "good"]
    assert opened[0].read() == []
    assert opened[0].absent == ("broken: cannot be opened (OSError: no such device); its samples are left out",)
    assert opened[1] is good


def test_every_collector_of_the_roster_opens_under_its_name_and_says_why_it_gives_nothing() -> None:
    opened = open_collectors()
    assert [collector.name for collector in opened] == [name for name, _ in OPENERS]
    for collector in opened:
        assert collector.read() or collector.absent
