"""What `ddp` hands to collectives, by bucket or once, whole or compressed; and what compression leaves of training."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.optim import SGD

from tests.support.ranks import OnRanks, leaving
from tests.workloads.training.forgetful_feedback import FakeForgetfulFeedback
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready, no_phase, train
from workloads.core.data import Batches
from workloads.core.trainer import Trainer, make_model
from workloads.data_parallel.compression import ErrorFeedback, PowerSGD, TopK
from workloads.data_parallel.spec import DdpSpec
from workloads.data_parallel.strategy import average_gradients
from workloads.spec import LIMITS, OptionValue, Precision

WHOLE_MODEL_MB = 25.0
ELEMENT_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Int": 4}
SCHEMES: tuple[Mapping[str, OptionValue], ...] = (
    {},
    {"compress": "fp16"},
    {"compress": "bf16"},
    {"compress": "powersgd"},
    {"compress": "topk"},
)
SEARCHES: tuple[Mapping[str, OptionValue], ...] = (
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "compress": "powersgd"},
)


def collectives() -> list[Any]:
    """All that this rank has entered, in all its groups, by torch's Flight Recorder."""
    record = _distributed_c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False)  # type: ignore[attr-defined]
    entries: list[Any] = json.loads(record)["entries"]
    return entries


def payload(entry: Any) -> tuple[str, int]:
    """The collective, with the bytes of what it was handed or of what it gave, whichever are more."""
    given, taken = (
        sum(
            math.prod(size) * ELEMENT_BYTES[dtype]
            for size, dtype in zip(entry[f"{side}_sizes"], entry[f"{side}_dtypes"], strict=True)
        )
        for side in ("input", "output")
    )
    return entry["profiling_name"].removeprefix("gloo:"), max(given, taken)


def payloads_of_a_step(setup: SmallSetup) -> list[tuple[str, int]]:
    ready = make_ready(setup)
    for _ in range(2):  # DistributedDataParallel lays its buckets anew after the first.
        ready.step()
    before = len(collectives())
    ready.step()
    return [payload(entry) for entry in collectives()[before:]]


def count(on_ranks: OnRanks, options: Mapping[str, OptionValue]) -> int:
    """All_reduces of one step."""
    first, second = on_ranks(2, payloads_of_a_step, small_setup("ddp", ranks=2, options=options))
    assert first == second
    assert {name for name, _ in first} == {"all_reduce"}
    return len(first)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_without_overlap_there_is_one_all_reduce(accumulate: int, on_ranks: OnRanks) -> None:
    assert count(on_ranks, {"overlap": False, "accumulate": accumulate}) == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_bucket_that_holds_the_model_makes_one_all_reduce(accumulate: int, on_ranks: OnRanks) -> None:
    assert count(on_ranks, {"bucket_mb": WHOLE_MODEL_MB, "accumulate": accumulate}) == 1


def test_small_buckets_make_several_all_reduces(on_ranks: OnRanks) -> None:
    assert count(on_ranks, {"bucket_mb": 0.1}) >= 4


@pytest.mark.parametrize(
    "options", [*SCHEMES, *SEARCHES, *({**options, "overlap": False} for options in SCHEMES)], ids=str
)
def test_collectives_are_handed_the_bytes_that_the_card_declares(
    options: Mapping[str, OptionValue], on_ranks: OnRanks
) -> None:
    setup = small_setup("ddp", ranks=2, options={"bucket_mb": 0.1, **options})
    declared: Counter[str] = Counter()
    for transfer in DdpSpec().transfers(setup):
        declared[transfer.collective] += transfer.payload_bytes
    for entered in on_ranks(2, payloads_of_a_step, setup):
        counted: Counter[str] = Counter()
        for name, payload_bytes in entered:
            counted[name] += payload_bytes
        assert counted == declared


def weights_after(setup: SmallSetup, steps: int) -> bytes:
    ready = make_ready(setup)
    for _ in range(steps):
        ready.step()
    return torch.cat([weight.detach().flatten() for weight in ready.workload.model.parameters()]).numpy().tobytes()


@pytest.mark.parametrize("options", [*SCHEMES, *SEARCHES], ids=str)
def test_the_weights_of_all_ranks_stay_equal_to_the_bit(options: Mapping[str, OptionValue], on_ranks: OnRanks) -> None:
    setup = small_setup("ddp", ranks=4, options={"bucket_mb": 0.02, "accumulate": 2, **options})
    assert len(set(on_ranks(4, weights_after, setup, 4))) == 1


@pytest.mark.parametrize("compress", ["powersgd", "topk"])
def test_a_compressed_step_is_the_same_with_and_without_overlap(compress: str, on_ranks: OnRanks) -> None:
    """As long as DistributedDataParallel has one bucket, and random factors come in its order."""
    beside, after = (
        on_ranks(2, weights_after, small_setup("ddp", ranks=2, options={"compress": compress, "overlap": overlap}), 1)
        for overlap in (True, False)
    )
    assert beside == after


@pytest.mark.parametrize("compress", ["fp16", "bf16"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_rounded_gradients_are_those_of_whole_ones_within_the_rounding(
    compress: Precision, precision: Precision, on_ranks: OnRanks
) -> None:
    whole, rounded = (
        on_ranks(2, train, small_setup("ddp", ranks=2, precision=precision, options={"clip": 0.0, **options}), 1)
        for options in ({}, {"compress": compress})
    )
    worst = 0.0
    for name, truth in whole[0][0].gradients.items():
        difference = ((rounded[0][0].gradients[name] - truth).norm() / truth.norm()).item()
        assert difference <= LIMITS[compress], f"{name} is off by {difference:.1e}"
        worst = max(worst, difference)
    assert worst > LIMITS["fp32"]  # Something was rounded.


def step_whose_peer_has_left(setup: SmallSetup) -> bool:
    """On rank 0, whether its step failed; rank 1 leaves before it."""
    ready = make_ready(setup)
    for _ in range(2):
        ready.step()
    if dist.get_rank() == 1:
        return leaving(False)
    with pytest.raises(RuntimeError, match=r"Connection|Broken pipe"):
        ready.step()
    return True


@pytest.mark.parametrize("compress", ["bf16", "powersgd", "topk"])
def test_a_peer_that_leaves_fails_a_compressed_step(compress: str, on_ranks: OnRanks) -> None:
    setup = small_setup("ddp", ranks=2, options={"bucket_mb": 0.1, "compress": compress})
    assert on_ranks(2, step_whose_peer_has_left, setup) == [True, False]


def last_losses(compress: str, feedback: ErrorFeedback) -> tuple[float, float]:
    """The first loss and the mean of the last five of 30 steps, by plain SGD, of which the papers speak."""
    setup = small_setup("ddp", ranks=dist.get_world_size(), options={"clip": 0.0, "learning_rate": 0.3})
    group, model = dist.group.WORLD, make_model(setup)
    assert group is not None
    scheme = (
        PowerSGD(group, rank=2, seed=setup.seed, feedback=feedback)
        if compress == "powersgd"
        else TopK(group, density=0.01, feedback=feedback)
    )
    trainer = Trainer(setup, model, no_phase, after_backward=lambda: average_gradients(model, scheme))
    trainer.optimizer = SGD(model.parameters(), lr=float(setup.options["learning_rate"]))
    batches = Batches(setup, data_rank=dist.get_rank(), data_ranks=dist.get_world_size())
    steps = (trainer.step(next(batches)) for _ in range(30))
    losses = torch.stack([loss for loss in steps if loss is not None])
    dist.all_reduce(losses)
    losses /= dist.get_world_size()
    return losses[0].item(), losses[-5:].mean().item()


@pytest.mark.parametrize("compress", ["powersgd", "topk"])
def test_training_needs_what_compression_remembers(compress: str, on_ranks: OnRanks) -> None:
    ((first, with_feedback), _) = on_ranks(2, last_losses, compress, ErrorFeedback())
    ((_, without), _) = on_ranks(2, last_losses, compress, FakeForgetfulFeedback())
    assert with_feedback < first - 0.5
    assert with_feedback < without - 0.1
