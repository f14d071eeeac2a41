"""A PCIe link's rate, and a counter that wraps made whole."""

from __future__ import annotations

import pytest

from collectors.catalogue.gpu_links import GPU_PCIE_BYTES
from collectors.nvml.pcie import WholeCounter, link_bytes_per_second
from collectors.nvml.recording import Track
from tests.collectors.nvml.nodes import FakeClock, a_gpu, a_node, opened, replayed

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
    assert [counter.advance(raw, None) for raw in (1000, 1500, 1500, 2500)] == [0, 500, 500, 1500]


def test_a_wrap_is_no_loss() -> None:
    counter = WholeCounter()
    assert [counter.advance(raw, None) for raw in (WRAP - 10, 20)] == [0, 30]


@pytest.mark.parametrize("wraps", [0, 1, 7, 15])
@pytest.mark.parametrize("error", [-0.4, 0.0, 0.4])
def test_many_wraps_are_told_by_an_expected_growth_that_errs_by_less_than_half_a_wrap(wraps: int, error: float) -> None:
    counter = WholeCounter()
    growth = wraps * WRAP + 123_456_789
    counter.advance(5, None)
    assert counter.advance((5 + growth) % WRAP, growth + error * WRAP) == growth


def test_a_counter_of_64_bits_is_taken_as_it_is() -> None:
    counter = WholeCounter()
    assert [counter.advance(raw, 0.0) for raw in (WRAP + 5, 9 * WRAP, 9 * WRAP + 1)] == [0, 8 * WRAP - 5, 8 * WRAP - 4]


def test_a_gpu_that_wraps_its_counter_ten_times_between_two_beats_loses_no_byte() -> None:
    rate = 10 * WRAP + 777
    wrapping = Track(at_s=[0.0, 1.0], values=[0, 777])
    gpu = a_gpu({"gpm(20)": rate / (1 << 20)})
    gpu.tracks["field(197)"] = wrapping
    clock = FakeClock()
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        collector.read()
        clock.now_s = 1.0
        assert GPU_PCIE_BYTES.at(rate, gpu="0", direction="sent") in collector.read()
