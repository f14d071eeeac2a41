"""A container's or a job's limit on memory is found, in either version of control groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.machine.preflight import left_in_groups


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("limit", "usage"),
    [
        ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ],
)
def test_what_is_used_is_taken_from_the_limit(limit: str, usage: str, tmp_path: Path) -> None:
    assert left_in_groups(tree(tmp_path, {limit: "5000\n", usage: "2000\n"})) == [3000]


def test_a_group_without_a_limit_leaves_no_figure(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "2000\n"}
    assert left_in_groups(tree(tmp_path, files)) == []


def test_a_machine_without_control_groups_leaves_no_figure(tmp_path: Path) -> None:
    assert left_in_groups(tmp_path) == []


def test_pages_of_files_can_be_had_back(tmp_path: Path) -> None:
    group = {"memory.max": "16000", "memory.current": "15500", "memory.stat": "anon 100\ninactive_file 15000\n"}
    files = {f"sys/fs/cgroup/{name}": text for name, text in group.items()}
    assert left_in_groups(tree(tmp_path, files)) == [15500]


def test_the_process_s_own_group_counts_and_all_above_it(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
        "sys/fs/cgroup/slurm/memory.max": "9000",
        "sys/fs/cgroup/slurm/memory.current": "1000",
        "sys/fs/cgroup/slurm/job_7/memory.max": "4000",
        "sys/fs/cgroup/slurm/job_7/memory.current": "500",
    }
    assert left_in_groups(tree(tmp_path, files)) == [3500, 8000]


def test_the_first_version_has_a_group_of_its_own_for_memory(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/other\n3:memory:/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "700",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "100",
        "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 5\ntotal_inactive_file 50\n",
    }
    assert left_in_groups(tree(tmp_path, files)) == [650]
