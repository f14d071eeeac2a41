"""`observatory doctor`, as a process, on four fake GPUs: it names each thing that is wrong with the node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml.library import build, fake_node
from tests.support.nvml.scenes import A100, FORBIDDEN, GIB, H100, LOST, RTX, Answers, node_of, uuid

HEALTHY, GONE, GRAPHICS, AMPERE = range(4)


def node() -> Answers:
    """A name that is not UTF-8, a lost GPU, a process without its memory, and no permission for GPM and events."""
    return {
        **node_of(H100, H100, RTX, A100),
        f"{HEALTHY}.Name": "H\udcff00",
        f"{HEALTHY}.EnforcedPowerLimit": 2**32 - 1,
        f"{HEALTHY}.ComputeRunningProcesses": f"4194301:{5 * GIB},4194302:",
        f"{HEALTHY}.GpmSampleGet": FORBIDDEN,
        **{f"{gpu}.RegisterEvents": FORBIDDEN for gpu in range(4)},
        f"{GONE}.All": LOST,
    }


def _doctor(library: Path, folder: Path, scene: Answers) -> dict[str, Any]:
    made = fake_node(folder, library, scene)
    words = ["-m", "bench", "doctor", "--format", "json", "--store", f"sqlite:///{folder}/none.sqlite"]
    environment = {**made.environment(), "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    done = subprocess.run(
        [sys.executable, "-P", *words], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("doctor: ")]
    starts = ("doctor: starting ranks", "doctor: asking ", "doctor: reading devices")
    assert [line[: len(start)] for line, start in zip(said, starts, strict=True)] == list(starts)
    assert not (folder / "none.sqlite").exists()
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def _entries(printed: dict[str, Any], title: str) -> dict[str, Any]:
    (section,) = [section for section in printed["sections"] if section["title"] == title]
    return {entry["name"]: entry["value"] for entry in section["entries"]}


def _answers(printed: dict[str, Any], question: str) -> dict[str, str]:
    return {row["gpu"]: row["answer"] for row in printed["fields"]["standings"] if row["question"] == question}


@pytest.fixture(scope="module")
def printed(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _doctor(nvml_library, tmp_path_factory.mktemp("doctor"), node())


def test_the_page_shows_this_machine_as_ranks_see_it_even_without_a_store(printed: dict[str, Any]) -> None:
    titles = [section["title"] for section in printed["sections"]]
    assert titles == ["versions", "devices", "topology", "clocks", "links", "limits", "settings", "monitors"]
    assert "TORCH_FR_BUFFER_SIZE" in _entries(printed, "settings")
    assert "does not exist yet" in printed["ceilings"]["reason"]


def test_the_gpus_that_answer_are_described_and_the_lost_one_is_named(printed: dict[str, Any]) -> None:
    devices = _entries(printed, "devices")
    described = {name: value for name, value in devices.items() if name in {"GPU 0", "GPU 1", "GPU 2", "GPU 3"}}
    assert described == {
        "GPU 0": rf"H\xff00, {uuid(HEALTHY)}",
        "GPU 2": f"NVIDIA GeForce RTX 4090, {uuid(GRAPHICS)}",
        "GPU 3": f"NVIDIA A100-SXM4-80GB, {uuid(AMPERE)}",
    }
    assert devices["GPUs that CUDA shows"] == "GPU 1 does not answer (GPU is lost); CUDA uses the other 3"
    assert devices["order of GPUs"] == (
        r"GPUs differ (1 x H\xff00, 1 x NVIDIA GeForce RTX 4090, 1 x NVIDIA A100-SXM4-80GB), and with"
        " CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA numbers the fastest first; unset it to number them as NVML does"
    )
    assert devices["ranks"] == "can be started"
    assert "GPU 1: GPU is lost; its samples are left out until it is found again" in printed["fields"]["left_out"]


def test_gpus_that_nvml_lists_and_torch_cannot_use_are_one_line(printed: dict[str, Any]) -> None:
    import torch

    said = _entries(printed, "devices").get("GPUs that torch can use")
    if torch.version.cuda is None:
        version = torch.__version__
        assert said == f"NVML shows 3 GPUs, but torch {version} is built without CUDA; install a CUDA build"
    else:
        assert said is None


def test_whoever_holds_memory_is_named(printed: dict[str, Any]) -> None:
    devices = _entries(printed, "devices")
    assert devices["GPU 0, processes"] == "process 4194301 holds 5.4 GB, process 4194302 holds some"
    assert devices["GPU 0, memory free now"] == 80_000 << 20


def test_links_are_nvlink_between_alike_gpus_alone(printed: dict[str, Any]) -> None:
    topology = _entries(printed, "topology")
    assert topology["GPUs by system"] == "0-2, 0-3"
    assert topology["GPUs by node"] == "2-3"
    assert "GPUs by nvlink" not in topology


def test_what_a_gpu_does_not_answer_is_in_the_table(printed: dict[str, Any]) -> None:
    assert _answers(printed, "GPM") == {"0": "not permitted", "2": "not supported", "3": "not supported"}
    assert _answers(printed, "NVLink bytes sent") == {"0": "answers", "2": "not supported", "3": "answers"}
    assert _answers(printed, "NUMA node") == {"0": "answers", "2": "answers", "3": "answers"}
    refused = "the driver reports no events (Insufficient Permissions); XIDs are not counted"
    assert f"GPUs 0, 2, 3: {refused}" in printed["fields"]["left_out"]


@pytest.mark.slow
def test_an_older_driver_answers_what_it_has(tmp_path: Path) -> None:
    scene = {**node_of(A100, A100), "SystemGetDriverVersion": "470.57.02", "SystemGetCudaDriverVersion": 11040}
    printed = _doctor(build(tmp_path / "library", driver=470), tmp_path, {**scene, "FieldsBelow": 165})
    assert _entries(printed, "versions")["driver"] == "470.57.02"
    assert set(_answers(printed, "energy counter").values()) == {"answers"}
    for question in ("account of device memory", "temperature margin", "GPM", "PCIe bytes sent"):
        assert set(_answers(printed, question).values()) == {"not supported"}
