"""A collector that hangs or fails is alone in it: the others are asked, and what is old says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from collectors.metrics.host import HOST_LOAD
from collectors.metrics.metric import Sample
from collectors.node.poller import HOLD_S, CollectorPoll, Poller
from collectors.node.registry import NodeCollector
from tests.collectors.fake_collectors import FakeCollector, FakeHang, ended, lose_its_way

SECOND = 1_000_000_000


class FakeClock:
    """Stands until the test moves it."""

    def __init__(self) -> None:
        self.now = 7 * SECOND

    def __call__(self) -> int:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


@contextmanager
def _hanging_second(clock: FakeClock) -> Iterator[tuple[Poller, FakeHang]]:
    """A poller of `slow`, whose second read hangs until it is let go, and of `good`."""
    hang = FakeHang()
    collectors = [FakeCollector("slow", at_read={1: hang}), FakeCollector("good")]
    with closing(Poller(collectors, deadline_s=0.01, clock_ns=clock)) as poller:
        try:
            yield poller, hang
        finally:
            hang.let_go()


def _states(parts: tuple[CollectorPoll, ...]) -> list[tuple[str, str, list[float]]]:
    return [(part.name, part.state, [sample.value for sample in part.samples]) for part in parts]


def test_each_collector_gives_its_part_in_order() -> None:
    clock = FakeClock()
    with closing(Poller([FakeCollector("a"), FakeCollector("b")], deadline_s=60, clock_ns=clock)) as poller:
        poller.poll()
        clock.pass_s(1)
        parts = poller.poll()
    expected = [
        CollectorPoll(
            name=name,
            state="answering",
            samples=[HOST_LOAD.at(2)],
            at_ns=8 * SECOND,
            read_s=0.0,
            read_samples=2,
            read_fields=2,
        )
        for name in ("a", "b")
    ]
    assert list(parts) == expected


def test_the_time_of_reads_is_added_up() -> None:
    clock = FakeClock()
    slow = FakeCollector(at_read={0: lambda: clock.pass_s(0.25), 1: lambda: clock.pass_s(0.5)})
    with closing(Poller([slow], deadline_s=60, clock_ns=clock)) as poller:
        assert [poller.poll()[0].read_s for _ in range(3)] == [0.25, 0.75, 0.75]


def test_samples_that_a_collector_repeats_are_no_fields_that_it_read_again() -> None:
    class FakeRepeating(FakeCollector):
        slow = HOST_LOAD.at(7)

        def read(self) -> list[Sample]:
            return [self.slow, *super().read()]

    with closing(Poller([FakeRepeating()], deadline_s=60)) as poller:
        parts = [poller.poll()[0] for _ in range(3)]
    assert [part.read_samples for part in parts] == [2, 4, 6]
    assert [part.read_fields for part in parts] == [2, 3, 4]


def test_a_collector_that_counts_its_fields_itself_is_believed() -> None:
    class FakeCounting(FakeCollector):
        @property
        def fields_requested(self) -> int:
            return 10 * self.reads

    with closing(Poller([FakeCounting()], deadline_s=60)) as poller:
        assert [poller.poll()[0].read_fields for _ in range(2)] == [10, 20]


def test_one_that_hangs_shows_what_it_said_last_and_the_others_go_on() -> None:
    with _hanging_second(FakeClock()) as (poller, _):
        seen = [_states(poller.poll()) for _ in range(3)]
    assert seen == [
        [("slow", "answering", [1]), ("good", "answering", [1])],
        [("slow", "late", [1]), ("good", "answering", [2])],
        [("slow", "late", [1]), ("good", "answering", [3])],
    ]
    assert poller.absent == ("slow: sometimes no answer within 0.01 s; its last answer is shown meanwhile",)


def test_what_is_too_old_is_shown_no_more() -> None:
    clock = FakeClock()
    with _hanging_second(clock) as (poller, _):
        for _ in range(2):
            poller.poll()
        clock.pass_s(HOLD_S)
        assert _states(poller.poll())[0] == ("slow", "late", [1])
        clock.pass_s(0.001)
        assert _states(poller.poll())[0] == ("slow", "late", [])


def test_what_is_old_is_held_for_as_long_as_one_says() -> None:
    clock, hang = FakeClock(), FakeHang()
    with closing(
        Poller([FakeCollector("slow", at_read={1: hang})], deadline_s=0.01, hold_s=180, clock_ns=clock)
    ) as one:
        try:
            for _ in range(2):
                one.poll()
            clock.pass_s(180)
            assert _states(one.poll()) == [("slow", "late", [1])]
            clock.pass_s(0.001)
            assert _states(one.poll()) == [("slow", "late", [])]
        finally:
            hang.let_go()


def test_one_that_answers_again_is_late_no_more() -> None:
    has_read = threading.Event()
    hang = FakeHang()
    slow = FakeCollector("slow", at_read={0: hang, 1: has_read.set})
    with closing(Poller([slow], deadline_s=0.5)) as poller:
        assert _states(poller.poll()) == [("slow", "late", [])]
        hang.let_go()
        while poller.poll()[0].state == "late":
            time.sleep(0.05)  # As between beats: the answer is there when it is asked again.
            assert slow.reads < 20, "it stays late for ever"
    assert has_read.is_set()
    assert slow.closed == 1


def test_one_that_raises_is_asked_no_more_and_the_others_go_on() -> None:
    good, bad = FakeCollector("good"), FakeCollector("bad", at_read={1: lose_its_way})
    with closing(Poller([bad, good], deadline_s=60)) as poller:
        seen = [_states(poller.poll()) for _ in range(3)]
    assert seen[0] == [("bad", "answering", [1]), ("good", "answering", [1])]
    assert seen[1:] == [[("bad", "failed", []), ("good", "answering", [number])] for number in (2, 3)]
    assert (bad.reads, good.reads) == (2, 3)
    assert poller.absent == ("bad: lost my way; its samples end here",)
    assert (bad.closed, good.closed) == (1, 1)


def test_what_collectors_cannot_give_is_said_once_and_when_it_becomes_so() -> None:
    late = FakeCollector(absent=("no driver",))
    with closing(Poller([late, FakeCollector(absent=("no driver",))], deadline_s=60)) as poller:
        said = [poller.absent]
        poller.poll()
        said.append(poller.absent)
        late.absent = ("no driver", "GPU 1 is lost")
        poller.poll()
        said.append(poller.absent)
    assert said == [(), ("no driver",), ("no driver", "GPU 1 is lost")]


def test_at_the_end_all_are_closed_but_one_that_hangs() -> None:
    hang = FakeHang()
    hanging, good = FakeCollector("hanging", at_read={0: hang}), FakeCollector("good")
    poller = Poller([hanging, good], deadline_s=0.01)
    poller.poll()
    assert hang.has_begun.wait(60)
    poller.close()
    assert (hanging.closed, good.closed) == (0, 1)
    hang.let_go()
    ended("collector-hanging")


def test_one_that_cannot_be_closed_keeps_no_other_open() -> None:
    class Broken(FakeCollector):
        def close(self) -> None:
            raise OSError("stuck")

    good = FakeCollector("good")
    collectors: list[NodeCollector] = [good, Broken("broken")]
    with pytest.raises(OSError, match="stuck"):
        Poller(collectors).close()
    assert good.closed == 1
