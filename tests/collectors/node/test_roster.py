"""The roster's collectors open, each on its own, and know when they are closed."""

from contextlib import closing

import pytest

from collectors.node.registry import OPENERS, GpuCollector, NodeCollector, PollingConfig, open_collectors, open_nvml
from collectors.nvml.collector import NvmlCollector
from tests.collectors.fake_collectors import FakeCollector
from tests.collectors.nvml.nodes import FakeClock, eight_gpus, replayed


def test_a_collector_that_cannot_be_opened_fails_no_other() -> None:
    def broken(polling: PollingConfig) -> NodeCollector:
        raise OSError("no such device")

    good = FakeCollector("good")
    opened = open_collectors(openers=(("broken", broken), ("good", lambda polling: good)))
    assert [collector.name for collector in opened] == ["broken", "good"]
    assert opened[0].read() == []
    assert opened[0].absent == ("broken: cannot be opened (no such device); its samples are left out",)
    assert opened[1] is good
    opened[0].close()


def test_every_collector_of_the_roster_opens_under_its_name_and_says_why_it_gives_nothing() -> None:
    opened = open_collectors()
    assert [collector.name for collector in opened] == [name for name, _ in OPENERS]
    for collector in opened:
        with closing(collector):
            assert collector.read() or collector.absent


def test_who_knows_the_processes_on_gpus_is_told_from_who_does_not() -> None:
    with closing(NvmlCollector()) as nvml:
        assert isinstance(nvml, GpuCollector)
    assert not isinstance(FakeCollector(), GpuCollector)


def test_each_collector_is_opened_for_what_is_wanted() -> None:
    polling, heard = PollingConfig(beat_s=0.1, per_nvlink=True), list[PollingConfig]()

    def listening(one: PollingConfig) -> NodeCollector:
        heard.append(one)
        return FakeCollector()

    open_collectors(polling, (("a", listening), ("b", listening)))
    assert heard == [polling, polling]


@pytest.mark.parametrize("per_nvlink", [True, False])
def test_bytes_of_each_nvlink_are_shown_where_they_are_wanted(per_nvlink: bool) -> None:
    nvml = replayed(eight_gpus(), FakeClock())
    with closing(open_nvml(PollingConfig(per_nvlink=per_nvlink), nvml)) as collector:
        asked = {standing.question for standing in collector.support()} if collector.read() else set()
    assert any(question.startswith("NVLink 0 bytes") for question in asked) == per_nvlink
