"""Whether a driver names all processes to this one, and what is said where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.metrics import gpu as gpu_metrics
from collectors.nvml.gpu import Gpu
from collectors.nvml.queries import names_all_processes
from collectors.nvml.recorder import RecordedGpu
from collectors.nvml.recordings.eight_gpus import eight_gpus
from tests.collectors.nvml.nodes import FakeClock, a_gpu, a_node, replayed


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
    gpu = Gpu(nvml, 0, driver="590", cuda="13.1", per_link=False, names_processes=False, clock_ns=clock.ns)
    counts = {gpu_metrics.GPU_TASKS.name, gpu_metrics.GPU_INSTANCE_TASKS.name}
    assert not counts & {sample.metric for sample in gpu.read().samples}
    (reason,) = {one.reason for one in gpu.support.all() if one.question == "list of processes"}
    assert reason is not None
    assert "container" in reason
    gpu.close()
