"""The image and the limits of the container that this process is in, and why each is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.machine.container import IMAGE_VARIABLES, read_container
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
