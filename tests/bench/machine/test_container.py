"""The image and the limits of the container that this process is in, and why each is unknown."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bench.machine.container import IMAGE_VARIABLES, out_of_memory_kills, read_container
from tests.bench.machine.limits.memory_group import memory_group
from tests.bench.machine.test_control_groups import tree


def test_without_a_container_each_field_has_its_reason(tmp_path: Path) -> None:
    found = read_container({}, tmp_path)
    assert (found.image, found.cpu_limit_cores, found.memory_limit_bytes) == (None, None, None)
    assert found.absent.keys() == {"image", "cpu_limit_cores", "memory_limit_bytes"}
    assert found.absent["image"].startswith("none of OBSERVATORY_IMAGE, ")


@pytest.mark.parametrize("name", IMAGE_VARIABLES)
def test_the_image_is_what_its_engine_calls_it(name: str, tmp_path: Path) -> None:
    found = read_container({name: "ours@sha256:1"}, tmp_path)
    assert found.image == "ours@sha256:1"
    assert "image" not in found.absent


def test_the_least_limit_of_all_groups_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/job\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/cpu.max": "750000 100000\n",
        "sys/fs/cgroup/pod/job/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/pod/memory.max": "9000\n",
        "sys/fs/cgroup/pod/job/memory.max": "max\n",
    }
    found = read_container({}, tree(tmp_path, files))
    assert (found.cpu_limit_cores, found.memory_limit_bytes) == (7.5, 9000)


def test_the_first_version_of_control_groups_writes_no_limit_as_a_number(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/\n3:memory:/job\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "7000\n",
    }
    found = read_container({}, tree(tmp_path, files))
    assert (found.cpu_limit_cores, found.memory_limit_bytes) == (None, 7000)


@pytest.mark.parametrize(
    ("group", "file", "text"),
    [
        ("0::/job", "sys/fs/cgroup/job/memory.events", "low 0\nmax 9\noom 4\noom_kill 3\n"),
        ("0::/in/another/namespace", "sys/fs/cgroup/memory.events", "oom 4\noom_kill 3\n"),
        ("4:memory:/job", "sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\noom_kill 3\n"),
    ],
)
def test_the_kernels_kills_for_lack_of_memory_are_counted_in_the_group(
    group: str, file: str, text: str, tmp_path: Path
) -> None:
    assert out_of_memory_kills(tree(tmp_path, {"proc/self/cgroup": f"{group}\n", file: text})) == 3


@pytest.mark.parametrize("text", ["", "oom_kill_disable 0\nunder_oom 0\n"])
def test_a_group_without_a_counter_counts_no_kills(text: str, tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "4:memory:/job\n", "sys/fs/cgroup/memory/job/memory.oom_control": text}
    assert out_of_memory_kills(tree(tmp_path, files)) is None
    assert out_of_memory_kills(tmp_path / "without") is None


def test_a_real_group_counts_the_process_that_the_kernel_killed() -> None:
    count = "from bench.machine.container import out_of_memory_kills; print(out_of_memory_kills())"
    with memory_group() as group:
        assert int(group.run("-c", count).stdout) == 0
        group.limit(100_000_000)
        assert group.run("-c", "bytearray(1_000_000_000)").returncode == -signal.SIGKILL
        assert int(group.run("-c", count).stdout) == 1
