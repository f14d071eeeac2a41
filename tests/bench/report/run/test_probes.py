"""The tables of a probe, and what stands below them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from bench.report.run.probes import probe_blocks
from bench.report.table import print_page
from bench.results.estimate import Estimate, estimate
from collectors.metrics import probes as probes_metrics
from tests.bench.machine.doctor.runs import probe

TIMES_S = (0.0018, 0.0020, 0.0022)


def _time(algorithm: str = "library", collective: str = "all_reduce", times_s: tuple[float, ...] = TIMES_S) -> Estimate:
    return estimate(
        probes_metrics.RUN_COLLECTIVE_SECONDS, times_s, collective=collective, algorithm=algorithm, size="1000000"
    )


def _busbw(collective: str, rates: tuple[float, ...] = (1e9,)) -> Estimate:
    return estimate(
        probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, rates, collective=collective, algorithm="library", size="1000000"
    )


def _total(account: str, count: float) -> Estimate:
    labels = {"collective": "all_reduce", "algorithm": "ring", "size": "1000000", "account": account}
    return estimate(probes_metrics.RUN_COLLECTIVE_TOTAL_BYTES, [count], **labels)


def _choice() -> Estimate:
    labels = {"collective": "all_reduce", "size": "1000000", "chosen": "Ring", "protocol": "LL128"}
    return estimate(probes_metrics.RUN_COLLECTIVE_CHOICE, [1], **labels)


def _printed(strategy: str, *found: Estimate, **changes: Any) -> list[str]:
    text = io.StringIO()
    print_page(probe_blocks(probe("run-a", strategy, *found, **changes)), Console(file=text, width=80))
    return text.getvalue().splitlines()


def _row(lines: list[str], first: str) -> str:
    (found,) = [line for line in lines if line.startswith(f"{first} ") and "1000000" in line]
    return found


def test_times_with_the_host_stand_beside_the_devices_where_there_are_some() -> None:
    labels = {"collective": "all_reduce", "algorithm": "library", "size": "1000000"}
    lines = _printed(
        "collectives", _time(), estimate(probes_metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS, (0.0345,), **labels)
    )
    assert "with host" in lines[0]
    assert _row(lines, "all_reduce").split()[-1] == "34,500"
    assert any(line.startswith("times are the device's alone") for line in lines)
    assert not [line for line in _printed("collectives", _time()) if "with host" in line or "with the host" in line]


def test_rates_with_the_host_stand_beside_the_devices() -> None:
    shape = {"m": "8", "n": "8", "k": "8"}
    product = estimate(probes_metrics.RUN_MATMUL_FLOPS, (7e12,), **shape)
    lines = _printed("matmul", product, estimate(probes_metrics.RUN_MATMUL_WITH_HOST_FLOPS, (2e12,), **shape))
    (row,) = [line for line in lines if "8 x 8 x 8" in line]
    assert row.index("7.00 TFLOP/s") < row.index("2.00 TFLOP/s")


def test_a_product_has_the_clock_and_power_at_which_it_was_reached() -> None:
    shape = {"m": "8", "n": "8", "k": "8"}
    lines = _printed(
        "matmul",
        estimate(probes_metrics.RUN_MATMUL_FLOPS, (7e14,), **shape),
        estimate(probes_metrics.RUN_MATMUL_CLOCK_HERTZ, (1.755e9,), **shape),
        estimate(probes_metrics.RUN_MATMUL_POWER_WATTS, (690.4,), **shape),
    )
    (row,) = [line for line in lines if "8 x 8 x 8" in line]
    assert row.endswith("1,755 MHz, 690 W")


def test_a_small_figure_is_not_shown_as_0() -> None:
    line = _row(_printed("collectives", _time(), _busbw("all_reduce", (412.0,))), "all_reduce")
    assert line.split()[-1] == "4.1e-07"


def test_a_row_of_algorithms_is_one_line_on_a_pipe() -> None:
    line = _row(_printed("all_reduce", _time(), _time("ring"), _total("counted", 2e6)), "ring")
    assert "2,000 [" in line
    assert "2,000,000" in line


def test_all_nodes_bytes_have_their_rate_with_the_interval_of_the_time() -> None:
    time = _time("ring")
    assert time.low is not None
    assert time.high is not None
    line = _row(_printed("all_reduce", time, _total("counted", 2e6)), "ring")
    assert line.endswith(f"1.00 [{2e-3 / time.high:.3f}, {2e-3 / time.low:.2f}]")


def test_a_count_that_differs_from_the_law_has_the_laws_behind_it_and_the_page_says_when() -> None:
    lines = _printed("all_reduce", _time("ring"), _total("counted", 2e6), _total("expected", 3e6))
    assert "2,000,000 (predicted: 3,000,000)" in _row(lines, "ring")
    assert any(line.startswith("rounds and bytes are counted, with the prediction") for line in lines)


def test_the_page_says_what_peak_and_all_nodes_are_of() -> None:
    (line,) = [line for line in _printed("all_reduce", _time("ring")) if line.startswith("peak at a node:")]
    assert "in one round" in line
    assert "in one call" in line


def test_the_library_among_algorithms_has_what_nccl_chose() -> None:
    lines = _printed("all_reduce", _time(), _time("ring"), _choice())
    assert _row(lines, "library").endswith("Ring LL128")
    assert _row(lines, "ring").split()[-1] == "-"


def test_without_a_choice_of_nccl_there_is_no_column_for_it() -> None:
    assert "chosen" not in _printed("all_reduce", _time(), _time("ring"))[0]


def test_one_rank_says_why_it_has_no_bus_bandwidth() -> None:
    lines = _printed("collectives", _time(), _time(collective="broadcast"), _busbw("broadcast"), ranks=1)
    assert sum(line.startswith("busbw: - on one rank") for line in lines) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_where_all_have_a_bus_bandwidth_nothing_is_explained(ranks: int) -> None:
    lines = _printed("collectives", _time(collective="broadcast"), _busbw("broadcast"), ranks=ranks)
    assert not any(line.startswith("busbw:") for line in lines)
