"""Each strategy and probe steps on CUDA as far as torch's own code goes, in each case of a shipped suite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from bench.case import Case
from tests.torch_versions.fake_cuda.cases import folded_cases, option_cases
from tests.torch_versions.fake_cuda.machine import FakeMachine, Ran, build, fake_machine
from tests.torch_versions.fake_cuda.peaks import SMALL_BYTES, law_bytes

pytestmark = [
    pytest.mark.skipif(
        torch.version.cuda is None, reason="torch is built without CUDA; `make test-torch` has builds with it"
    ),
    pytest.mark.timeout(900),  # A large model takes minutes where other tests have the cores.
]

CASES = folded_cases() if torch.version.cuda else {}
WITHIN = 0.02
"""Share by which the cost model and the allocator, which rounds blocks up, may differ."""
REPLICATED = ("ddp", "zero1", "ring_attention", "ulysses")
"""Strategies whose gradients DistributedDataParallel averages."""
OPTIONS = option_cases() if torch.version.cuda else {}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeMachine]:
    with fake_machine(build(tmp_path_factory.mktemp("library")), tmp_path_factory.mktemp("runs")) as machine:
        yield machine


def _step(machine: FakeMachine, case: Case) -> Ran:
    ran = machine.run_largest(case)
    assert ran.failure == ""
    assert ran.warnings == []
    assert bool(ran.elsewhere) == bool(case.options.get("offload")), ran.elsewhere
    return ran


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_steps_on_cuda(name: str, machine: FakeMachine) -> None:
    _step(machine, OPTIONS[name])


@pytest.mark.parametrize("name", CASES)
def test_each_case_of_a_shipped_suite_steps_on_cuda_and_holds_what_the_cost_model_says(
    name: str, machine: FakeMachine
) -> None:
    case = CASES[name]
    if case.options.get("offload"):  # What is offloaded is real memory of this machine.
        case = replace(case, model=replace(case.shape, layers=1, vocabulary=512))
    ran = _step(machine, case)
    predicted = None if case.model is None else law_bytes(case)
    # Blocks of the allocator and of cuBLAS outweigh a tiny model.
    if predicted is not None and predicted > SMALL_BYTES:
        # In the second step DistributedDataParallel lays out its buckets anew. The old ones live until torch's thread
        # for NCCL next looks, so that the peak is sometimes higher by exactly the bytes of the gradients.
        late_bytes = 4 * case.shape.parameters() if case.strategy in REPLICATED else 0
        assert ran.peak_bytes is not None
        assert predicted <= ran.peak_bytes * (1 + WITHIN)
        assert ran.peak_bytes <= predicted * (1 + WITHIN) + late_bytes
