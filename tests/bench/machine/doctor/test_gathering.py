"""The page as a whole: what stands on it, and what differs from the last good run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from bench.machine.doctor.collect import gather
from bench.machine.doctor.page import Entry, GpuFields, MachineComparison, Page
from bench.machine.gpus import Gpu, GpuLink, read_gpus
from bench.machine.machine import Machine
from bench.machine.machine_diff import MachineDifference
from bench.store.history import History
from collectors.nvml.library import FieldSupport
from tests.bench.machine.doctor.recorded_state import RecordedState
from tests.bench.made.examples import make_machine, make_summary
from tests.bench.made.recorded_nvml import RecordedProcess
from workloads.cost_models.absent import Absent

RANKS = Entry(name="ranks", value="can be started")
NO_HISTORY = Absent(reason="store: it is not there")
FIELDS = GpuFields(
    standings=(FieldSupport(gpu="0", question="GPM", answer="answers", cost_s=1e-5),), left_out=("GPU 1: it is lost",)
)


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'history.sqlite'}"


@pytest.fixture
def history(store_url: str) -> Iterator[History]:
    with History(store_url) as opened:
        yield opened


def _page(machine: Machine, history: History | Absent = NO_HISTORY, nvml: RecordedState | None = None) -> Page:
    state = nvml or RecordedState(is_without_library=True)
    return gather(machine, RANKS, history, nvml=state, fields=FIELDS, root=Path("/nowhere"))


def _section(page: Page, title: str) -> dict[str, Entry]:
    (found,) = [section for section in page.sections if section.title == title]
    return {entry.name: entry for entry in found.entries}


def _with_gpus(machine: Machine, count: int) -> Machine:
    gpus = tuple(
        Gpu(index=index, name="NVIDIA H200", uuid=f"GPU-{index}", memory_bytes=1 << 37) for index in range(count)
    )
    links = tuple(
        GpuLink(first=first, second=second, kind="nvlink")
        for first in range(count)
        for second in range(first + 1, count)
    )
    return replace(machine, gpus=gpus, links=links)


def test_every_line_is_known_or_says_why() -> None:
    machine = make_machine()
    more = ("commit", "nccl_version", "torch_cuda_version", "driver_version", "cuda_driver_version", "gpus")
    machine = replace(machine, absent={**machine.absent, **dict.fromkeys(more, "why")})
    for section in _page(machine).sections:
        assert section.entries
        assert [entry for entry in section.entries if (entry.value is None) == (entry.reason is None)] == []


def test_versions_are_the_machines() -> None:
    versions = _section(_page(replace(make_machine(), commit="abc", is_dirty=True)), "versions")
    assert versions["commit"].value == "abc, with changes"
    assert versions["torch"].value == "2.13.0"
    assert versions["kernel"].value == "Linux 6.1 x86_64"


def test_limits_are_judged_for_a_rank_on_each_gpu() -> None:
    machine = replace(_with_gpus(make_machine(), 2), environment={"NCCL_IB_HCA": "mlx5_0"})
    limits = _section(_page(machine), "limits")
    assert str(limits["/dev/shm"].value).startswith("missing, but needed: 137 MiB for 2 ranks (137 MiB by NCCL); ")
    assert str(limits["NCCL_IB_HCA"].value).startswith("mlx5_0, but needed: a device for mlx5_0 (/sys/class/infiniband")


def test_devices_show_the_dense_peaks_of_each_kind_of_gpu_with_their_sheet() -> None:
    devices = _section(_page(_with_gpus(make_machine(), 2)), "devices")
    assert devices["peaks of NVIDIA H200"].value == (
        "fp32 66.9, fp16 989.4, bf16 989.4, fp8 1979 TFLOP/s dense, 4.8 TB/s"
        " (NVIDIA H200 data sheet, 2024; half of the sparse 1979)"
    )


def test_devices_hold_gpus_and_memory_in_bytes() -> None:
    devices = _section(_page(_with_gpus(make_machine(), 1), nvml=RecordedState(clocks_mhz=(300,))), "devices")
    assert devices["memory"] == Entry(name="memory", value=1 << 34, unit="bytes")
    assert devices["GPU 0"].value == "NVIDIA H200, GPU-0"
    assert devices["GPU 0, memory"].value == 1 << 37
    assert devices["ranks"] == RANKS


def test_devices_say_what_is_free_and_who_holds_the_rest() -> None:
    nvml = RecordedState(
        names=("NVIDIA H200",),
        clocks_mhz=(300,),
        free_bytes={0: 1 << 20},
        processes={0: (RecordedProcess(1 << 30, 5 * 10**9),)},
    )
    machine = replace(make_machine(), gpus=read_gpus(nvml, {}).gpus)
    devices = _section(_page(machine, nvml=nvml), "devices")
    assert devices["GPU 0, memory free now"] == Entry(name="GPU 0, memory free now", value=1 << 20, unit="bytes")
    assert devices["GPU 0, processes"].value == f"process {1 << 30} holds 5.0 GB"
    assert "GPUs that CUDA shows" not in devices


def test_devices_say_why_cuda_shows_fewer_gpus() -> None:
    nvml = RecordedState(names=("A", "B"), clocks_mhz=(300, 300))
    machine = replace(make_machine(), environment={"CUDA_VISIBLE_DEVICES": "0,5"})
    shown = _section(_page(machine, nvml=nvml), "devices")["GPUs that CUDA shows"]
    assert shown.value is not None
    assert '"5" is not a GPU here (GPUs are 0 to 1), so CUDA shows 1 of 2 GPUs' in str(shown.value)


def test_a_driver_is_held_against_torchs_cuda() -> None:
    machine = replace(make_machine(), torch_cuda_version="13.0", driver_version="535.1", cuda_driver_version="12.2")
    versions = _section(_page(machine), "versions")
    assert str(versions["CUDA of driver"].value).startswith(
        "12.2, too old: driver 535.1 supports CUDA up to 12.2, but torch"
    )
    newer = replace(machine, cuda_driver_version="13.0")
    assert _section(_page(newer), "versions")["CUDA of driver"].value == "13.0"


def test_rocm_is_among_the_versions_where_torch_is_amds() -> None:
    assert "ROCm of torch" not in _section(_page(make_machine()), "versions")
    versions = _section(_page(replace(make_machine(), torch_hip_version="7.1")), "versions")
    assert versions["ROCm of torch"].value == "7.1; `observatory run` does not use its GPUs"


def test_a_machine_without_gpus_says_why() -> None:
    machine = replace(make_machine(), absent={"gpus": "NVML: NVML Shared Library Not Found"})
    assert _section(_page(machine), "devices")["GPUs"].reason == "NVML: NVML Shared Library Not Found"


def test_links_of_all_gpus_alike_are_one_line() -> None:
    nvml = RecordedState(clocks_mhz=(300,) * 3)
    topology = _section(_page(_with_gpus(make_machine(), 3), nvml=nvml), "topology")
    assert topology["GPUs by nvlink"].value == "all pairs"


def test_links_that_differ_are_named_by_pair() -> None:
    machine = _with_gpus(make_machine(), 3)
    machine = replace(machine, links=(*machine.links[:2], replace(machine.links[2], kind="system")))
    topology = _section(_page(machine, nvml=RecordedState(clocks_mhz=(300,) * 3)), "topology")
    assert topology["GPUs by nvlink"].value == "0-1, 0-2"
    assert topology["GPUs by system"].value == "1-2"


def test_what_gpus_answer_is_on_the_page_and_decides_what_is_said_of_their_monitors() -> None:
    page = _page(make_machine())
    assert page.fields == FIELDS
    assert [(entry.name, entry.value) for entry in _section(page, "monitors").values()] == [
        ("DCGM", "none found"),
        ("performance monitors", "GPU 0: GPM answers, and no client holds them exclusively"),
    ]


def test_a_variable_that_is_a_limit_is_not_listed_again_among_the_settings() -> None:
    page = _page(replace(make_machine(), environment={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}))
    assert "GLOO_SOCKET_IFNAME" in _section(page, "limits")
    assert "GLOO_SOCKET_IFNAME" not in _section(page, "settings")
    assert _section(page, "settings")["OMP_NUM_THREADS"].value == "1"


def test_the_environment_is_among_the_settings() -> None:
    assert _section(_page(make_machine()), "settings")["OMP_NUM_THREADS"].value == "1"
    bare = _section(_page(replace(make_machine(), environment={})), "settings")
    assert bare["environment"].value == "no variable that can change a measurement is set"


def test_a_history_that_cannot_be_read_leaves_the_rest_of_the_page() -> None:
    page = _page(make_machine(), NO_HISTORY)
    assert page.ceilings == page.comparison == NO_HISTORY
    assert _section(page, "devices")["CPU"].value == "AMD EPYC"


def test_a_history_that_breaks_while_it_is_read_leaves_the_rest_of_the_page(history: History, store_url: str) -> None:
    engine = create_engine(store_url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE runs"))
    engine.dispose()
    page = _page(make_machine(), history)
    assert isinstance(page.ceilings, Absent)
    assert "no such table" in page.ceilings.reason


def test_a_run_that_a_newer_version_wrote_leaves_the_rest_of_the_page(history: History) -> None:
    history.add(replace(make_summary(), schema_version=99), make_machine())
    comparison = _page(make_machine(), history).comparison
    assert isinstance(comparison, Absent)
    assert "written with schema version 99" in comparison.reason


def test_an_unchanged_machine_has_no_difference(history: History) -> None:
    history.add(make_summary(), make_machine())
    assert _page(make_machine(), history).comparison == MachineComparison(
        run="run-a", strategy="ddp", started_ns=make_summary().started_ns, differences=()
    )


def test_the_newest_good_run_of_this_host_is_compared(history: History) -> None:
    old = replace(make_machine(), kernel="5.0")
    history.add(make_summary("run-older", started_ns=1), replace(make_machine(), kernel="4.0"))
    history.add(make_summary("run-good", started_ns=2), old)
    history.add(make_summary("run-failed", started_ns=3, outcome="failed"), make_machine())
    history.add(make_summary("run-elsewhere", started_ns=4), replace(make_machine(), hostname="node9"))
    comparison = _page(make_machine(), history).comparison
    assert isinstance(comparison, MachineComparison)
    assert comparison.run == "run-good"
    assert comparison.differences == (MachineDifference(field="kernel", before="5.0", now="6.1"),)


def test_a_host_without_a_good_run_says_how_to_make_one(history: History) -> None:
    comparison = _page(make_machine(), history).comparison
    assert comparison == Absent(reason="the history has no successful run on node0; `observatory run ddp` makes one")
