"""What is said to differ between two readings of a machine, and what is not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from bench.machine.gpus import Gpu, GpuLink, LinkKind
from bench.machine.machine import Machine
from bench.machine.machine_diff import MachineDifference, differences, differences_of_nodes
from tests.bench.made.examples import make_machine

CHANGES: dict[str, Any] = {
    "hostname": "node1",
    "system": "Darwin",
    "kernel": "6.2",
    "architecture": "aarch64",
    "python_version": "3.12.1",
    "own_version": "0.2.0",
    "commit": "abc",
    "is_dirty": True,
    "torch_version": "2.12.0",
    "torch_cuda_version": "13.0",
    "torch_hip_version": "6.4",
    "cuda_driver_version": "13.0",
    "nccl_version": "2.28.9",
    "driver_version": "580.82.07",
    "gpus": (Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=None),),
    "cpu": "Intel Xeon",
    "usable_cores": 4,
    "physical_cores": 1,
    "memory_bytes": 1 << 35,
    "container_image": "ours@sha256:1",
    "cpu_limit_cores": 7.5,
    "memory_limit_bytes": 1 << 33,
    "nodes_here": 2,
    "environment": {"OMP_NUM_THREADS": "2"},
}


def _gpus(*uuids: str, name: str = "NVIDIA H200", memory_bytes: int | None = 1 << 37) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=index, name=name, uuid=uuid, memory_bytes=memory_bytes) for index, uuid in enumerate(uuids))


def _links(kind: LinkKind, *pairs: tuple[int, int]) -> tuple[GpuLink, ...]:
    return tuple(GpuLink(first=first, second=second, kind=kind) for first, second in pairs)


def _only(before: Machine, now: Machine) -> MachineDifference:
    (found,) = differences(before, now)
    return found


def test_a_machine_does_not_differ_from_itself() -> None:
    machine = replace(make_machine(), gpus=_gpus("a", "b"), links=_links("nvlink", (0, 1)))
    assert differences(machine, machine) == ()


@pytest.mark.parametrize(("field", "value"), CHANGES.items())
def test_every_field_that_changes_is_one_difference(field: str, value: Any) -> None:
    assert len(differences(make_machine(), replace(make_machine(), **{field: value}))) == 1


def test_what_an_older_version_did_not_ask_for_is_no_difference() -> None:
    old = replace(make_machine(), absent={"commit": "/opt is no git tree"})
    new = replace(make_machine(), cuda_driver_version="13.0")
    assert differences(old, new) == ()


def test_no_field_is_forgotten() -> None:
    told_otherwise = {"links", "absent", "schema_version"}
    assert {field.name for field in fields(Machine)} == CHANGES.keys() | told_otherwise


def test_a_difference_is_in_words() -> None:
    assert _only(make_machine(), replace(make_machine(), memory_bytes=1 << 35)) == MachineDifference(
        field="memory", before="16.0 GiB", now="32.0 GiB"
    )
    assert _only(replace(make_machine(), is_dirty=False), replace(make_machine(), is_dirty=True)) == MachineDifference(
        field="source tree", before="without changes", now="with changes"
    )


def test_a_kernel_that_keeps_some_more_memory_is_no_difference() -> None:
    assert differences(make_machine(), replace(make_machine(), memory_bytes=(1 << 34) - (5 << 20))) == ()


def test_what_is_unknown_says_why() -> None:
    now = replace(make_machine(), cpu=None, absent={**make_machine().absent, "cpu": "/proc/cpuinfo names no model"})
    assert _only(make_machine(), now) == MachineDifference(
        field="CPU", before="AMD EPYC", now="unknown (/proc/cpuinfo names no model)"
    )


def test_what_stays_unknown_differs_where_the_reason_does() -> None:
    before, same, other = (
        replace(make_machine(), absent={"driver_version": reason})
        for reason in ("NVML: Shared Library Not Found", "NVML: Shared Library Not Found", "NVML: Version Mismatch")
    )
    assert differences(before, same) == ()
    assert _only(before, other).now == "unknown (NVML: Version Mismatch)"


def test_a_gpu_that_is_gone_is_one_difference() -> None:
    before, now = (replace(make_machine(), gpus=gpus) for gpus in (_gpus("a", "b"), _gpus("a")))
    assert _only(before, now) == MachineDifference(
        field="GPU 1", before="NVIDIA H200, 128.0 GiB, index 1, b", now="absent"
    )
    assert _only(now, before).before == "absent"


def test_a_gpu_replaced_by_its_like_is_seen() -> None:
    before, now = (replace(make_machine(), gpus=gpus) for gpus in (_gpus("a", "b"), _gpus("a", "c")))
    assert [found.field for found in differences(before, now)] == ["GPU 1", "GPU 1"]


def test_gpus_of_which_none_stayed_are_one_difference() -> None:
    before = replace(make_machine(), gpus=_gpus("a", "b"))
    other = replace(make_machine(), gpus=_gpus("c", "d", name="NVIDIA B200"))
    alike = replace(make_machine(), gpus=_gpus("c", "d"))
    assert _only(before, other) == MachineDifference(field="GPUs", before="2 x NVIDIA H200", now="2 x NVIDIA B200")
    assert _only(before, alike) == MachineDifference(
        field="GPUs", before="other GPUs of the same kind", now="2 x NVIDIA H200"
    )


def test_gpus_that_can_no_more_be_seen_say_why() -> None:
    now = replace(make_machine(), absent={**make_machine().absent, "gpus": "NVML: Driver Not Loaded"})
    assert _only(replace(make_machine(), gpus=_gpus("a")), now).now == "unknown (NVML: Driver Not Loaded)"


def test_links_that_changed_alike_are_one_difference() -> None:
    gpus = _gpus("a", "b", "c")
    before = replace(make_machine(), gpus=gpus, links=_links("nvlink", (0, 1), (0, 2), (1, 2)))
    now = replace(make_machine(), gpus=gpus, links=(*_links("system", (0, 2), (1, 2)), *_links("nvlink", (0, 1))))
    assert _only(before, now) == MachineDifference(field="link of GPUs 0-2, 1-2", before="nvlink", now="system")


def test_links_follow_their_gpus_to_other_indices() -> None:
    before = replace(make_machine(), gpus=_gpus("a", "b", "c"), links=_links("nvlink", (0, 1)))
    now = replace(make_machine(), gpus=_gpus("c", "b", "a"), links=_links("nvlink", (1, 2)))
    assert not [found for found in differences(before, now) if "link" in found.field]


def test_instances_within_one_gpu_have_no_links_to_compare() -> None:
    gpus = tuple(replace(gpu, index=0) for gpu in _gpus("a", "b"))
    before, now = (replace(make_machine(), gpus=gpus, links=_links(kind, (0, 0))) for kind in ("internal", "single"))
    assert differences(before, now) == ()


def test_links_of_a_gpu_that_is_gone_are_not_said_again() -> None:
    before = replace(make_machine(), gpus=_gpus("a", "b"), links=_links("nvlink", (0, 1)))
    assert _only(before, replace(make_machine(), gpus=_gpus("a"))).field == "GPU 1"


def test_links_that_can_no_more_be_read_say_why() -> None:
    before = replace(make_machine(), gpus=_gpus("a", "b"), links=_links("nvlink", (0, 1)))
    now = replace(before, links=(), absent={**before.absent, "links": "NVML: Not Supported"})
    assert _only(before, now) == MachineDifference(
        field="links of GPUs", before="known", now="unknown (NVML: Not Supported)"
    )


def test_a_machine_without_gpus_is_not_said_to_have_lost_its_links() -> None:
    before = replace(make_machine(), absent={"links": "NVML: one reason"})
    assert differences(before, replace(before, absent={"links": "NVML: another"})) == ()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"environment": {"NCCL_ALGO": "Ring"}}, ("NCCL_ALGO", "not set", "Ring")),
        ({"torch_cuda_version": "12.8"}, ("CUDA of torch", "13.0", "12.8")),
        ({"python_version": "3.12.1"}, ("Python", "3.11.7", "3.12.1")),
        ({"own_version": "0.2.0"}, ("parallel-observatory", "0.1.0", "0.2.0")),
        ({"container_image": "ours@sha256:2"}, ("container image", "ours@sha256:1", "ours@sha256:2")),
        ({"gpus": _gpus("c", name="NVIDIA H100")}, ("GPUs", "2 x NVIDIA H200", "1 x NVIDIA H100")),
        (
            {"gpus": tuple(replace(gpu, power_limit_watts=500.0) for gpu in _gpus("c", "d"))},
            ("power limit of GPUs", "unknown", "500 W"),
        ),
    ],
)
def test_what_changes_a_measurement_differs_between_nodes(changes: dict[str, Any], found: tuple[str, str, str]) -> None:
    field, before, now = found
    first = _node(python_version="3.11.7", torch_cuda_version="13.0", container_image="ours@sha256:1")
    assert differences_of_nodes(first, replace(first, **changes)) == (
        MachineDifference(field=field, before=before, now=now),
    )


def test_what_any_two_nodes_differ_in_is_no_difference_of_nodes() -> None:
    first = _node()
    other = replace(
        first,
        hostname="n1",
        memory_bytes=1 << 35,
        gpus=_gpus("c", "d"),
        links=_links("nvlink", (0, 1)),
        environment={**first.environment, "SLURM_TOPOLOGY_ADDR": "s0.n1"},
    )
    assert differences_of_nodes(first, other) == ()


def _node(**changes: Any) -> Machine:
    return replace(make_machine(), gpus=_gpus("a", "b"), environment={}, **changes)


def test_variables_are_compared_one_by_one() -> None:
    before = replace(make_machine(), environment={"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"})
    now = replace(make_machine(), environment={"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO"})
    assert differences(before, now) == (
        MachineDifference(field="NCCL_ALGO", before="Ring", now="Tree"),
        MachineDifference(field="NCCL_DEBUG", before="not set", now="INFO"),
        MachineDifference(field="OMP_NUM_THREADS", before="1", now="not set"),
    )


def test_a_limit_that_changed_on_many_gpus_is_one_difference() -> None:
    before = replace(make_machine(), gpus=tuple(replace(gpu, power_limit_watts=700.0) for gpu in _gpus("a", "b", "c")))
    now = replace(
        before, gpus=tuple(replace(gpu, power_limit_watts=500.0) for gpu in before.gpus[:2]) + before.gpus[2:]
    )
    assert _only(before, now) == MachineDifference(field="power limit of GPU 0, 1", before="700 W", now="500 W")


def test_a_limit_that_an_older_version_did_not_ask_for_is_no_difference() -> None:
    before, now = (
        replace(make_machine(), gpus=tuple(replace(gpu, clock_limit_hertz=limit) for gpu in _gpus("a")))
        for limit in (None, 1_980_000_000)
    )
    assert differences(before, now) == ()


def test_a_limit_that_was_not_there_is_none_and_not_unknown() -> None:
    limited = replace(make_machine(), cpu_limit_cores=7.5)
    assert _only(make_machine(), limited) == MachineDifference(field="CPU limit", before="none", now="7.5 cores")
