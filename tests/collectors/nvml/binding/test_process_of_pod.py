"""A process in a real cgroup, which a real library of NVML lists, has series that name its pod."""

from __future__ import annotations

import json
import os
from pathlib import Path

from collectors.metrics.gpu import GPU_PROCESS_MEMORY, GPU_PROCESS_UTILIZATION
from tests.collectors.host.cgroups import mount_of, process_in
from tests.collectors.nvml.binding.stub import build, run

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


def test_a_process_that_the_driver_lists_is_named_by_its_pod(tmp_path: Path) -> None:
    library = build(tmp_path)
    with process_in(mount_of("v2") / f"observatory-test-{os.getpid()}" / PATH) as pid:
        done = run(library, "-c", READ, PID=str(pid), PROCESS=str(5 << 30), SHARE="37")
    assert done.returncode == 0, done.stderr
    found = {(metric, labels["gpu"]): (labels, value) for metric, labels, value in json.loads(done.stdout)}
    for metric, value in ((GPU_PROCESS_MEMORY, 5 << 30), (GPU_PROCESS_UTILIZATION, 0.37)):
        labels, seen = found[metric.name, "0"]
        assert seen == value
        assert (labels["pid"], labels["pod_uid"], labels["container_id"]) == (str(pid), UID, ID)
    other, _ = found[GPU_PROCESS_MEMORY.name, "1"]  # Of the stub's own number, which is no process of a pod.
    assert other["pod_uid"] == ""


def test_a_share_beyond_the_whole_is_absent_through_the_binding_too(tmp_path: Path) -> None:
    done = run(build(tmp_path), "-c", READ, PID="42", SHARE=str(2**32 - 1))
    assert done.returncode == 0, done.stderr
    shares = {labels["gpu"]: value for metric, labels, value in json.loads(done.stdout) if "_sm_" in metric}
    assert shares == {"1": 0.61}
    assert "utilization by process (4294967295 % is implausible: 0 to 100)" in done.stderr
