"""The sampler polls on the beat, survives what it polls, and ends when told; its clock is the test's."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import psutil

from collectors.metrics import host
from collectors.node.poller import Poller
from collectors.node.registry import NodeCollector
from collectors.node.watch import Sampler, polling
from collectors.sample_log import Changed, NodeOpened, NodeState, Note, Polled, Record, SampleLog, open_node_log, read
from tests.bench.made.small_disk import on_a_full_disk
from tests.collectors.fake_collectors import FakeCollector, FakeHang, ended, lose_its_way

SECOND = 1_000_000_000


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


def _sample(path: Path, time: FakeTime, *collectors: NodeCollector, trial: int = 0) -> Sampler:
    log = open_node_log(path, run="r", node=0, now_ns=lambda: 1)
    with (
        closing(_poller(collectors)) as poller,
        Sampler(
            poller, log, trial=trial, stop_s=60, now_ns=time.clock_ns, clock_ns=time.clock_ns, wait=time.wait
        ) as sampler,
    ):
        pass
    return sampler


def _poller(collectors: Iterable[NodeCollector]) -> Poller:
    """One that waits for a slow machine."""
    return Poller(collectors, deadline_s=60)


def _polled(path: Path) -> list[Polled | Changed]:
    return [record for record in read(path).records if isinstance(record, Polled | Changed)]


def _times_s(path: Path) -> list[float]:
    return [(record.time_ns - 5 * SECOND - 17) / SECOND for record in _polled(path)]


def _loads(path: Path) -> list[list[float]]:
    state = NodeState()
    return [[sample.value for sample in state.samples] for record in read(path).records if state.take(record)]


def _notes(path: Path) -> list[str]:
    return [record.text for record in read(path).records if isinstance(record, Note)]


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
        Polled(time_ns=begun_ns, samples=[host.HOST_LOAD.at(1)] * 2),
        Changed(time_ns=begun_ns + SECOND, since_ns=begun_ns, values=[(0, 2.0), (1, 2.0)]),
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


def test_a_collector_that_raises_is_noted_and_the_others_go_on(tmp_path: Path) -> None:
    good = FakeCollector("good")
    bad = FakeCollector("bad", at_read={1: lose_its_way})
    sampler = _sample(tmp_path / "log", FakeTime(waits=3), bad, good)
    assert (bad.reads, good.reads) == (2, 5)
    assert _loads(tmp_path / "log") == [[1, 1], [2], [3], [4], [5]]
    assert sampler.absent == ("bad: lost my way; its samples end here",)
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
    assert kinds == [NodeOpened, Polled, Changed] * 2


def test_a_disk_that_fills_up_ends_the_polling_with_its_reason(tmp_path: Path) -> None:
    collector, time = FakeCollector(), FakeTime(waits=5)
    with (
        on_a_full_disk(tmp_path / "node0.jsonl") as path,
        closing(_poller([collector])) as poller,
        Sampler(poller, SampleLog(path), trial=0, stop_s=60, clock_ns=time.clock_ns, wait=time.wait) as sampler,
    ):
        pass
    assert collector.reads == 1
    assert sampler.problem == f"the node's log cannot be written: No space left on device: {path}"


def test_a_clock_that_is_set_back_moves_no_beat(tmp_path: Path) -> None:
    time = FakeTime(waits=2)
    walls = iter([9 * SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND])
    log = open_node_log(tmp_path / "log", run="r", node=0)
    with (
        closing(_poller([FakeCollector()])) as poller,
        Sampler(poller, log, trial=0, stop_s=60, now_ns=lambda: next(walls), clock_ns=time.clock_ns, wait=time.wait),
    ):
        pass
    assert [record.time_ns // SECOND for record in _polled(tmp_path / "log")] == [9, 2, 3, 4]
    assert time.waited_s == [1.0, 1.0, 1.0]


def test_told_to_stop_it_does_not_wait_for_the_beat(tmp_path: Path) -> None:
    log = open_node_log(tmp_path / "log", run="r", node=0)
    has_polled = threading.Event()
    with (
        closing(_poller([FakeCollector(at_read={0: has_polled.set})])) as poller,
        Sampler(poller, log, trial=0, beat_s=86_400, stop_s=60) as sampler,
    ):
        has_polled.wait()
    assert sampler.problem is None
    assert len(_polled(tmp_path / "log")) == 2


def test_a_poll_that_does_not_end_is_left_behind_and_writes_no_more(tmp_path: Path) -> None:
    log = open_node_log(tmp_path / "log", run="r", node=0)
    hang = FakeHang()
    with closing(_poller([FakeCollector(at_read={0: hang})])) as poller:
        with Sampler(poller, log, trial=0, stop_s=0.01) as sampler:
            hang.has_begun.wait()
        hang.let_go()
        ended("node-sampler")
    assert sampler.problem == "the node's last poll did not end within 0.01 s and was abandoned"
    assert _polled(tmp_path / "log") == []


def test_a_collector_that_hangs_is_noted_and_the_others_are_logged(tmp_path: Path) -> None:
    hang, time = FakeHang(), FakeTime(waits=1)
    slow = FakeCollector("slow", at_read={0: hang})
    with closing(Poller([slow, FakeCollector("good")], deadline_s=0.01)) as poller:
        log = open_node_log(tmp_path / "log", run="r", node=0)
        with Sampler(poller, log, trial=0, stop_s=60, clock_ns=time.clock_ns, wait=time.wait) as sampler:
            pass
        hang.let_go()
    assert sampler.problem is None
    assert _loads(tmp_path / "log") == [[1], [2], [3]]
    assert _notes(tmp_path / "log") == ["slow: sometimes no answer within 0.01 s; its last answer is shown meanwhile"]


def test_a_node_is_polled_while_what_is_inside_goes_on(tmp_path: Path) -> None:
    problems: list[str] = []
    collector = FakeCollector()
    with (
        closing(_poller([collector])) as poller,
        polling(poller, tmp_path / "log", run="r", node=3, trial=0, on_problem=problems.append),
    ):
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
    with (
        closing(_poller([FakeCollector()])) as poller,
        polling(poller, path, run="r", node=0, trial=0, on_problem=problems.append),
    ):
        is_done = True
    assert is_done
    assert problems == [f"the node's log cannot be written: No such file or directory: {path}"]


def test_a_log_that_cannot_be_begun_is_said_and_leaves_no_file_open(tmp_path: Path) -> None:
    problems: list[str] = []
    with on_a_full_disk(tmp_path / "node0.jsonl") as path:
        before = psutil.Process().num_fds()
        with (
            closing(_poller([FakeCollector()])) as poller,
            polling(poller, path, run="r", node=0, trial=0, on_problem=problems.append),
        ):
            pass
        assert problems == [f"the node's log cannot be written: No space left on device: {path}"]
        assert psutil.Process().num_fds() == before
