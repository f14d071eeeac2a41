"""Limits of a process and of its control groups: real ulimits, a real control group, and devices in a mounted /sys."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench.machine.container import own_groups
from bench.machine.limits.demand import Demand
from bench.machine.limits.process_limits import group_memory, group_tasks
from bench.machine.limits.registry import LIMITS, judge
from tests.bench.machine.limits.namespaces import run_with_mounts

GPUS = Demand(ranks=8, world=64, is_on_gpus=True, uses_nccl=True)
JUDGE = f"""
from bench.machine.limits.demand import Demand
from bench.machine.limits.registry import judge
for verdict in judge({GPUS!r}, {{}}):
    print(verdict.name, verdict.is_enough, verdict.text, sep=": ")
"""
ON_INFINIBAND = "mount -t tmpfs tmpfs /sys/class && mkdir -p /sys/class/infiniband/mlx5_0"
NOBODY = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]


def _judged(*limited: str, mounts: str = ":") -> dict[str, str]:
    """Return each limit as a process with these limits (words of prlimit) judges it for eight GPUs."""
    code = (
        "import subprocess, sys\n"
        f"sys.exit(subprocess.run(['prlimit', *{list(limited)!r}, *{NOBODY!r}, sys.executable, '-c', {JUDGE!r}]"
        ").returncode)"
    )
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user, whom limits bind")
    done = run_with_mounts(mounts, "-c", code)
    assert done.returncode == 0, done.stderr
    lines = (line.partition(": ") for line in done.stdout.splitlines())
    return {name: text for name, _, text in lines}


def test_locked_memory_of_64_kb_is_too_little_where_there_is_infiniband() -> None:
    text = _judged("--memlock=65536:65536", mounts=ON_INFINIBAND)["locked memory (memlock)"]
    assert text.startswith("False: 64 KiB, but needed: unlimited; InfiniBand locks the memory that it sends")
    assert "docker run --ulimit memlock=-1" in text
    assert "LimitMEMLOCK=" in text
    assert "PropagateResourceLimits" in text


def test_locked_memory_is_not_needed_without_infiniband() -> None:
    none = "mount -t tmpfs tmpfs /sys/class"
    assert _judged("--memlock=65536:65536", mounts=none)["locked memory (memlock)"] == "True: 64 KiB"


def test_whoever_may_lock_memory_is_not_limited() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has CAP_IPC_LOCK")
    done = run_with_mounts(f"{ON_INFINIBAND}\nulimit -l 64", "-c", JUDGE)
    assert "locked memory (memlock): True: 64 KiB" in done.stdout


def test_each_small_limit_is_named_with_what_ranks_need() -> None:
    texts = _judged("--nofile=256:4096", "--nproc=500", "--stack=1048576", "--as=8000000000", "--core=unlimited")
    assert texts["open files (nofile)"].startswith(
        "False: 256 (may be raised to 4,096), but needed: 768 for a rank; each rank opens a connection to each other"
    )
    assert texts["processes and threads (nproc)"].startswith("False: 500, but needed: 512 for 8 ranks; ")
    assert texts["stack"].startswith("False: 1 MiB, but needed: at least 2 MiB; ")
    assert texts["address space (as)"].startswith("False: 7.45 GiB, but needed: unlimited; CUDA reserves addresses")


def test_core_files_count_only_where_they_become_files() -> None:
    pattern = "echo {} > /tmp/core_pattern && mount --bind /tmp/core_pattern /proc/sys/kernel/core_pattern"
    private = "mount -t tmpfs tmpfs /tmp"
    text = _judged("--core=unlimited", mounts=f"{private}\n{pattern.format('core.%p')}")["core files (core)"]
    assert text.startswith("False: unlimited, written to core.%p, but needed: 0; a rank that is killed writes all")
    piped = _judged("--core=unlimited", mounts=f"{private}\n{pattern.format(chr(39) + '|/bin/false' + chr(39))}")
    assert piped["core files (core)"] == "True: unlimited"


@pytest.fixture
def group() -> Iterator[tuple[Path, Path]]:
    """A control group for tasks and one for memory beneath our own, of version 1 or 2."""
    folders = []
    try:
        for controller, limit, value in (("pids", "pids.max", "100"), ("memory", "memory", "200000000")):
            version, own = next(own_groups(controller))
            folder = own / f"observatory-test-{os.getpid()}"
            folder.mkdir()
            folders.append(folder)
            name = {"pids.max": "pids.max", "memory": "memory.max" if version == 2 else "memory.limit_in_bytes"}[limit]
            (folder / name).write_text(value)
        yield folders[0], folders[1]
    except (OSError, StopIteration) as error:
        pytest.skip(f"no control group can be made here: {error}")
    finally:
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()


def test_limits_of_a_real_control_group_are_read_in_it(group: tuple[Path, Path]) -> None:
    join = "".join(f"open('{folder}/cgroup.procs', 'w').write(str(os.getpid()))\n" for folder in group)
    code = f"import os\n{join}{JUDGE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    texts = {name: text for name, _, text in (line.partition(": ") for line in done.stdout.splitlines())}
    tasks, memory = texts["tasks of the control group (pids)"], texts["memory of the control group"]
    assert tasks.startswith("False: ")
    assert " left, but needed: 512 for 8 ranks; a rank that cannot start a thread ends; docker run --pids" in tasks
    assert memory.startswith("False: ")
    assert " MiB left, but needed: 7.45 GiB for 8 ranks; the kernel kills a rank with SIGKILL" in memory


def test_groups_without_a_limit_are_unlimited(tmp_path: Path) -> None:
    for version, files in (
        ("0::/", {"pids.max": "max", "pids.current": "5", "memory.max": "max", "memory.current": "1"}),
        ("4:memory,pids:/", {"pids.max": "max", "memory.limit_in_bytes": "9223372036854771712"}),
    ):
        root = tmp_path / version[0]
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(f"{version}\n")
        for folder in ("", "memory", "pids"):
            (root / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (root / "sys/fs/cgroup" / folder / name).write_text(f"{text}\n")
            (root / "sys/fs/cgroup" / folder / "memory.usage_in_bytes").write_text("1\n")
        assert group_tasks(GPUS, {}, root).value == "unlimited"
        assert group_memory(GPUS, {}, root).value == "unlimited"


def test_every_limit_has_a_name_a_reason_and_a_next_step() -> None:
    assert len({limit.name for limit in LIMITS}) == len(LIMITS)
    assert all(limit.why and limit.next_step for limit in LIMITS)


def test_limits_of_this_process_are_those_of_the_kernel() -> None:
    verdicts = {verdict.name: verdict for verdict in judge(GPUS, {})}
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    expected = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    assert verdicts["open files (nofile)"].value.startswith(expected)


@pytest.mark.parametrize(
    ("soft", "hard", "needed", "ends_at"),
    [(256, 4096, 1000, "4096"), (256, 4096, 200, "256"), (4096, 4096, 4096, "4096"), (256, 900, 1000, None)],
)
def test_the_limit_of_open_files_is_raised_where_it_is_needed(
    soft: int, hard: int, needed: int, ends_at: str | None
) -> None:
    code = (
        "import resource\n"
        "from bench.machine.limits.process_limits import require_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"require_files({needed}, 'a runner')\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    if ends_at is None:
        assert "a runner needs 1000 open files, and the hard limit is 900; raise it" in ended.stderr
    else:
        assert ended.stdout.strip() == ends_at
