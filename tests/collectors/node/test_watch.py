"""The watch polls on its beat and never in a scrape, says what it costs, and closes what it opened."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from prometheus_client import generate_latest

from collectors.metrics import agent
from collectors.metrics.gpu import GPU_STATE
from collectors.metrics.host import HOST_LOAD
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.registry import METRICS
from collectors.node.registry import NodeCollector
from collectors.node.watch import NodeWatch
from collectors.nvml.collector import NvmlCollector
from collectors.prometheus.exposition import Exporter
from tests.collectors.fake_collectors import FakeCollector, FakeHang, ended, lose_its_way
from tests.collectors.nvml.nodes import FakeClock, eight_gpus, replayed

SECOND = 1_000_000_000


class FakeTime:
    """Stands between beats until the test lets one come; `tick` returns when the watch waits again."""

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self._ticks = threading.Semaphore(0)
        self._is_waiting = threading.Semaphore(0)

    def clock_ns(self) -> int:
        return self.now

    def wait(self, told: threading.Event, seconds: float) -> bool:
        self._is_waiting.release()
        while not self._ticks.acquire(timeout=0.01):
            if told.is_set():
                return True
        self.now += round(seconds * SECOND)
        return False

    def tick(self) -> None:
        self._ticks.release()
        self.settle()

    def settle(self) -> None:
        """The watch waits for its next beat."""
        assert self._is_waiting.acquire(timeout=60)


def _watch(
    time: FakeTime,
    *collectors: NodeCollector,
    notices: list[str] | None = None,
    on_beat: Callable[[], None] = lambda: None,
    opener: Callable[[], Sequence[NodeCollector]] | None = None,
    beat_s: float = 1.0,
) -> NodeWatch:
    heard = [] if notices is None else notices
    return NodeWatch(
        opener or (lambda: collectors),
        beat_s=beat_s,
        on_notice=heard.append,
        on_beat=on_beat,
        clock_ns=time.clock_ns,
        cpu_s=lambda: 12.5,
        wait=time.wait,
    )


def _values(watch: NodeWatch, metric: Metric) -> list[tuple[float, dict[str, str]]]:
    assert all(owner == {} for _, owner in watch.samples())
    return [(sample.value, sample.labels) for sample, _ in watch.samples() if sample.metric == metric.name]


def test_it_polls_at_once_and_on_each_beat() -> None:
    time, collector = FakeTime(), FakeCollector()
    with _watch(time, collector) as watch:
        time.settle()
        assert _values(watch, HOST_LOAD) == [(1, {})]
        time.tick()
        assert _values(watch, HOST_LOAD) == [(2, {})]


def test_a_scrape_polls_nothing_and_shows_how_old_the_last_answer_is() -> None:
    time, collector = FakeTime(), FakeCollector("fake")
    with _watch(time, collector) as watch:
        time.settle()
        time.now += round(0.75 * SECOND)
        for _ in range(5):
            assert _values(watch, agent.AGENT_AGE_SECONDS) == [(0.75, {"collector": "fake"})]
    assert collector.reads == 1


def test_the_agents_own_cost_is_told() -> None:
    time = FakeTime()
    with _watch(time, FakeCollector("a"), FakeCollector("b", at_read={2: lambda: _pass(time, 2.5)})) as watch:
        time.settle()
        for _ in range(2):
            time.tick()
        assert _values(watch, agent.AGENT_CPU_SECONDS) == [(12.5, {})]
        assert _values(watch, agent.AGENT_BEAT_SECONDS) == [(1.0, {})]
        assert _values(watch, agent.AGENT_BEATS) == [(3, {})]
        assert _values(watch, agent.AGENT_MISSED_BEATS) == [(2, {})]
        assert _values(watch, agent.AGENT_LATENESS_SECONDS) == [(0, {})]
        assert _values(watch, agent.AGENT_SAMPLES) == [(3, {"collector": "a"}), (3, {"collector": "b"})]
        assert _values(watch, agent.AGENT_FIELDS) == [(3, {"collector": "a"}), (3, {"collector": "b"})]
        assert _values(watch, agent.AGENT_READ_SECONDS)[1] == (2.5, {"collector": "b"})


def _pass(time: FakeTime, seconds: float) -> None:
    time.now += round(seconds * SECOND)


def test_before_the_first_answer_the_agent_tells_of_itself_alone() -> None:
    has_opened = threading.Event()

    def open_slowly() -> Sequence[NodeCollector]:
        has_opened.wait()
        return [FakeCollector()]

    time = FakeTime()
    with _watch(time, opener=open_slowly) as watch:
        shown = {sample.metric for sample, _ in watch.samples()}
        assert shown == {agent.AGENT_CPU_SECONDS.name, agent.AGENT_BEAT_SECONDS.name}
        has_opened.set()
        time.settle()
        assert _values(watch, HOST_LOAD) == [(1, {})]


def test_a_collector_that_fails_says_so_and_has_no_age() -> None:
    time, notices = FakeTime(), list[str]()
    bad = FakeCollector("bad", at_read={1: lose_its_way})
    with _watch(time, bad, FakeCollector("good"), notices=notices) as watch:
        time.settle()
        time.tick()
        states = [labels for _, labels in _values(watch, agent.AGENT_COLLECTOR)]
        assert states == [{"collector": "bad", "state": "failed"}, {"collector": "good", "state": "answering"}]
        assert [labels for _, labels in _values(watch, agent.AGENT_AGE_SECONDS)] == [{"collector": "good"}]
    assert notices == ["bad: lost my way; its samples end here"]


def test_at_its_end_the_collectors_are_closed() -> None:
    time, collector = FakeTime(), FakeCollector()
    with _watch(time, collector):
        time.settle()
        assert collector.closed == 0
    assert collector.closed == 1


@pytest.mark.timeout(30)
def test_one_that_never_answers_keeps_neither_the_others_nor_the_end_waiting() -> None:
    hang, time = FakeHang(), FakeTime()
    hanging, good = FakeCollector("hanging", at_read={0: hang}), FakeCollector("good")
    with _watch(time, hanging, good) as watch:
        time.settle()
        assert _values(watch, HOST_LOAD) == [(1, {})]
    assert (hanging.closed, good.closed) == (0, 1)
    hang.let_go()
    ended("collector-hanging")


@pytest.mark.timeout(30)
def test_a_collector_has_less_than_a_beat_to_answer() -> None:
    hang, time, notices = FakeHang(), FakeTime(), list[str]()
    with _watch(time, FakeCollector("slow", at_read={0: hang}), notices=notices, beat_s=0.1):
        time.settle()
    assert notices == ["slow: sometimes no answer within 0.09 s; its last answer is shown meanwhile"]
    hang.let_go()
    ended("collector-slow")


@pytest.mark.timeout(30)
def test_at_a_long_beat_the_last_answer_is_held_for_three() -> None:
    hang, time = FakeHang(), FakeTime()
    with _watch(time, FakeCollector("slow", at_read={1: hang}), beat_s=60.0) as watch:
        time.settle()
        seen = []
        for _ in range(4):
            time.tick()
            seen.append(_values(watch, HOST_LOAD))
        hang.let_go()
    assert seen == [[(1, {})]] * 3 + [[]]


def test_what_is_done_at_each_beat_may_fail_and_the_node_is_watched() -> None:
    time, notices = FakeTime(), list[str]()
    with _watch(time, FakeCollector(), notices=notices, on_beat=lose_its_way) as watch:
        time.settle()
        time.tick()
        assert _values(watch, HOST_LOAD) == [(2, {})]
    assert set(notices) == {"the work after a poll failed: lost my way"}


def test_processes_are_those_that_gpus_were_asked_for() -> None:
    clock, time = FakeClock(now_s=0.0), FakeTime()
    nvml = replayed(eight_gpus(), clock)
    with _watch(time, FakeCollector(), NvmlCollector(nvml, clock_ns=clock.ns)) as watch:
        time.settle()
        assert watch.processes() == {}
        clock.now_s = 120.0
        asked = {**{4000 + gpu: [str(gpu)] for gpu in range(7)}, 5000: ["7"], 5001: ["7"]}
        found: dict[int, list[str]] = {}
        while found != asked:  # A GPU that answers late, on a busy machine, is there at the next beat.
            time.tick()
            found = {pid: [process.gpu for process in processes] for pid, processes in watch.processes().items()}
        assert len(_values(watch, GPU_STATE)) == 8


def test_all_that_it_shows_is_of_the_catalogue() -> None:
    time, clock, refused = FakeTime(), FakeClock(), list[str]()
    with _watch(time, NvmlCollector(replayed(eight_gpus(), clock), clock_ns=clock.ns)) as watch:
        time.settle()
        body = generate_latest(Exporter(METRICS, [watch.samples], on_notice=refused.append))
    assert refused == []
    assert agent.AGENT_COLLECTOR.name.encode() in body


def test_samples_of_the_node_are_the_collectors_alone() -> None:
    time = FakeTime()
    with _watch(time, FakeCollector()) as watch:
        time.settle()
        assert watch.node_samples() == [Sample(HOST_LOAD.name, 1.0, {})]
