"""Who a process is by its cgroups: by lines that public sources record, and by real cgroups of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.host.process_owner import NOBODY, ProcessOwner, by_cgroups, read_owner
from tests.collectors.host.cgroups import mount_of, process_in

ID = "6d393320601b821561e43bd46f658284cb172cf297ecc3d3665be657870d32e2"
UID = "57e67067-89e4-4001-bdd4-8632d39ea02b"
ESCAPED = UID.replace("-", "_")
OF_POD = ProcessOwner(container_id=ID, pod_uid=UID)
OF_CONTAINER = ProcessOwner(container_id=ID)

# By the driver of the cgroups and the runtime, with one id and UID in all. Sources: spiffe/spire,
# pkg/agent/plugin/workloadattestor/k8s/k8s_posix.go (drivers, docker in docker, views from a pod);
# containerd/containerd, pkg/cri/sbserver/helpers_linux_test.go (the name with colons); neuvector/neuvector,
# share/system/cgroup_test.go (docker); podman's `systemctl status` of quadlets (payload); SchedMD/slurm,
# doc/html/cgroup_v2.shtml (job 3385), and lines of real nodes in NordicHPC/sonar, src/linux/slurm_test.rs (the others).
RECORDED = {
    "Kubernetes, systemd, containerd": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        OF_POD,
    ),
    "Kubernetes, systemd, CRI-O, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope",
        OF_POD,
    ),
    "Kubernetes, systemd, CRI-O, with the container's own cgroup below": (
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice/crio-{ID}.scope/container",
        OF_POD,
    ),
    "Kubernetes, systemd, docker, v1": (
        "12:cpuset:/\n11:pids:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
        f"{ESCAPED}.slice/docker-{ID}.scope\n0::/",
        OF_POD,
    ),
    "Kubernetes, cgroupfs": (f"4:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/", OF_POD),
    "Kubernetes, cgroupfs, CRI-O, guaranteed": (f"0::/kubepods/pod{UID}/crio-{ID}", OF_POD),
    "Kubernetes, cgroupfs, containerd that believes in systemd": (
        f"11:devices:/system.slice/containerd.service/kubepods-besteffort-pod{ESCAPED}.slice:cri-containerd:{ID}",
        OF_POD,
    ),
    "Kubernetes, a static pod, whose UID is a hash": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pode4e6004e827fdf45941cf777618f60ce.slice/crio-{ID}"
        ".scope",
        ProcessOwner(container_id=ID, pod_uid="e4e6004e827fdf45941cf777618f60ce"),
    ),
    "kind: a container in a container": (
        f"0::/system.slice/docker-{'3' * 64}.scope/kubelet.slice/kubelet-kubepods.slice"
        f"/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        OF_POD,
    ),
    "seen from a pod with a cgroup namespace of its own, cgroupfs": (f"0::/../../pod{UID}/{ID}", OF_POD),
    "seen from a pod with a cgroup namespace of its own, systemd": (
        f"0::/../../kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
        OF_POD,
    ),
    "seen from a container of the same pod": (f"0::/../crio-{ID}.scope", OF_CONTAINER),
    "docker, systemd": (f"0::/system.slice/docker-{ID}.scope", OF_CONTAINER),
    "docker, cgroupfs": (f"10:devices:/docker/{ID}", OF_CONTAINER),
    "docker on old Debian": (f"10:net_prio:/{ID}", OF_CONTAINER),
    "docker without root": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope",
        OF_CONTAINER,
    ),
    "podman": (f"0::/machine.slice/libpod-{ID}.scope", OF_CONTAINER),
    "podman, with init": (f"0::/machine.slice/libpod-{ID}.scope/container", OF_CONTAINER),
    "podman in a service": (f"0::/system.slice/model.service/libpod-payload-{ID}", OF_CONTAINER),
    "podman without root": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        OF_CONTAINER,
    ),
    "Slurm, v2": (
        "0::/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0",
        ProcessOwner(slurm_job="1392969"),
    ),
    "Slurm, v2, a shell": (
        "0::/system.slice/slurmstepd.scope/job_3385/step_interactive/user/task_0",
        ProcessOwner(slurm_job="3385"),
    ),
    "Slurm, v2, several slurmd on a node": (
        "0::/system.slice/node1_slurmstepd.scope/job_42/step_batch/user/task_special",
        ProcessOwner(slurm_job="42"),
    ),
    "Slurm, v1": (
        "11:cpu,cpuacct:/\n10:devices:/slurm/uid_2101171/job_280678/step_interactive/task_0\n0::/",
        ProcessOwner(slurm_job="280678"),
    ),
    "Slurm, v1, with one of the controllers": (
        "13:freezer:/slurm/uid_7319/job_748468/step_0\n12:cpu,cpuacct:/system.slice/slurmd.service\n7:cpuset:/\n"
        "2:memory:/system.slice/slurmd.service\n1:name=systemd:/system.slice/slurmd.service",
        ProcessOwner(slurm_job="748468"),
    ),
    "Slurm, v1, several slurmd on a node": (
        "4:memory:/slurm_node1/uid_1000/job_42/step_0/task_0",
        ProcessOwner(slurm_job="42"),
    ),
    "docker in a job of Slurm": (
        f"0::/system.slice/slurmstepd.scope/job_42/step_0/user/docker/{ID}",
        ProcessOwner(container_id=ID, slurm_job="42"),
    ),
    "a login": ("0::/user.slice/user-1000.slice/session-3.scope", NOBODY),
    "a service": ("0::/system.slice/slurmd.service", NOBODY),
    "Slurm's own process": ("0::/system.slice/slurmstepd.scope/system", NOBODY),
    "no cgroups": ("", NOBODY),
}


@pytest.mark.parametrize(("cgroups", "owner"), RECORDED.values(), ids=RECORDED)
def test_cgroups_name_container_pod_and_job(cgroups: str, owner: ProcessOwner) -> None:
    assert by_cgroups(f"{cgroups}\n") == owner


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/{ID[:-1]}",
        f"/docker/{ID}0",
        f"/docker/{ID.upper()}",
        f"/kubepods/burstable/pod{UID}0/x",
        f"/kubepods/burstable/xpod{UID}/x",
        "/kubepods/burstable/pod\x1b[31m/x",
        "/job_42/step_0",
        "/user.slice/job_456",
        "/system.slice/slurmstepd.scope/job_bad",
        f"/slurm/uid_1/job_{'9' * 21}/x",
        f"/slurm/uid_1/job_{ID[:8]}/x",
    ],
)
def test_what_only_looks_alike_names_nobody(path: str) -> None:
    found = by_cgroups(f"0::{path}\n")
    assert (found.container_id, found.slurm_job) == ("", "")
    assert found.pod_uid in {"", UID if f"pod{UID}/" in path and "xpod" not in path else ""}


def test_cgroups_that_a_user_may_make_name_neither_pod_nor_job() -> None:
    own = "0::/user.slice/user-1000.slice/user@1000.service/app.slice"
    forged = f"kubepods/burstable/pod{UID}/{ID}", "slurmstepd.scope/job_42/step_0", "slurm/uid_0/job_42/step_0"
    for path in forged:
        found = by_cgroups(f"{own}/{path}\n")
        assert (found.pod_uid, found.slurm_job) == ("", "")


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("case", ["Kubernetes, systemd, containerd", "Kubernetes, cgroupfs", "Slurm, v2"])
def test_a_process_in_a_real_cgroup_has_its_owner(case: str, version: str) -> None:
    cgroups, owner = RECORDED[case]
    path = cgroups.splitlines()[0].split(":")[2]
    with process_in(mount_of(version) / f"observatory-test-{os.getpid()}" / path.strip("/")) as pid:
        found = read_owner(pid)
    assert found == replace(owner, process=found.process)
    assert found.process  # It may not be called `sleep` yet.
    assert read_owner(pid) == NOBODY  # It has ended.


def test_a_reader_in_a_pod_of_its_own_finds_the_pods_of_others() -> None:
    top = mount_of("v2") / f"observatory-test-{os.getpid()}"
    with (
        process_in(top / f"kubepods/burstable/pod{UID}/{ID}") as pid,
        process_in(top / f"kubepods/pod{UID}x/{'7' * 64}"),
    ):
        own = top / f"kubepods/pod{UID}x/{'7' * 64}/cgroup.procs"
        words = (
            f"echo $$ > {own}; exec unshare --cgroup {sys.executable} -c 'print(open(\"/proc/{pid}/cgroup\").read())'"
        )
        read = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=60, check=False)
    if read.returncode != 0:
        pytest.skip(f"no cgroup namespace can be made here ({read.stderr.strip()})")
    assert "/../" in read.stdout  # The kernel shows the path from the reader's own cgroup.
    assert by_cgroups(read.stdout) == OF_POD


def test_a_name_that_a_process_chose_is_plain_and_on_one_line() -> None:
    chosen = (
        r"import ctypes, sys; ctypes.CDLL(None).prctl(15, b'\x1b[31m\n\xff{}'); print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", chosen], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert read_owner(process.pid).process == r"\x1b[31m\n\xff{}"
    finally:
        process.communicate()


def test_a_name_is_cut(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_text("k" * 500)
    assert read_owner(7, tmp_path).process == "k" * 64


def test_a_process_that_nobody_may_look_at_is_nobody(tmp_path: Path) -> None:
    assert read_owner(7, tmp_path) == NOBODY
