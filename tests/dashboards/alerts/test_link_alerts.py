"""The alerts on links: NVLink and PCIe of a GPU, ports of InfiniBand."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics import gpu, gpu_health, host
from tests.dashboards.alerts.drill import SCRAPED, Drill, Series, alert, joined, shown

pytestmark = pytest.mark.stack

NODE = SCRAPED["instance"]
PORT = {"device": "mlx5_0", "port": "1"}


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    return Drill(group="links", folder=tmp_path)


def test_nvlink_is_told_for_one_grave_error_and_for_many_that_were_mended(drill: Drill) -> None:
    errors = gpu_health.GPU_NVLINK_ERRORS
    series = joined(
        shown(errors, "0x10 1x40", gpu="0", kind="recovery"),
        shown(errors, "0x10 99x40", gpu="1", kind="crc_flit"),
        shown(errors, "0x10 101x40", gpu="2", kind="crc_flit"),
        shown(errors, "7x50", gpu="3", kind="recovery"),
    )
    told = [
        alert("NvlinkErrors", instance=NODE, gpu="0", kind="recovery"),
        alert("NvlinkErrors", instance=NODE, gpu="2", kind="crc_flit"),
    ]
    drill.fires(series, {10: [], 15: told, 25: []})


def test_a_counter_that_begins_anew_is_no_growth(drill: Drill) -> None:
    series = shown(gpu_health.GPU_NVLINK_ERRORS, "500x10 0x20", gpu="0", kind="recovery")
    drill.fires(series, {15: []})


def test_it_says_how_many_of_which_kind(drill: Drill) -> None:
    drill.says(
        shown(gpu_health.GPU_NVLINK_ERRORS, "0x10 3x40", gpu="0", kind="recovery"),
        "NvlinkErrors",
        20,
        {**SCRAPED, "gpu": "0", "kind": "recovery"},
        summary="NVLink of GPU 0 of node1:9464: 3 errors (recovery)",
        description="In the last 10 minutes GPU 0 of node1:9464 counted 3 errors of the kind recovery on its"
        " NVLinks. Collectives over these links are slower, or fail. Check whether its peers also"
        " count errors, and drain the node if they continue.",
    )


def test_pcie_is_told_once_for_packets_that_were_sent_again_and_counted_as_corrected(drill: Drill) -> None:
    series = joined(
        shown(gpu_health.GPU_PCIE_RETRIES, "0x10 90x40", gpu="0"),
        shown(gpu_health.GPU_PCIE_ERRORS, "0x10 90x40", gpu="0", kind="correctable"),
        shown(gpu_health.GPU_PCIE_RETRIES, "0x10 79x40", gpu="1"),
        shown(gpu_health.GPU_PCIE_RETRIES, "0x10 90x40", gpu="2"),
        shown(gpu_health.GPU_PCIE_ERRORS, "0x10 1x40", gpu="3", kind="fatal"),
    )
    told = [
        alert("PcieErrors", instance=NODE, gpu="0", kind="correctable"),
        alert("PcieErrors", instance=NODE, gpu="2"),
        alert("PcieErrors", instance=NODE, gpu="3", kind="fatal"),
    ]
    drill.fires(series, {10: [], 15: told, 25: []})


def _link(now: str, number: str, utilization: str = "1x40", rank: str = "1x40") -> Series:
    return joined(
        shown(gpu.GPU_PCIE_LINK.alone(link="now"), now, gpu=number),
        shown(gpu.GPU_PCIE_LINK.alone(link="maximum"), "64x40", gpu=number),
        shown(gpu.GPU_UTILIZATION, utilization, gpu=number),
        shown(gpu.RANK_GPU, rank, gpu=number, slice="", run="8f2c", rank=number, slot="0"),
    )


def test_a_narrow_link_is_told_while_a_rank_works_and_until_it_is_whole(drill: Drill) -> None:
    told = [alert("PcieLinkNarrow", instance=NODE, gpu="0")]
    drill.fires(_link("32x20 64x20", "0"), {18: told, 30: []})


@pytest.mark.parametrize(
    "link",
    [_link("32 64 32x38", "0"), _link("8x40", "0", utilization="0x40"), _link("8x40", "0", rank="_x40")],
    ids=["whole at its best", "idle", "no rank"],
)
def test_a_link_that_is_slow_for_a_while_or_idle_is_as_it_should_be(link: Series, drill: Drill) -> None:
    drill.fires(link, {9: []})


def _port(active: str, down: str = "_x60", load: str = "1x60") -> Series:
    info = {**PORT, "layer": "InfiniBand"}
    return joined(
        shown(host.HOST_INFINIBAND_INFO, active, **info, state="ACTIVE", physical_state="LinkUp"),
        shown(host.HOST_INFINIBAND_INFO, down, **info, state="DOWN", physical_state="Polling"),
        shown(host.HOST_LOAD, load),
    )


DOWN = [alert("InfinibandPortDown", instance=NODE, port="1")]


def test_a_port_that_was_active_and_is_down_is_told_until_it_is_active(drill: Drill) -> None:
    drill.fires(_port("1x10 stale _x19 1x20", "_x10 1x20 stale"), {10: [], 13: DOWN, 29: DOWN, 35: []})


def test_a_port_whose_adapter_is_gone_is_down(drill: Drill) -> None:
    drill.fires(_port("1x10 stale"), {13: DOWN})


def test_a_port_that_goes_with_its_agent_is_told_by_nobody_here(drill: Drill) -> None:
    drill.fires(_port("1x10 stale", load="1x10 stale"), {15: []})


def test_a_port_that_never_was_active_is_not_missed(drill: Drill) -> None:
    drill.fires(_port("_x60", "1x60"), {30: []})


def test_a_port_with_errors_is_told_and_one_on_a_full_network_is_not(drill: Drill) -> None:
    errors = host.HOST_INFINIBAND_ERRORS
    series = joined(
        shown(errors, "0x10 25x40", **PORT, kind="symbol_error"),
        shown(errors, "0x10 15x40", **PORT, kind="link_downed"),
        shown(errors, "0x10 9000x40", **PORT, kind="port_xmit_discards"),
    )
    drill.fires(series, {10: [], 15: [alert("InfinibandErrors", instance=NODE, port="1", kind="symbol_error")], 25: []})
