"""The order in which each rank calls CUDA and NCCL, from the fork to its end, under the product's own supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch

from bench.case import Case
from bench.rank.fault_injection import Fault
from tests.torch_versions.fake_cuda.cases import folded_cases
from tests.torch_versions.fake_cuda.machine import FakeMachine, build, fake_machine
from tests.torch_versions.test_before_the_fork import build_shim, counted_calls

pytestmark = [
    pytest.mark.skipif(
        torch.version.cuda is None, reason="torch is built without CUDA; `make test-torch` has builds with it"
    ),
    pytest.mark.timeout(900),  # A large model takes minutes where other tests have the cores.
]

SMOKE = {
    case.strategy: case
    for name, case in (folded_cases() if torch.version.cuda else {}).items()
    if name.startswith("smoke: ")
}
"""A tiny case of each strategy; probes that smoke has not on GPUs take the same way."""


class Counted:
    """The fake machine, whose calls are counted by process."""

    def __init__(self, machine: FakeMachine, folder: Path) -> None:
        self._machine = machine
        self._folder = folder

    def calls(self, case: Case) -> list[list[str]]:
        """Run all ranks of the case; return the calls of each process that called anything, in their order."""
        before = counted_calls(self._folder)
        assert self._machine.run(case, ranks=None).failure == ""
        return [calls for pid, calls in counted_calls(self._folder).items() if pid not in before]

    def calls_of_faulty(self, case: Case, fault: Fault, limit_s: float) -> list[str]:
        """Run all ranks of the case, the first of which commits the fault; return its calls."""
        ran = self._machine.run(case, ranks=None, fault=fault, limit_s=limit_s)
        assert ran.ended.outcome != "done"
        return counted_calls(self._folder)[ran.pid]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    folder, runs = tmp_path_factory.mktemp("counted"), tmp_path_factory.mktemp("runs")
    with fake_machine(build(folder), runs, counter=build_shim(folder), calls=folder / "calls") as machine:
        yield Counted(machine, folder)


def _communicators(calls: list[str]) -> int:
    """How many a rank has made."""
    return calls.count("ncclCommInitRankConfig") + calls.count("ncclCommSplit")


@pytest.mark.parametrize("strategy", SMOKE)
def test_a_rank_takes_its_gpu_meets_the_others_and_waits_before_it_leaves(strategy: str, counted: Counted) -> None:
    case = SMOKE[strategy]
    of_ranks = counted.calls(case)
    # Nobody else has called anything: neither the supervisor nor the forkserver, from which ranks are forked.
    assert len(of_ranks) == case.ranks
    for calls in of_ranks:
        # The device, then the communicator of the world, which is made at once if it is given the device, then memory.
        assert calls.index("cudaSetDevice") < calls.index("ncclCommInitRankConfig") < calls.index("cudaMalloc")
        # The rank waits for its device before the first communicator goes; in the end none is left.
        first_gone = calls.index("ncclCommDestroy")
        assert "cudaDeviceSynchronize" in calls[calls.index("cudaMalloc") : first_gone]
        assert calls.count("ncclCommDestroy") == _communicators(calls)
        assert "ncclCommAbort" not in calls


@pytest.mark.parametrize("strategy", ["fsdp", "three_d"])
@pytest.mark.parametrize(("kind", "limit_s"), [("raise", 600.0), ("hang", 30.0)])
def test_a_rank_that_fails_or_is_ended_aborts_its_communicators_first(
    strategy: str, kind: Literal["raise", "hang"], limit_s: float, counted: Counted
) -> None:
    calls = counted.calls_of_faulty(SMOKE[strategy], Fault(kind=kind, rank=0, step=1), limit_s)
    assert calls.count("ncclCommAbort") == _communicators(calls) > 0
    assert "ncclCommDestroy" not in calls
