"""The cost model of memory on CUDA predicts what torch allocates there, for each strategy, by its own kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from bench.case import Case
from tests.torch_versions.fake_cuda.law import case_of, predicted_bytes
from tests.torch_versions.fake_cuda.machine import FakeMachine, build, fake_machine

pytestmark = [
    pytest.mark.skipif(
        torch.version.cuda is None, reason="torch is built without CUDA; `make test-torch` has builds with it"
    ),
    pytest.mark.timeout(900),
]

WITHIN = 0.01
"""Share by which they may differ: the allocator rounds blocks up, and small tensors are not counted."""
CASES = (
    "single 1 1b/2 bf16 4",
    "single 1 1b/2 fp32 4",
    "single 1 1b/2 bf16 4 checkpoint=full loss_chunks=4",
    "single 1 1b/2 bf16 4 checkpoint=selective weights=bf16_compute",
    "single 1 1b/2 bf16 2 attention=math",
    "single 1 1b/2 bf16 4 tied accumulate=2",
    "ddp 8 1b/2 bf16 8 compress=powersgd compress_rank=64",
    "ddp 8 1b/2 bf16 8 compress=topk overlap=false",
    "zero1 8 1b/2 bf16 32",
    "fsdp 8 1b/2 bf16 32",
    "fsdp 8 1b/2 bf16 32 checkpoint=full wrap=layer prefetch=2",
    "fsdp 8 1b/2 bf16 32 tied accumulate=2 reduce=last",
    "fsdp 1 1b/2 bf16 4 checkpoint=full loss_chunks=4",
    "hsdp 8 1b/2 bf16 64 accumulate=2 reduce=last",
    "zero2 8 1b/2 bf16 32 weights=autocast",
    "gpipe 4 1b/4 bf16 16",
    "interleaved 2 1b/4 bf16 16 checkpoint=full",
    "one_f_one_b 4 1b/4 bf16 16 microbatches=8",
    "zero_bubble 2 1b/4 bf16 8",
    "zero_bubble 2 1b/4 bf16 8 variant=zbv",
    "parameter_server 4 1b/2 bf16 12",
    "tensor_parallel 4 1b/2 bf16 4 sequence_parallel=true",
    "ring_attention 8 1b/2 bf16 8 sharded=true",
    "ulysses 4 1b/2 bf16 8 sharded=true",
    "three_d 8 1b/4 bf16 16",
    "three_d 8 1b/4 bf16 16 schedule=zbv stages=2",
)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeMachine]:
    with fake_machine(build(tmp_path_factory.mktemp("library")), tmp_path_factory.mktemp("runs")) as machine:
        yield machine


@pytest.mark.parametrize("words", CASES)
def test_the_peak_is_what_torch_allocates(words: str, machine: FakeMachine) -> None:
    case = case_of(words)
    ran = machine.run_largest(case)
    assert ran.failure == ""
    assert ran.peak_bytes is not None
    assert ran.attention == _operators(case)  # The cost model counts what they keep.
    # DistributedDataParallel may hold the gradients once more: see test_each_case.py.
    late_bytes = 4 * case.shape.parameters() if case.strategy in ("ddp", "zero1") else 0
    predicted = predicted_bytes(words)
    assert predicted <= ran.peak_bytes * (1 + WITHIN)
    assert ran.peak_bytes <= predicted * (1 + WITHIN) + late_bytes


def _operators(case: Case) -> set[str]:
    """Return what autograd records of attention on the first rank."""
    if case.strategy in ("ring_attention", "parameter_server"):  # The ring calls its kernel itself; servers have none.
        return set()
    if case.options["attention"] == "math":
        return {"ToCopyBackward0"}
    operator = "Efficient" if case.precision == "fp32" else "Flash"
    return {f"ScaledDotProduct{operator}AttentionBackward0"}
