"""A PCIe link's rate, and a counter that wraps made whole."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics.gpu_health import GPU_PCIE_BYTES
from collectors.nvml.fields import WholeCounter, link_bytes_per_second
from collectors.nvml.library import NVMLError
from collectors.nvml.recorder import AnswerTrack, RecordedGpu
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, opened, replayed, values

WRAP = 1 << 32


@pytest.mark.parametrize(
    ("generation", "lanes", "rate"),
    [(1, 16, 4.0e9), (3, 16, 15.754e9), (4, 8, 15.754e9), (5, 16, 63.015e9), (6, 16, 121.0e9)],
)
def test_a_link_carries_what_its_generation_and_lanes_allow(generation: int, lanes: int, rate: float) -> None:
    assert link_bytes_per_second(generation, lanes) == pytest.approx(rate, rel=1e-4)


def test_the_rate_of_a_generation_that_is_not_known_is_absent() -> None:
    assert link_bytes_per_second(9, 16) is None


def test_a_whole_counter_begins_at_nought_and_grows_as_the_counter_does() -> None:
    counter = WholeCounter()
    assert [counter.advance(raw, expected=None, most=1e9) for raw in (1000, 1500, 1500, 2500)] == [0, 500, 500, 1500]


def test_a_wrap_is_no_loss_where_the_link_cannot_have_wrapped_twice() -> None:
    counter = WholeCounter()
    assert [counter.advance(raw, expected=None, most=WRAP - 1) for raw in (WRAP - 10, 20)] == [0, 30]


@pytest.mark.parametrize("most", [WRAP, 16e9, None])
def test_a_growth_that_may_hide_a_wrap_is_unknown_and_what_follows_begins_anew(most: float | None) -> None:
    counter = WholeCounter()
    assert counter.advance(1000, expected=None, most=1e9) == 0
    assert counter.advance(1500, expected=None, most=1e9) == 500
    assert counter.advance(1700, expected=None, most=most) is None
    assert counter.advance(1800, expected=None, most=1e9) == 100


@pytest.mark.parametrize("wraps", [0, 1, 7, 15])
@pytest.mark.parametrize("error", [-0.4, 0.0, 0.4])
def test_many_wraps_are_told_by_an_expected_growth_that_errs_by_less_than_half_a_wrap(wraps: int, error: float) -> None:
    counter = WholeCounter()
    growth = wraps * WRAP + 123_456_789
    counter.advance(5, expected=None, most=None)
    assert counter.advance((5 + growth) % WRAP, expected=growth + error * WRAP, most=None) == growth


def test_a_counter_of_64_bits_is_taken_as_it_is() -> None:
    counter = WholeCounter()
    grown = [counter.advance(raw, expected=None, most=None) for raw in (WRAP + 5, 9 * WRAP, 9 * WRAP + 1)]
    assert grown == [0, 8 * WRAP - 5, 8 * WRAP - 4]


def test_a_gpu_that_wraps_its_counter_ten_times_between_two_beats_loses_no_byte() -> None:
    rate = 10 * WRAP + 777
    wrapping = AnswerTrack(at_s=[0.0, 1.0], values=[0, 777])
    gpu = a_gpu({"gpm(20)": rate / (1 << 20)})
    gpu.tracks["field(197)"] = wrapping
    clock = FakeClock()
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        collector.read()
        clock.now_s = 1.0
        assert GPU_PCIE_BYTES.at(rate, gpu="0", direction="sent") in collector.read()


def _before_hopper() -> RecordedGpu:
    """On a link of generation 4 with 16 lanes, which carries 31.5 GB/s; its counter grows by 777 a second."""
    return a_gpu(
        {
            "nvmlGpmQueryDeviceSupport": {"isSupportedDevice": 0},
            "nvmlDeviceGetMaxPcieLinkGeneration": 4,
            "field(197)": 0,
            "field(198)": 0,
        },
        refusals={},
    )


def _sent(beats_s: tuple[float, ...], gpu: RecordedGpu) -> tuple[list[float | None], tuple[str, ...]]:
    gpu.tracks["field(197)"] = AnswerTrack(at_s=[0.0, 600.0], values=[0, 600 * 777], is_line=True)
    clock = FakeClock()
    sent = []
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        for clock.now_s in beats_s:
            sent.append(values(collector.read(), gpu="0", direction="sent").get(GPU_PCIE_BYTES.name))
        return sent, collector.absent


def test_without_monitors_the_bytes_of_a_fast_link_are_left_out_at_slow_beats_with_the_reason() -> None:
    sent, absent = _sent((0.0, 1.0, 2.0), _before_hopper())
    assert sent == [0, None, None]
    (reason,) = [line for line in absent if "PCIe bytes sent" in line]
    assert "wraps every 4 GiB" in reason


def test_without_monitors_they_are_counted_at_beats_in_which_the_link_cannot_wrap_the_counter() -> None:
    sent, absent = _sent((0.0, 0.1, 0.2), _before_hopper())
    assert sent == [0, 78, 155]
    assert not any("PCIe bytes" in line for line in absent)


def test_where_monitors_have_not_seen_enough_yet_nothing_is_said_of_the_counter() -> None:
    sent, absent = _sent((0.0, 0.12), a_gpu({"field(198)": 0}))
    assert sent == [0, None]
    assert not any("PCIe bytes" in line for line in absent)


@pytest.mark.parametrize("whole_call", [True, False])
def test_after_a_beat_that_was_refused_the_bytes_are_counted_anew(whole_call: bool) -> None:
    clock, gpu = FakeClock(), _before_hopper()
    gpu.tracks["field(197)"] = AnswerTrack(at_s=[0.0, 600.0], values=[0, 600 * 777], is_line=True)
    nvml = replayed(a_node(gpu), clock)

    def refuse(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "nvmlDeviceGetFieldValues" and clock.now_s == 0.1:
            if whole_call:
                raise NVMLError(pynvml.NVML_ERROR_TIMEOUT)
            gpu.refusals["field(197)"] = pynvml.NVML_ERROR_TIMEOUT
        else:
            gpu.refusals.clear()

    sent = []
    with opened(FakeFault(nvml, spoil=refuse).spoilt, clock) as collector:
        for clock.now_s in (0.0, 0.1, 0.2, 0.3):
            sent.append(values(collector.read(), gpu="0", direction="sent").get(GPU_PCIE_BYTES.name))
    assert sent == [0, None, 0, 78]


def test_generation_and_lanes_are_told_of_a_generation_whose_rate_is_not_known() -> None:
    clock = FakeClock()
    gpu = a_gpu({f"nvmlDeviceGet{which}PcieLinkGeneration": 9 for which in ("Curr", "Max")})
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        found = values(collector.read(), gpu="0", link="now")
    assert (found[gpu_metrics.GPU_PCIE_GENERATION.name], found[gpu_metrics.GPU_PCIE_LANES.name]) == (9, 16)
    assert gpu_metrics.GPU_PCIE_LINK.name not in found


def test_a_maximum_that_is_refused_does_not_take_the_link_of_now_with_it() -> None:
    clock = FakeClock()
    gpu = a_gpu(without=("nvmlDeviceGetMaxPcieLinkGeneration",))
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        samples = [one for one in collector.read() if one.metric == gpu_metrics.GPU_PCIE_LANES.name]
    assert [one.labels["link"] for one in samples] == ["now"]
