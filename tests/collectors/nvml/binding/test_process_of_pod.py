"""A process in a real cgroup, which a real library of NVML lists, has series that name its pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from collectors.metrics.gpu import GPU_PROCESS_MEMORY, GPU_PROCESS_UTILIZATION
from tests.collectors.host.cgroups import mount_of, process_in
from tests.support.nvml.library import fake_node
from tests.support.nvml.scenes import H100, node_of

ID, UID = "9b" * 32, "57e67067-89e4-4001-bdd4-8632d39ea02b"
PATH = f"kubepods.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope"
# NVML is given, so that its processes count as this node's even where the test itself is in a container.
READ = """
import json, sys
from collectors.host.process_owner import read_owner
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import installed_nvml
collector = NvmlCollector(installed_nvml(), owner_of=read_owner, deadline_s=30.0, open_s=30.0)
samples = [collector.read() for _ in range(2)][-1]
json.dump([[one.metric, one.labels, one.value] for one in samples if "_process_" in one.metric], sys.stdout)
print(collector.absent, file=sys.stderr)
collector.close()
"""


def _read(
    library: Path, folder: Path, **of_gpu_0: str
) -> tuple[dict[tuple[str, str], tuple[dict[str, str], float]], str]:
    """Return labels and value of each series by metric and GPU, and what is absent."""
    healthy = {**node_of(H100, H100), "ComputeRunningProcesses": f"42:{1 << 30}", "ProcessUtilization": "42:61"}
    node = fake_node(folder, library, healthy | {f"0.{name}": answer for name, answer in of_gpu_0.items()})
    done = subprocess.run(
        [sys.executable, "-P", "-c", READ],
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    series = {(metric, labels["gpu"]): (labels, value) for metric, labels, value in json.loads(done.stdout)}
    return series, done.stderr


def test_a_process_that_the_driver_lists_is_named_by_its_pod(nvml_library: Path, tmp_path: Path) -> None:
    with process_in(mount_of("v2") / f"observatory-test-{os.getpid()}" / PATH) as pid:
        series, _ = _read(
            nvml_library, tmp_path, ComputeRunningProcesses=f"{pid}:{5 << 30}", ProcessUtilization=f"{pid}:37"
        )
    for metric, value in ((GPU_PROCESS_MEMORY, 5 << 30), (GPU_PROCESS_UTILIZATION, 0.37)):
        labels, seen = series[metric.name, "0"]
        assert seen == value
        assert (labels["pid"], labels["pod_uid"], labels["container_id"]) == (str(pid), UID, ID)
    other, _ = series[GPU_PROCESS_MEMORY.name, "1"]  # Of a number that is no process of a pod.
    assert other["pod_uid"] == ""


def test_a_share_beyond_the_whole_is_absent(nvml_library: Path, tmp_path: Path) -> None:
    series, absent = _read(nvml_library, tmp_path, ProcessUtilization=f"42:{2**32 - 1}")
    assert {gpu: value for (metric, gpu), (_, value) in series.items() if "_sm_" in metric} == {"1": 0.61}
    assert "utilization by process (4294967295 % is implausible: 0 to 100)" in absent
