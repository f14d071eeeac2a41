"""`observatory serve`, as a process, on a node of sixteen fake GPUs of which each has a condition of its own."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.nvml.library import FakeNode, fake_node
from tests.support.nvml.scenes import (
    A100,
    B200,
    FORBIDDEN,
    H100,
    HARDWARE_THERMAL,
    LOST,
    MIB,
    POWER_CAP,
    RTX,
    SOFTWARE_THERMAL,
    Answers,
    mig_uuid,
    node_of,
    split_by_mig,
    uuid,
)

HEALTHY, CAPPED, HOT, PENDING, LINK_DOWN, FORBIDDING, LOSING, LATE, BLACKWELL, SPLIT, GRAPHICS, BUSY = range(12)
"""Indices of GPUs; the remaining four are healthy."""
STEADY = {HEALTHY, CAPPED, HOT, PENDING, LINK_DOWN, FORBIDDING, BLACKWELL, SPLIT, GRAPHICS, BUSY, 12, 13, 14, 15}
PREFIX = "observatory_gpu_"


def ward() -> Answers:
    """Sixteen GPUs of four kinds."""
    models = [H100] * 16
    models[BLACKWELL], models[SPLIT], models[GRAPHICS] = B200, A100, RTX
    return {
        **node_of(*models),
        f"{CAPPED}.CurrentClocksEventReasons": POWER_CAP,
        f"{CAPPED}.Field.74": 30_000_000_000,
        f"{HOT}.CurrentClocksEventReasons": SOFTWARE_THERMAL | HARDWARE_THERMAL,
        **{f"{HOT}.Field.{number}": "0+1e9" for number in (269, 270)},  # Nanoseconds in which heat held clocks.
        f"{HOT}.Temperature": 89,
        f"{HOT}.MarginTemperature": -2,
        f"{HOT}.ClockInfo.1": 990,
        f"{PENDING}.Field.4": 2,  # Uncorrected ECC errors since the driver was loaded.
        f"{PENDING}.Field.144": 1,  # A row waits for a reset,
        f"{PENDING}.Field.230": 1,  # which the driver asks for.
        f"{LINK_DOWN}.NvLinkState.7": 0,
        f"{FORBIDDING}.RegisterEvents": FORBIDDEN,
        f"{FORBIDDING}.GpmSampleGet": FORBIDDEN,
        f"{FORBIDDING}.ComputeRunningProcesses": FORBIDDEN,
        f"{LATE}.Late_s": 0.03,  # Each answer, of which a reading has some forty.
        f"{BUSY}.ComputeRunningProcesses": f"4194301:{5 * MIB},4194302:",  # Beyond the pids of this machine.
        f"{BUSY}.ProcessUtilization": "4194301:61",
        **split_by_mig(SPLIT),
    }


@dataclass
class Page:
    """What /metrics has. by_name: labels and value of each sample."""

    by_name: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    def of(self, name: str, gpu: int, **labels: str) -> list[float]:
        """Return the values of a metric of one GPU."""
        wanted = {"gpu": str(gpu), **labels}.items()
        return [value for own, value in self.by_name.get(PREFIX + name, []) if wanted <= own.items()]

    def labels_of(self, name: str, gpu: int) -> dict[str, str]:
        """Return the labels of a metric's only series of one GPU."""
        (labels,) = [own for own, _ in self.by_name.get(PREFIX + name, []) if own["gpu"] == str(gpu)]
        return labels


@dataclass
class Serving:
    """A server and its node. errors: the file of its notices."""

    node: FakeNode
    address: str
    errors: Path

    def page(self) -> Page:
        page = Page()
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=30) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                for sample in family.samples:
                    page.by_name.setdefault(sample.name, []).append((sample.labels, sample.value))
        return page

    def page_where(self, is_so: Callable[[Page], bool]) -> Page:
        """Wait until the page is so."""
        until = time.monotonic() + 60
        while not is_so(page := self.page()):
            assert time.monotonic() < until, f"it never became so; {self.errors.read_text()}"
            time.sleep(0.2)
        return page


@contextmanager
def serving(node: FakeNode, folder: Path) -> Iterator[Serving]:
    """`observatory serve` on a free port."""
    errors = folder / "serve.err"
    words = ["-m", "bench", "serve", "--port", "0", "--beat", "2", "--results", "none", "--runs", str(folder / "runs")]
    with errors.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-P", *words], env=node.environment(), stdout=subprocess.DEVNULL, stderr=written
        )
    try:
        until = time.monotonic() + 60
        while not (said := [word for word in errors.read_text().split() if word.startswith("http://")]):
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < until, errors.read_text()
            time.sleep(0.05)
        yield Serving(node, said[0].removesuffix("/metrics").rstrip("/"), errors)
    finally:
        process.terminate()
        assert process.wait(60) == 0, errors.read_text()


@pytest.fixture(scope="module")
def server(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("ward")
    with serving(fake_node(folder, nvml_library, ward()), folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(server: Serving) -> Page:
    """Once each GPU has been read twice, since GPM's metrics are between two readings."""
    return server.page_where(lambda page: bool(page.of("sm_activity_ratio", 15) and page.of("power_watts", LATE)))


def test_each_gpu_is_shown_as_the_node_has_it(page: Page) -> None:
    names = {gpu: page.labels_of("info", gpu)["name"] for gpu in range(16)}
    assert {gpu: name for gpu, name in names.items() if name != "NVIDIA H100 80GB HBM3"} == {
        BLACKWELL: "NVIDIA B200",
        SPLIT: "NVIDIA A100-SXM4-80GB",
        GRAPHICS: "NVIDIA GeForce RTX 4090",
    }
    for gpu in range(16):
        info = page.labels_of("info", gpu)
        assert (info["uuid"], info["driver"], info["cuda"]) == (uuid(gpu), "580.95.05", "13.0")
        assert info["numa"] == ("0" if gpu < 8 else "1")  # By the memory that is near: no GPU here is a NUMA node.
    assert page.of("power_watts", HEALTHY) == [612.345]
    assert page.of("energy_joules_total", HEALTHY)[0] > 5000
    assert page.of("memory_used_bytes", HEALTHY) == [(81_559 - 560 - 80_000) * MIB]
    assert page.of("sm_activity_ratio", HEALTHY) == [pytest.approx(0.42)]


def test_what_holds_clocks_is_power_or_heat_as_the_driver_has_it(page: Page) -> None:
    def held(gpu: int) -> set[str]:
        series = page.by_name["observatory_gpu_clock_held_ratio"]
        return {own["reason"] for own, value in series if own["gpu"] == str(gpu) and value == 1}

    assert [held(gpu) for gpu in (HEALTHY, CAPPED, HOT)] == [
        set(),
        {"software_power_cap"},
        {"software_thermal", "hardware_thermal"},
    ]
    assert page.of("clock_held_seconds_total", CAPPED, reason="software_power_cap") == [pytest.approx(30)]
    assert page.of("temperature_margin_celsius", HOT) == [-2.0]
    assert page.of("clock_sm_hertz", HOT) == [990e6]


def test_memory_that_waits_for_a_reset_is_shown_with_what_the_driver_asks_for(page: Page) -> None:
    assert page.of("memory_repair_ratio", PENDING, repair="rows", state="pending") == [1]
    assert page.of("ecc_volatile_errors_total", PENDING, kind="uncorrected") == [2]
    assert page.labels_of("recovery_info", PENDING)["action"] == "gpu_reset"
    assert page.labels_of("recovery_info", HEALTHY)["action"] == "none"


def test_nvlinks_bytes_are_those_of_the_field_that_answers_in_its_own_unit(page: Page) -> None:
    """Until Hopper KiB, on Blackwell bytes; each of all links together."""
    assert page.of("nvlink_bytes_total", HEALTHY, direction="sent") == [18_000_000 * 1024]
    assert page.of("nvlink_bytes_total", HEALTHY, direction="received") == [9_000_000 * 1024]
    assert page.of("nvlink_bytes_total", BLACKWELL, direction="sent") == [36e9]
    assert page.of("nvlink_bytes_total", BLACKWELL, direction="received") == [18e9]
    assert page.of("nvlink_bytes_total", GRAPHICS) == []
    assert page.of("nvlink_errors_total", BLACKWELL, kind="link_integrity") == [0]
    assert page.of("nvlink_errors_total", HEALTHY, kind="crc_flit") == [0]


def test_a_link_that_is_down_is_counted_out(page: Page) -> None:
    nvlinks = [page.labels_of("info", gpu)["nvlink"] for gpu in (HEALTHY, LINK_DOWN, BLACKWELL, SPLIT, GRAPHICS)]
    assert nvlinks == ["4.0 x18", "4.0 x17", "5.0 x18", "3.0 x12", "none"]


def test_a_split_gpu_has_its_instances(page: Page) -> None:
    series = [own for own, _ in page.by_name["observatory_gpu_instance_info"]]
    assert [own["uuid"] for own in series] == [mig_uuid(SPLIT, place) for place in range(7)]
    assert {own["gpu"] for own in series} == {str(SPLIT)}
    assert page.of("instance_memory_used_bytes", SPLIT, slice="7/0") == [(9728 - 13 - 9000) * MIB]
    assert page.of("utilization_ratio", SPLIT) == []


def test_what_is_forbidden_or_unknown_is_absent_and_said(page: Page, server: Serving) -> None:
    assert page.of("events_total", FORBIDDING) == page.of("sm_activity_ratio", FORBIDDING) == []
    assert page.of("compute_tasks", FORBIDDING) == []
    assert page.of("events_total", HEALTHY, event="xid") == [0]
    said = server.errors.read_text()
    assert f"GPU {FORBIDDING}: the driver reports no events (Insufficient Permissions); XIDs are not counted" in said
    assert f"GPU {FORBIDDING}: this process is not permitted to read GPM, list of processes;" in said
    assert f"GPU {SPLIT}: split by MIG;" in said


def test_processes_of_other_containers_are_listed_by_the_drivers_pids_or_counted_only(
    page: Page, server: Serving
) -> None:
    """Where this process has pids of its own, the driver does not name all, and nothing is shown of them."""
    series = page.by_name.get("observatory_gpu_process_memory_used_bytes", [])
    if "the driver does not name all processes" in server.errors.read_text():
        assert series == []
    else:
        assert [(own["gpu"], own["pid"], value) for own, value in series] == [(str(BUSY), "4194301", 5 * MIB)]
        assert page.of("compute_tasks", BUSY) == [2]


def test_a_late_gpu_holds_no_other_up(page: Page, server: Serving) -> None:
    server.page_where(lambda page: page.labels_of("state_info", LATE)["state"] == "late")
    assert {gpu: page.labels_of("state_info", gpu)["state"] for gpu in (HEALTHY, BLACKWELL, GRAPHICS)} == {
        HEALTHY: "answering",
        BLACKWELL: "answering",
        GRAPHICS: "answering",
    }


def test_what_changes_while_it_runs_is_shown(page: Page, server: Serving) -> None:
    """A GPU falls off the bus, another has an XID, and an NVLink of a third goes down."""
    changed: Answers = {f"{LOSING}.All": LOST, f"{HEALTHY}.Events": "8:31", f"{BUSY}.NvLinkState.3": 0}
    assert page.labels_of("info", BUSY)["nvlink"] == "4.0 x18"
    server.node.show({**ward(), **changed})
    after = server.page_where(
        lambda page: (
            page.labels_of("state_info", LOSING)["state"] == "lost"
            and bool(page.of("xid_errors_total", HEALTHY))
            and page.labels_of("info", BUSY)["nvlink"] == "4.0 x17"
        )
    )
    assert page.of("power_watts", LOSING) == [612.345]
    assert after.of("power_watts", LOSING) == []
    assert after.of("xid_errors_total", HEALTHY, xid="31") == [1]
    assert after.of("power_watts", HEALTHY) == [612.345]
    assert f"GPU {LOSING}: GPU is lost; its samples are left out until it is found again" in server.errors.read_text()
