"""Which GPU is a rank's, and the cores that a rank is bound to, read back from the kernel in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.case import Case, check
from bench.errors import Misuse
from bench.machine.cpu_list import parse, written
from bench.machine.gpus import Gpu
from bench.rank.gpu_of_rank import Binding, RankGpu, confirmed, cuda_number, gpu_of_rank, prepare
from tests.bench.made.examples import make_case

CASE = make_case(device="cuda", backend="nccl", bind=True)
CPU = max(os.sched_getaffinity(0))
NOWHERE = "4000-4095"
"""CPUs that no machine of ours has."""


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,8", {0, 1, 2, 8}), ("5", {5}), ("", set()), ("0-1,64-65", {0, 1, 64, 65})]
)
def test_a_list_of_cpus_is_written_as_the_kernel_writes_it_and_read_again(text: str, cpus: set[int]) -> None:
    assert written(cpus) == text
    assert parse(text) == cpus


def test_the_kernels_own_list_of_this_process_is_read() -> None:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    assert parse(line.split()[1]) == os.sched_getaffinity(0)


# Which GPU.

GPUS = tuple(Gpu(index=index, name="H100", uuid=f"GPU-{index}", memory_bytes=None, near_cpus="0") for index in range(4))


@pytest.mark.parametrize(
    ("local_rank", "count", "number"), [(0, 4, 0), (3, 4, 3), (3, 1, 0), (5, 4, 1)],
    ids=["the first", "its own place", "the only one that it sees", "shared"],
)  # fmt: skip
def test_a_rank_takes_the_gpu_of_its_place_among_those_that_it_sees(local_rank: int, count: int, number: int) -> None:
    assert cuda_number(local_rank, count) == number


def test_a_rank_that_sees_one_gpu_has_that_by_nvml_too() -> None:
    """As task 3 of four, whose CUDA_VISIBLE_DEVICES is "3"."""
    assert gpu_of_rank(CASE, 3, GPUS[3:], {}) == RankGpu(uuid="GPU-3", near_cpus="0")


def test_a_rank_on_a_cpu_has_none() -> None:
    assert gpu_of_rank(make_case(), 0, GPUS, {}) is None


# Binding, in processes whose threads are read back.

_PROCESS = """
import json, os, threading
from pathlib import Path

import msgspec
import torch
from torch.utils.data import DataLoader

from bench.case import Case
from bench.rank.gpu_of_rank import RankGpu, confirmed, prepare

def affinity(status):
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
    return line.split()[1]

def of_threads():
    return [affinity(path / "status") for path in Path("/proc/self/task").iterdir()]

class Affinities(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return affinity(Path("/proc/self/status"))

early = threading.Event()
threading.Thread(target=early.wait, daemon=True).start()
given = json.loads(os.environ["GIVEN"])
gpu = RankGpu(**given["gpu"])
case = msgspec.convert(given["case"], Case)
before = os.sched_getaffinity(0)
binding = prepare(case, gpu)
if "cuda_uuid" in given:
    binding = confirmed(binding, gpu, given["cuda_uuid"])
torch.set_num_threads(3)
torch.rand(800, 800) @ torch.rand(800, 800)
late = threading.Event()
threading.Thread(target=late.wait, daemon=True).start()
print(json.dumps({
    "cpus": binding.cpus, "reason": binding.reason,
    "threads": of_threads(), "loader": next(iter(DataLoader(Affinities(), num_workers=1, batch_size=None))),
}))
"""


def _run(gpu: RankGpu, variables: dict[str, str] | None = None, **given: Any) -> dict[str, Any]:
    """Prepare a process for the GPU, as a rank's is, then start threads, also torch's, and a data loader."""
    given |= {"gpu": msgspec.to_builtins(gpu), "case": msgspec.to_builtins(CASE)}
    environment = {**os.environ, "GIVEN": json.dumps(given), **(variables or {})}
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


ALL = written(os.sched_getaffinity(0))


def test_all_threads_and_data_loaders_of_a_rank_stay_on_the_cores_of_its_gpu() -> None:
    result = _run(RankGpu(uuid="GPU-1", near_cpus=f"{CPU},{NOWHERE}"))
    assert (result["cpus"], result["reason"], result["loader"]) == (str(CPU), None, str(CPU))
    # One that had begun before, torch's own, and one that began later.
    assert len(result["threads"]) >= 4
    assert set(result["threads"]) == {str(CPU)}


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (None, "NVML shows no GPU to this process"),
        (RankGpu(uuid="GPU-1"), "NVML does not name them"),
        (RankGpu(uuid="GPU-1", reason="NVML: Insufficient Permissions"), "NVML: Insufficient Permissions"),
        (RankGpu(uuid="GPU-1", near_cpus=NOWHERE), f"they are {NOWHERE}, and this process may use {ALL} only"),
    ],
    ids=["no NVML", "no answer", "no permission", "no core in common"],
)
def test_a_rank_that_cannot_be_bound_runs_everywhere_and_says_why(gpu: RankGpu | None, reason: str) -> None:
    binding = prepare(CASE, gpu)
    assert binding == Binding(reason=f"a rank is not bound to the cores of its GPU: {reason}")
    assert os.sched_getaffinity(0) == parse(ALL)


def test_a_rank_that_shall_not_be_bound_is_not_and_gives_no_reason() -> None:
    assert prepare(replace(CASE, bind=False), RankGpu(uuid="GPU-1", near_cpus=str(CPU))) == Binding()
    assert os.sched_getaffinity(0) == parse(ALL)


@pytest.mark.parametrize(("users", "order"), [(None, "PCI_BUS_ID"), ("FASTEST_FIRST", "FASTEST_FIRST")])
def test_cuda_numbers_gpus_as_nvml_does_unless_the_user_orders_otherwise(
    users: str | None, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", users or "")
    if users is None:
        monkeypatch.delenv("CUDA_DEVICE_ORDER")
    prepare(CASE, None)
    assert os.environ["CUDA_DEVICE_ORDER"] == order


def test_a_rank_on_a_cpu_leaves_its_process_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert prepare(make_case(), None) == Binding()
    assert "CUDA_DEVICE_ORDER" not in os.environ


def test_a_rank_whose_gpu_is_another_than_nvml_has_there_is_unbound_again() -> None:
    """On a node of mixed GPUs, where the user lets CUDA order them by speed."""
    gpu = RankGpu(uuid="GPU-1", near_cpus=str(CPU))
    result = _run(gpu, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, cuda_uuid="2")
    assert (result["cpus"], set(result["threads"]), result["loader"]) == (None, {ALL}, ALL)
    assert result["reason"] == (
        "a rank is not bound to the cores of its GPU: CUDA computes on GPU-2 where NVML has GPU-1 (CUDA_DEVICE_ORDER is"
        " FASTEST_FIRST; PCI_BUS_ID is NVML's order)"
    )


@pytest.mark.parametrize("cuda_uuid", ["1", None], ids=["the same", "CUDA does not start"])
def test_a_rank_stays_bound_where_cuda_has_the_same_gpu_or_none(cuda_uuid: str | None) -> None:
    binding = Binding(cpus=str(CPU), unbound=os.sched_getaffinity(0))
    assert confirmed(binding, RankGpu(uuid="GPU-1", near_cpus=str(CPU)), cuda_uuid) == binding


def test_a_rank_on_a_mig_instance_stays_bound_though_cuda_gives_its_gpus_uuid() -> None:
    binding = Binding(cpus=str(CPU), unbound=os.sched_getaffinity(0))
    assert confirmed(binding, RankGpu(uuid="MIG-7", near_cpus=str(CPU)), "1") == binding


# The series that a bound rank's figures are of.


def test_a_bound_case_has_a_key_of_its_own_and_all_others_keep_theirs() -> None:
    assert '"bind":true' in CASE.key()
    for case in (replace(CASE, bind=False), make_case()):
        assert "bind" not in case.key()


def test_a_case_of_before_was_not_bound() -> None:
    fields = msgspec.to_builtins(CASE)
    del fields["bind"]
    assert not msgspec.convert(fields, Case).bind


def test_ranks_on_a_cpu_are_never_bound() -> None:
    with pytest.raises(Misuse, match="bind is true on cpu, but only ranks on GPUs can be bound"):
        check(make_case(bind=True))
