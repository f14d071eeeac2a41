"""Processes on a GPU: what each uses, on whole GPUs and under MIG, and whether the driver names all to this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pynvml import NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED

from collectors.host.process_owner import ProcessOwner
from collectors.metrics.agent import IMPLAUSIBLE
from collectors.metrics.gpu import GPU_INSTANCE_TASKS, GPU_PROCESS_MEMORY, GPU_PROCESS_UTILIZATION, GPU_TASKS
from collectors.metrics.metric import Sample
from collectors.nvml.gpu import PolledGpu
from collectors.nvml.processes import MOST_PROCESSES
from collectors.nvml.queries import names_all_processes
from collectors.nvml.recorder import AnswerTrack, RecordedGpu, record
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, eight_gpus, opened, replayed, values

PROCESSES, SHARES = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"
SPLIT = eight_gpus().gpus[7]


def _of(samples: list[Sample], metric: Any) -> dict[str, float]:
    """The values of a metric by pid."""
    return {sample.labels["pid"]: sample.value for sample in samples if sample.metric == metric.name}


def _two() -> RecordedGpu:
    """One busy process, and one that is idle."""
    listed = [{"pid": 71, "usedGpuMemory": 5}, {"pid": 72, "usedGpuMemory": None}]
    return a_gpu({PROCESSES: listed, SHARES: [{"pid": 71, "smUtil": 37}, {"pid": 99, "smUtil": 1}]})


def test_a_process_has_its_memory_and_share_with_who_it_is() -> None:
    clock = FakeClock()
    owners = {71: ProcessOwner(process="python3", container_id="f" * 64, pod_uid="u", slurm_job="42")}
    owner_of = lambda pid: owners.get(pid, ProcessOwner())  # noqa: E731
    with opened(replayed(a_node(_two()), clock), clock, owner_of=owner_of) as collector:
        collector.read()
        clock.now_s = 1.0
        samples = collector.read()
    labels = {"gpu": "0", "slice": "", "pid": "71", "process": "python3", "run": "", "rank": ""}
    labels |= {"container_id": "f" * 64, "pod_uid": "u", "slurm_job": "42"}
    assert GPU_PROCESS_MEMORY.at(5, **labels) in samples
    assert GPU_PROCESS_UTILIZATION.at(0.37, **labels) in samples
    assert _of(samples, GPU_PROCESS_MEMORY) == {"71": 5}  # The driver does not tell it of the other.
    assert _of(samples, GPU_PROCESS_UTILIZATION) == {"71": 0.37, "72": 0.0}


def test_the_first_share_is_of_an_unknown_time_and_left_out() -> None:
    clock = FakeClock(now_s=1.0)
    with opened(replayed(a_node(_two()), clock), clock) as collector:
        assert _of(collector.read(), GPU_PROCESS_UTILIZATION) == {}


def test_a_process_of_a_given_nvml_is_not_looked_for_on_this_node() -> None:
    clock = FakeClock()
    gpu = a_gpu({PROCESSES: [{"pid": 1, "usedGpuMemory": 5}]})
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        (sample,) = [one for one in collector.read() if one.metric == GPU_PROCESS_MEMORY.name]
    assert sample.labels["process"] == ""


def test_a_series_ends_with_its_process() -> None:
    clock = FakeClock()
    gpu = a_gpu()
    gpu.tracks[PROCESSES] = AnswerTrack(at_s=[0, 10], values=[[{"pid": 71, "usedGpuMemory": 5}], []])
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        assert _of(collector.read(), GPU_PROCESS_MEMORY) == {"71": 5}
        clock.now_s = 10.0
        assert _of(collector.read(), GPU_PROCESS_MEMORY) == {}


def test_a_share_stays_while_the_driver_has_no_newer_sample_and_then_is_none() -> None:
    clock = FakeClock()
    gpu = a_gpu({PROCESSES: [{"pid": 71, "usedGpuMemory": 5}]})
    gpu.tracks[SHARES] = AnswerTrack(at_s=[0, 3], values=[[{"pid": 71, "smUtil": 37}], []])
    shares = []
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        for clock.now_s in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
            shares.append(_of(collector.read(), GPU_PROCESS_UTILIZATION).get("71"))
    assert shares == [None, 0.37, 0.37, 0.37, 0.0, 0.0]


def test_under_mig_a_process_has_the_memory_of_its_slice_and_no_share() -> None:
    clock = FakeClock()
    with opened(replayed(a_node(SPLIT), clock), clock) as collector:
        collector.read()
        clock.now_s = 60.0
        samples, absent = collector.read(), collector.absent
    found = {(one.labels["slice"], one.labels["pid"]): one for one in samples if one.metric == GPU_PROCESS_MEMORY.name}
    assert {key: one.value for key, one in found.items()} == {("1/0", "5000"): 40e9, ("2/0", "5001"): 40e9}
    assert _of(samples, GPU_PROCESS_UTILIZATION) == {}
    assert "GPU 0: split by MIG; NVML reports no utilization of the GPU, an instance or a process" in absent


def test_a_driver_that_counts_no_shares_is_named() -> None:
    clock = FakeClock()
    listed = [{"pid": 71, "usedGpuMemory": 5}]
    gpu = a_gpu({PROCESSES: listed}, without=(SHARES,), refusals={SHARES: NVML_ERROR_NOT_SUPPORTED})
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        samples, absent = collector.read(), collector.absent
    assert _of(samples, GPU_PROCESS_MEMORY) == {"71": 5}
    assert "utilization by process" in next(line for line in absent if "does not report" in line)


def test_a_share_that_cannot_be_is_left_out_and_counted() -> None:
    clock = FakeClock()
    listed = [{"pid": pid, "usedGpuMemory": 5} for pid in (71, 72)]
    shares = [{"pid": 71, "smUtil": 2**32 - 1}, {"pid": 72, "smUtil": 12}]
    with opened(replayed(a_node(a_gpu({PROCESSES: listed, SHARES: shares})), clock), clock) as collector:
        for clock.now_s in (1.0, 2.0):
            samples = collector.read()
    assert _of(samples, GPU_PROCESS_UTILIZATION)["72"] == 0.12
    assert "71" not in _of(samples, GPU_PROCESS_UTILIZATION)
    assert IMPLAUSIBLE.at(2, source="nvml", question="utilization by process") in samples


def test_the_processes_with_the_least_memory_have_no_series_on_a_crowded_gpu() -> None:
    clock = FakeClock()
    listed = [{"pid": pid, "usedGpuMemory": pid} for pid in range(1, MOST_PROCESSES + 11)]
    with opened(replayed(a_node(a_gpu({PROCESSES: listed})), clock), clock) as collector:
        samples, absent = collector.read(), collector.absent
    assert set(_of(samples, GPU_PROCESS_MEMORY)) == {str(pid) for pid in range(11, MOST_PROCESSES + 11)}
    assert values(samples)[GPU_TASKS.name] == MOST_PROCESSES + 10
    (line,) = [line for line in absent if "series of their own" in line]
    assert line.startswith(f"GPU 0: sometimes more than {MOST_PROCESSES} processes compute on it")


def test_series_keep_their_order_while_memory_grows() -> None:
    clock = FakeClock()
    first, then = (
        [{"pid": 71, "usedGpuMemory": one}, {"pid": 72, "usedGpuMemory": two}] for one, two in ((1, 2), (3, 2))
    )
    gpu = a_gpu()
    gpu.tracks[PROCESSES] = AnswerTrack(at_s=[0, 1], values=[first, then])
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        orders = []
        for clock.now_s in (0.0, 1.0):
            orders.append(list(_of(collector.read(), GPU_PROCESS_MEMORY)))
    assert orders == [["71", "72"], ["71", "72"]]


def test_a_process_that_is_listed_twice_has_one_series() -> None:
    clock = FakeClock()
    listed = [{"pid": 71, "usedGpuMemory": 5}, {"pid": 71, "usedGpuMemory": 7}]
    with opened(replayed(a_node(a_gpu({PROCESSES: listed})), clock), clock) as collector:
        found = [one.value for one in collector.read() if one.metric == GPU_PROCESS_MEMORY.name]
    assert found == [12]


@pytest.mark.parametrize("recorded", [_two(), SPLIT], ids=["whole", "split"])
def test_processes_of_another_pid_namespace_have_no_series(recorded: RecordedGpu) -> None:
    clock = FakeClock(now_s=60.0)
    nvml = replayed(a_node(recorded), clock)
    nvml.nvmlInit()
    gpu = PolledGpu(nvml, 0, driver="590", cuda="13.1", per_link=False, names_processes=False, clock_ns=clock.ns)
    assert not {GPU_PROCESS_MEMORY.name, GPU_PROCESS_UTILIZATION.name} & {one.metric for one in gpu.read().samples}
    assert any("does not name all processes" in (one.reason or "") for one in gpu.support.all())
    gpu.close()


def test_no_process_has_a_series_where_nobody_asks_for_them() -> None:
    clock = FakeClock()
    asked: list[str] = []
    nvml = FakeFault(replayed(a_node(_two()), clock), spoil=lambda name, _: asked.append(name)).spoilt
    with opened(nvml, clock, per_process=False) as collector:
        samples = collector.read()
    assert _of(samples, GPU_PROCESS_MEMORY) == _of(samples, GPU_PROCESS_UTILIZATION) == {}
    assert values(samples)[GPU_TASKS.name] == 2
    assert SHARES not in asked


def test_shares_are_recorded_without_the_times_of_their_samples(tmp_path: Path) -> None:
    clock = FakeClock()
    gpu = a_gpu({PROCESSES: [{"pid": 71, "usedGpuMemory": 5}]})
    gpu.tracks[SHARES] = AnswerTrack(at_s=[0, 2], values=[[{"pid": 71, "smUtil": 37}], []])

    def wait(seconds: float) -> None:
        clock.now_s += seconds

    recording = record(replayed(a_node(gpu), clock), seconds=4, note="for tests", clock_s=clock.seconds, wait=wait)
    track = recording.gpus[0].tracks[SHARES]
    assert track.values[-2:] == [[{"pid": 71, "smUtil": 37}], []]
    assert not any(question.startswith(f"{SHARES}(") for question in recording.gpus[0].tracks)
    nvml = replayed(recording, clock := FakeClock())
    nvml.nvmlInit()
    clock.now_s = 3.5
    with pytest.raises(Exception) as error:  # noqa: PT011
        nvml.nvmlDeviceGetProcessUtilization(nvml.nvmlDeviceGetHandleByIndex(0), 0)
    assert getattr(error.value, "value", None) == NVML_ERROR_NOT_FOUND


@pytest.mark.parametrize(("namespace", "is_hosts"), [("pid:[4026531836]", True), ("pid:[4026532561]", False)])
def test_all_processes_are_named_outside_of_containers_only(namespace: str, is_hosts: bool, tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(namespace)
    assert names_all_processes(tmp_path) is is_hosts


def test_a_kernel_that_does_not_tell_its_namespaces_is_not_trusted(tmp_path: Path) -> None:
    assert not names_all_processes(tmp_path)


@pytest.mark.parametrize("recorded", [a_gpu(), eight_gpus().gpus[7]], ids=["whole", "split"])
def test_processes_that_are_not_all_named_are_not_counted(recorded: RecordedGpu) -> None:
    clock = FakeClock()
    nvml = replayed(a_node(recorded), clock)
    nvml.nvmlInit()
    gpu = PolledGpu(nvml, 0, driver="590", cuda="13.1", per_link=False, names_processes=False, clock_ns=clock.ns)
    counts = {GPU_TASKS.name, GPU_INSTANCE_TASKS.name}
    assert not counts & {sample.metric for sample in gpu.read().samples}
    (reason,) = {one.reason for one in gpu.support.all() if one.question == "list of processes"}
    assert reason is not None
    assert "container" in reason
    gpu.close()
