"""Identifies a process of this node: its name, and the container, pod and Slurm job that its cgroups name.

Queries no container runtime, no kubelet and no Slurm: the paths in /proc/PID/cgroup contain their names.
Knows no GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from collectors.files import open_regular

_PROC = Path("/proc")
_MOST_BYTES = 1 << 16
"""Maximum bytes to read of a file; a process has a cgroup in each hierarchy, at most a dozen."""
_MOST_CHARACTERS = 64
"""Maximum length of a name; only kernel threads have longer names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOwner:
    """The identity of a process; "" for a part that is unknown or does not exist.

    process: its name as `ps` shows it, which the process may choose. container_id: 64 hexadecimal digits.
    pod_uid: as Kubernetes writes it; for a static pod, the hash of its configuration. slurm_job: the job's number.
    """

    process: str = ""
    container_id: str = ""
    pod_uid: str = ""
    slurm_job: str = ""


NOBODY = ProcessOwner()


def read_owner(pid: int, proc: Path = _PROC) -> ProcessOwner:
    """Identify a process of this node; returns NOBODY if it has ended or is hidden from this user (hidepid)."""
    return by_cgroups(_text(proc / f"{pid}/cgroup"), process=_plain(_text(proc / f"{pid}/comm")))


# Sources of the layouts: Kubernetes, pkg/kubelet/cm/pod_container_manager_linux.go and cgroup_manager_linux.go (drivers
# systemd and cgroupfs); containerd, getCgroupsPath; Slurm, doc/html/cgroups.shtml and cgroup_v2.shtml.
#
#   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope (_ for - in UID)
#   /kubepods/burstable/podUID/ID
#   /system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID
#   /system.slice/docker-ID.scope, /docker/ID, /machine.slice/libpod-ID.scope/container
#   /slurm/uid_1000/job_42/step_0/task_0, /system.slice/slurmstepd.scope/job_42/step_0/user/task_0
#
# A reader in its own cgroup namespace sees other paths relative to its root, /../../podUID/ID, so no pattern may depend
# on the start of a path.
_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?:\.scope)?(?=/|$)")
_POD = re.compile(r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[/.:]|$)")
_SLURM_JOB = re.compile(r"/(?:slurm[^/]*/uid_\d+|(?:[^/]+_)?slurmstepd\.scope)/job_(\d{1,20})(?=/|$)")
_OF_A_USER = re.compile(r"/user@\d+\.service/")
"""Below this path systemd lets a user create cgroups of any name, so only rootless containers are looked for there."""


def by_cgroups(cgroups: str, *, process: str = "") -> ProcessOwner:
    """Return the owner that the lines of /proc/PID/cgroup name; the innermost of nested containers and pods.

    cgroup v2 has one line; v1 has a line for each controller, not all of which need be in use.
    """
    paths = [line.split(":", 2)[-1] for line in cgroups.splitlines()]
    of_root = [_OF_A_USER.split(path)[0] for path in paths]
    return ProcessOwner(
        process=process,
        container_id=_last(_CONTAINER, paths),
        pod_uid=_last(_POD, of_root).replace("_", "-"),
        slurm_job=_last(_SLURM_JOB, of_root),
    )


def _last(pattern: re.Pattern[str], paths: list[str]) -> str:
    """Return the last match in the first path that has one."""
    return next((matches[-1] for path in paths if (matches := pattern.findall(path))), "")


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(_MOST_BYTES).decode(errors="backslashreplace")
    except OSError:  # The process has ended, or belongs to another user.
        return ""


def _plain(name: str) -> str:
    """Return a process's name on one line, shortened, with control characters escaped."""
    name = name.removesuffix("\n")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name)[
        :_MOST_CHARACTERS
    ]
