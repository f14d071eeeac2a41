"""Prints the table of docs/cost_models/memory.md: the peak that torch allocates on the fake CUDA, and the cost model's.

    make test-torch TORCH=2.12    # makes the environment
    .venv-torch-2.12/bin/python -m tests.torch_versions.fake_cuda.law

A case is written as "strategy ranks shape/layers precision batch option=value ...", with the word tied where the head
is. Models of 8 and 70 billion weights are cut to few layers, which are alike.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from bench.case import Case, check
from tests.torch_versions.fake_cuda.machine import build, fake_machine
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.shape import PRESETS
from workloads.registry import spec_of
from workloads.spec import OptionValue

CASES = (
    "single 1 1b bf16 8",
    "single 1 1b fp32 8",
    "single 1 1b bf16 8 checkpoint=full",
    "single 1 1b bf16 8 checkpoint=selective",
    "single 1 1b/4 bf16 8 checkpoint=full checkpoint_every=2",
    "single 1 1b/4 bf16 8 weights=bf16_compute",
    "single 1 1b/4 bf16 8 weights=bf16",
    "single 1 1b/4 bf16 8 loss_chunks=8",
    "single 1 1b/4 bf16 4 attention=math",
    "single 1 1b/2 bf16 2 attention=math checkpoint=full",
    "single 1 125m fp32 2 attention=math",
    "single 1 1b/2 fp32 4 tied",
    "single 1 1b/2 bf16 4 tied accumulate=2",
    "single 1 8b/4 bf16 1",
    "single 1 8b/4 bf16 1 checkpoint=full loss_chunks=16",
    "ddp 8 1b bf16 64",
    "ddp 8 8b/4 bf16 8 checkpoint=full",
    "ddp 8 1b/4 bf16 64 accumulate=2",
    "ddp 64 1b bf16 512",
    "ddp 8 1b/2 bf16 32 compress=bf16",
    "ddp 8 1b/4 bf16 8 compress=bf16 overlap=false",
    "ddp 8 1b/2 bf16 32 compress=topk",
    "ddp 8 1b/4 bf16 8 compress=topk overlap=false",
    "ddp 2 1b/4 bf16 2 compress=topk overlap=false",
    "ddp 8 1b/2 bf16 32 compress=powersgd",
    "ddp 8 1b/4 bf16 8 compress=powersgd overlap=false",
    "ddp 8 1b/2 bf16 32 tied",
    "zero1 8 1b/4 bf16 64",
    "zero2 8 8b/4 bf16 8 checkpoint=full loss_chunks=16",
    "zero2 64 8b/4 bf16 64 checkpoint=full",
    "fsdp 8 1b bf16 64",
    "fsdp 8 8b/4 bf16 8",
    "fsdp 8 8b/4 bf16 8 weights=autocast",
    "fsdp 8 8b/4 fp32 8",
    "fsdp 8 8b/4 bf16 8 checkpoint=full prefetch=2",
    "fsdp 8 8b/4 bf16 8 checkpoint=full wrap=layer loss_chunks=16",
    "fsdp 8 8b/4 bf16 16 accumulate=2 reduce=last checkpoint=full",
    "fsdp 8 8b/4 bf16 8 grad_dtype=bf16 checkpoint=full loss_chunks=16",
    "fsdp 8 8b/4 bf16 8 tied checkpoint=full",
    "fsdp 64 70b/2 bf16 64 checkpoint=full",
    "fsdp 1 1b/2 bf16 4",
    "fsdp 1 8b/4 bf16 1",
    "fsdp 1 8b/4 bf16 1 checkpoint=full loss_chunks=16",
    "fsdp 1 8b/4 fp32 1 checkpoint=full loss_chunks=16",
    "hsdp 8 8b/4 bf16 8 checkpoint=full loss_chunks=16",
    "hsdp 64 70b/2 bf16 64 checkpoint=full shard_ranks=8",
    "hsdp 8 1b/2 bf16 32 tied weights=autocast",
    "pipeline_naive 8 1b/8 bf16 32",
    "gpipe 8 1b/8 bf16 32",
    "gpipe 8 8b/8 bf16 8 checkpoint=full loss_chunks=16",
    "gpipe 8 8b/8 bf16 8 weights=bf16_compute",
    "one_f_one_b 8 1b/8 bf16 32 microbatches=16",
    "one_f_one_b 64 70b/64 bf16 64 microbatches=64 checkpoint=full",
    "interleaved 8 1b/16 bf16 32",
    "interleaved 8 8b/16 bf16 8 checkpoint=full microbatches=8",
    "zero_bubble 2 1b/4 fp32 8",
    "zero_bubble 4 1b/8 bf16 16",
    "zero_bubble 4 1b/8 bf16 16 weights=bf16_compute",
    "zero_bubble 4 1b/8 bf16 16 variant=zbv",
    "zero_bubble 8 1b/16 bf16 32",
    "parameter_server 2 1b/2 bf16 16",
    "parameter_server 4 1b/2 bf16 12",
    "tensor_parallel 8 8b/2 bf16 1",
    "tensor_parallel 8 8b/2 bf16 1 sequence_parallel=true",
    "tensor_parallel 8 8b/2 bf16 1 sequence_parallel=true loss_parallel=true checkpoint=full",
    "tensor_parallel 4 1b/4 bf16 8",
    "ring_attention 8 8b/2 bf16 1 sharded=true checkpoint=full",
    "ring_attention 1 1b/2 bf16 4 sharded=true",
    "ulysses 8 8b/2 bf16 1 sharded=true checkpoint=full",
    "ring_attention 8 1b/2 bf16 8 sharded=true tied",
    "three_d 8 8b/4 bf16 8",
    "three_d 8 8b/4 bf16 8 data_axis=fsdp checkpoint=full",
    "three_d 64 8b/8 bf16 64 pipeline_ranks=4 tensor_ranks=4 microbatches=8",
    "three_d 64 8b/8 bf16 64 pipeline_ranks=2 tensor_ranks=8 microbatches=8 data_axis=fsdp checkpoint=full",
    "three_d 8 1b/4 bf16 16 schedule=interleaved_zero_bubble stages=2",
    "three_d 8 8b/8 bf16 16 schedule=zbv stages=2 sequence_parallel=true tensor_ranks=4",
)


def case_of(words: str) -> Case:
    """Return the case that is written so.

    Raises:
        Misuse: it cannot run.
    """
    strategy, ranks, model, precision, batch, *chosen = words.split()
    name, _, layers = model.partition("/")
    shape = replace(PRESETS[name], batch=int(batch))
    if layers:
        shape = replace(shape, layers=int(layers))
    if "tied" in chosen:
        chosen.remove("tied")
        shape = replace(shape, is_tied=True)
    spec = spec_of(strategy)
    options = {option.name: option.default for option in spec.options}
    for word in chosen:
        option, _, value = word.partition("=")
        options[option] = _value(value)
    case = Case(
        strategy=strategy,
        version=spec.version_on("cuda"),
        ranks=int(ranks),
        model=shape,
        device="cuda",
        backend="nccl",
        precision=precision,  # type: ignore[arg-type]  # `check` judges it.
        threads=1,
        trials=1,
        steps=1,
        warm_up=1,
        trace_steps=0,
        seed=0,
        options=options,
    )
    return check(replace(case, options=spec.settled(case)))


def _value(word: str) -> OptionValue:
    if word in ("true", "false"):
        return word == "true"
    return int(word) if word.isdigit() else word


def predicted_bytes(words: str) -> int:
    """Return the cost model's peak of a case that it covers."""
    case = case_of(words)
    peak = case.spec().peak(case)
    assert isinstance(peak, Prediction), f"{words}: {peak.reason}"
    return peak.total_bytes


def row(words: str, allocated_bytes: int) -> str:
    """Return a case's row of the table."""
    predicted = predicted_bytes(words)
    difference = round(100 * (predicted / allocated_bytes - 1), 2) + 0.0  # Never -0.00.
    return f"| {words} | {predicted / 1e9:.3f} | {allocated_bytes / 1e9:.3f} | {difference:+.2f} |"


HEADER = ("| case | cost model, GB | allocator, GB | difference, % |", "|---|---|---|---|")


def main() -> None:
    print("\n".join(HEADER))
    with tempfile.TemporaryDirectory() as text, fake_machine(build(Path(text)), Path(text)) as machine:
        for words in CASES:
            ran = machine.run_largest(case_of(words))
            assert ran.failure == "", ran.failure
            assert ran.peak_bytes is not None, words
            print(row(words, ran.peak_bytes), flush=True)


if __name__ == "__main__":
    main()
