"""What cannot be is left out, counted and said once, and texts are read in any bytes: through the real binding."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from collectors.metrics.gpu import GPU_ENERGY_JOULES
from collectors.nvml.plausible import Growth, ImplausibleAnswer, check_value
from tests.collectors.nvml.binding.stub import build, run

READ = """
import json, sys
from collectors.nvml.collector import NvmlCollector
from bench.machine.gpus import read_gpus, read_memory
from bench.machine.node_now import read_now
from pathlib import Path
import dataclasses, time
collector = NvmlCollector(deadline_s=30.0, open_s=30.0)
samples = [collector.read() for _ in range(3)][-1]
absent = collector.absent
collector.close()
gpus = read_gpus()
now = read_now(gpus.gpus, Path("/tmp"))
json.dump(
    {
        "samples": [[one.metric.removeprefix("observatory_"), one.labels, one.value] for one in samples],
        "absent": absent,
        "gpus": dataclasses.asdict(gpus),
        "memory": [dataclasses.asdict(one) for one in read_memory(gpus.gpus)],
        "now": now.absent,
    },
    sys.stdout,
)
"""
MOST = str(2**32 - 1)
MOST_WIDE = str(2**64 - 1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the library."""
    return build(tmp_path_factory.mktemp("nvml"))


def _read(library: Path, **answers: str | bytes) -> dict[str, Any]:
    done = run(library, "-c", READ, **answers)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _series(read: dict[str, Any], gpu: str = "0") -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for metric, labels, value in read["samples"]:
        if labels.get("gpu") == gpu:
            found.setdefault(metric, []).append(value)
    return found


FAULTS: dict[str, dict[str, str | bytes]] = {
    "none": {},
    "all bits set": {
        **dict.fromkeys(("UTILIZATION", "ENCODER", "POWER", "TEMPERATURE", "CLOCK", "LANES", "NUMA", "LEVEL"), MOST),
        **dict.fromkeys(("POWER_LIMIT", "MAX_CLOCK", "FIELD_186", "FIELD_82", "CUDA"), MOST),
        **dict.fromkeys(("TOTAL", "FIELD_83"), MOST_WIDE),
    },
    "a little too much": {
        "UTILIZATION": "101",
        "CLOCK": "9000",
        "FREE": str(200 << 30),
        "BAR1": "1000",
        "FIELD_186": "9000000",
        "FIELD_187": "800000",
        "PCIE_NOW": "6",
    },
    "flags and masks": {**dict.fromkeys(("REASONS", "PERSISTENCE", "MIG", "NVLINK"), MOST), "TOTAL": "0", "FREE": "0"},
    "too much held": {"PROCESS": str(2**60)},
    "once seen": {"UTILIZATION": "627618", "MAX_CLOCK": "0"},
    "texts": {"NAME": b"NVIDIA \xff\xfe H200", "SERIAL": b"\x80", "VBIOS": b"96\xa0", "PCI": b"0000\xff:10:00.0"},
    "identity": {"UUID": b"GPU-\xff", "DRIVER": b"580\xff"},
    "number of GPUs": {"COUNT": MOST},
}
"""What GPU 0 answers otherwise than a healthy one."""


@pytest.fixture(scope="module")
def read(library: Path) -> Callable[[str], dict[str, Any]]:
    """What is read with a fault; each is read once."""
    return cache(lambda fault: _read(library, **FAULTS[fault]))


Read = Callable[[str], dict[str, Any]]


def test_healthy_gpus_answer_nothing_implausible(read: Read) -> None:
    healthy = read("none")
    assert not [one for one in healthy["samples"] if one[0] == "implausible_total"]
    assert not [line for line in healthy["absent"] if "implausible" in line]
    assert _series(healthy)["gpu_utilization_ratio"] == _series(healthy, "1")["gpu_utilization_ratio"] == [0.97]
    assert [gpu["name"] for gpu in healthy["gpus"]["gpus"]] == ["NVIDIA H200"] * 2


@pytest.mark.parametrize(
    ("fault", "question", "gone", "words"),
    [
        ("all bits set", "utilization counter", "gpu_utilization_ratio", "4294967295 % is implausible: 0 to 100"),
        ("once seen", "utilization counter", "gpu_utilization_ratio", "627618 % is implausible"),
        ("a little too much", "utilization counter", "gpu_utilization_ratio", "101 % is implausible"),
        ("all bits set", "encoder utilization", "gpu_encoder_utilization_ratio", "% is implausible"),
        ("all bits set", "power sensor", "gpu_power_watts", "4294967295 mW is implausible: 0 to 10000000"),
        ("all bits set", "temperature sensor", "gpu_temperature_celsius", "4294967295 C is implausible: -60 to 200"),
        ("all bits set", "sm clock", "gpu_clock_hertz", "4294967295 MHz is implausible: 0 to 20000"),
        ("a little too much", "sm clock", "gpu_clock_hertz", "9000000000 is implausible where 1980000000 is the limit"),
        ("once seen", "sm clock limit", "gpu_clock_limit_hertz", "0 MHz is implausible: 1 to 20000"),
        ("a little too much", "account of device memory", "gpu_memory_free_bytes", "are implausible"),
        ("all bits set", "account of device memory", "gpu_memory_bytes", "is implausible"),
        ("a little too much", "BAR1 window", "gpu_bar1_used_bytes", "is implausible"),
        ("all bits set", "PCIe link now", "gpu_pcie_link_lanes", "4294967295 is implausible: 0 to 64"),
        ("all bits set", "instant power", "gpu_power_instant_watts", "4294967.295 W is implausible: 0 to 10000"),
        ("a little too much", "instant power", "gpu_power_instant_watts", "9000 is implausible where 700 is the limit"),
        ("a little too much", "minimum power limit", "gpu_power_limit_watts", "800 is implausible where 700 is the"),
        ("a little too much", "PCIe link now", "gpu_pcie_link_generation", "6 is implausible where 5 is the limit"),
        ("flags and masks", "clock event reasons", "gpu_clock_held_ratio", "4294967295 is implausible: 0 to 65535"),
        ("flags and masks", "account of device memory", "gpu_memory_bytes", "0 bytes is implausible: 1 to"),
        ("all bits set", "energy counter", "gpu_energy_joules_total", "J is implausible"),
        ("all bits set", "memory temperature", "gpu_memory_temperature_celsius", "4294967295 C is implausible"),
    ],
)
def test_an_answer_that_cannot_be_is_absent_counted_and_said(
    fault: str, question: str, gone: str, words: str, read: Read
) -> None:
    found, healthy = read(fault), read("none")
    assert len(_series(found).get(gone, [])) < len(_series(healthy)[gone])
    assert _series(found, "1").keys() == _series(healthy, "1").keys()  # The other GPU answers all as before.
    counted = [labels for name, labels, value in found["samples"] if name == "implausible_total" and value >= 1]
    assert {"source": "nvml", "question": question} in counted
    (line,) = [line for line in found["absent"] if f"{question} (" in line]
    assert line.startswith("GPU 0: sometimes no ")
    assert words in line


def test_a_text_that_is_not_utf_8_affects_its_label_alone(read: Read) -> None:
    infos = [
        next(labels for name, labels, _ in read(fault)["samples"] if name == "gpu_info" and labels["gpu"] == "0")
        for fault in ("none", "texts")
    ]
    assert infos[1] == {
        **infos[0],
        "name": r"NVIDIA \xff\xfe H200",
        "serial": r"\x80",
        "vbios": r"96\xa0",
        "pci_address": r"0000\xff:10:00.0",
    }
    assert _series(read("texts")).keys() == _series(read("none")).keys()
    assert [gpu["name"] for gpu in read("texts")["gpus"]["gpus"]] == [r"NVIDIA \xff\xfe H200", "NVIDIA H200"]


def test_a_flag_that_is_neither_0_nor_1_is_unknown(read: Read) -> None:
    infos = [
        next(labels for name, labels, _ in read(fault)["samples"] if name == "gpu_info" and labels["gpu"] == "0")
        for fault in ("none", "flags and masks")
    ]
    assert {name for name in infos[0] if infos[0][name] != infos[1][name]} == {"persistence", "mig", "nvlink"}
    assert {infos[1][name] for name in ("persistence", "mig", "nvlink")} == {"unknown"}


def test_gpus_are_read_where_identity_and_driver_are_not_utf_8(read: Read) -> None:
    assert _series(read("identity")).keys() == _series(read("none")).keys()
    assert [gpu["uuid"] for gpu in read("identity")["gpus"]["gpus"]] == [r"GPU-\xff", "GPU-1abc"]


def test_a_machine_is_described_without_what_cannot_be(read: Read) -> None:
    absent = {
        "gpus[0].power_limit_watts": "NVML: 4294967295 mW is implausible: 1 to 10000000",
        "gpus[0].clock_limit_hertz": "NVML: 4294967295 MHz is implausible: 1 to 20000",
    }
    found = read("all bits set")["gpus"]["absent"]
    assert absent.items() <= found.items()
    assert absent.items() <= read("all bits set")["now"].items()
    assert found["cuda_version"] == "NVML: -1 is implausible: 1000 to 99999"  # NVML's number has a sign.
    assert found["links"].startswith("NVML: topology level 4294967295 is implausible: 0, 10, 20")
    assert read("number of GPUs")["gpus"]["absent"] == {"gpus": "NVML: 4294967295 GPUs is implausible: 0 to 1024"}


@pytest.mark.parametrize(
    ("joules", "plausible"),
    [
        ([100, 800, 1500], [True, True, True]),
        ([100, 0, 800, 1500], [True, False, True, True]),  # It fell, and 800 J in a second can be.
        ([1e9, 5, 1e9, 1e9 + 700], [True, False, False, True]),  # A reading that was wrong costs two.
        ([1e9, 5, 700], [True, False, True]),  # It was set back.
        ([100, 50_000, 50_700], [True, False, True]),  # 50 kW.
        ([float("nan"), 100], [False, True]),
    ],
)
def test_a_counter_does_not_fall_and_grows_no_faster_than_can_be(joules: list[float], plausible: list[bool]) -> None:
    growth, found = Growth(GPU_ENERGY_JOULES), []
    for second, value in enumerate(joules):
        try:
            check_value(GPU_ENERGY_JOULES, value)
            growth.check(value, second * 10**9)
        except ImplausibleAnswer:
            found.append(False)
        else:
            found.append(True)
    assert found == plausible


def test_memory_that_a_process_cannot_hold_is_unknown(read: Read) -> None:
    held = [read(fault)["memory"][1 if fault == "none" else 0]["holders"] for fault in ("none", "once seen")]
    assert held == [[{"pid": 42, "memory_bytes": 1 << 30}]] * 2
    assert read("too much held")["memory"][0]["holders"] == [{"pid": 42, "memory_bytes": None}]


def test_doctor_ends_well_with_a_gpu_whose_name_is_not_utf_8(library: Path, tmp_path: Path) -> None:
    words = ["-m", "bench", "doctor", "--store", f"sqlite:///{tmp_path}/none.sqlite"]
    done = run(library, *words, NAME=b"H\xff00", POWER_LIMIT=MOST)
    assert done.returncode == 0, done.stderr
    assert r"H\xff00" in done.stdout
