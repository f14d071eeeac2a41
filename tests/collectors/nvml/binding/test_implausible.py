"""What cannot be is left out, counted and said once, and texts are read in any bytes: through the real binding."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collectors.metrics.gpu import GPU_ENERGY_JOULES
from collectors.nvml.plausible import Growth, ImplausibleAnswer, check_value
from tests.support.nvml.library import fake_node
from tests.support.nvml.scenes import H100, NO_PEER, Scene, as_text, node_of, uuid

READ = """
import dataclasses, json, os, sys
from pathlib import Path
from bench.machine.gpus import read_gpus, read_memory
from bench.machine.node_now import read_now
from collectors.nvml.collector import NvmlCollector

def read():
    collector = NvmlCollector(deadline_s=30.0, open_s=30.0)
    samples = [collector.read() for _ in range(3)][-1]
    absent = collector.absent
    collector.close()
    gpus = read_gpus()
    return {
        "samples": [[one.metric.removeprefix("observatory_"), one.labels, one.value] for one in samples],
        "absent": absent,
        "gpus": dataclasses.asdict(gpus),
        "memory": [dataclasses.asdict(one) for one in read_memory(gpus.gpus)],
        "now": read_now(gpus.gpus, Path("/tmp")).absent,
    }

scene = Path(os.environ["NVML_SCENE"])
answers = {}
for fault, text in json.load(sys.stdin).items():
    new = scene.with_suffix(".new")
    new.write_text(text, encoding="utf-8", errors="surrogateescape")
    new.replace(scene)
    answers[fault] = read()
json.dump(answers, sys.stdout)
"""
"""Reads one scene after another in one process."""
MOST = 2**32 - 1
MOST_WIDE = 2**64 - 1
HEALTHY = {
    **node_of(H100, H100),
    "Name": "NVIDIA H200",
    "P2PStatus": NO_PEER,
    "GpmQueryDeviceSupport": 0,  # Its metrics depend on the time between readings.
    "ComputeRunningProcesses": f"42:{1 << 30}",
    "ProcessUtilization": "42:61",
}
FAULTS: dict[str, Scene] = {
    "none": {},
    "all bits set": {
        **dict.fromkeys(("UtilizationRates", "EncoderUtilization", "PowerUsage", "Temperature", "ClockInfo"), MOST),
        **dict.fromkeys(("CurrPcieLinkWidth", "MaxPcieLinkWidth", "NumaNodeId", "TopologyCommonAncestor.1"), MOST),
        **dict.fromkeys(("EnforcedPowerLimit", "MaxClockInfo", "Field.186", "Field.82"), MOST),
        **dict.fromkeys(("Memory.total", "Field.83"), MOST_WIDE),
        "SystemGetCudaDriverVersion": MOST,
    },
    "a little too much": {
        "UtilizationRates.0": 101,
        "ClockInfo": 9000,
        "Memory.free": 200 << 30,
        "BAR1Memory.total": 1000,
        "Field.186": 9_000_000,
        "Field.187": 800_000,
        "CurrPcieLinkGeneration": 6,
    },
    "flags and masks": {
        **dict.fromkeys(("CurrentClocksEventReasons", "PersistenceMode", "MigMode", "NvLinkState"), MOST),
        "Memory.total": 0,
        "Memory.free": 0,
    },
    "too much held": {"ComputeRunningProcesses": f"42:{2**60}"},
    "once seen": {"UtilizationRates.0": 627618, "MaxClockInfo": 0},
    "texts": {
        "Name": "NVIDIA \udcff\udcfe H200",
        "Serial": "\udc80",
        "VbiosVersion": "96\udca0",
        "PciInfo": "0000\udcff:10:00.0",
    },
    "identity": {"UUID": "GPU-\udcff", "SystemGetDriverVersion": "580\udcff"},
    "number of GPUs": {"Count": MOST},
}
"""What GPU 0, or the library, answers otherwise than a healthy one; a surrogate stands for a byte that is no UTF-8."""
OF_THE_NODE = {"SystemGetCudaDriverVersion", "SystemGetDriverVersion", "Count"}

Read = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def read(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """What is read with a fault; one process reads all."""
    scenes = {
        fault: HEALTHY | {name if name in OF_THE_NODE else f"0.{name}": answer for name, answer in own.items()}
        for fault, own in FAULTS.items()
    }
    node = fake_node(tmp_path_factory.mktemp("implausible"), nvml_library, HEALTHY)
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ],
        input=json.dumps({fault: as_text(scene) for fault, scene in scenes.items()}),
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answers.__getitem__


def _series(read: dict[str, Any], gpu: str = "0") -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for metric, labels, value in read["samples"]:
        if labels.get("gpu") == gpu:
            found.setdefault(metric, []).append(value)
    return found


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
    assert [gpu["uuid"] for gpu in read("identity")["gpus"]["gpus"]] == [r"GPU-\xff", uuid(1)]


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
