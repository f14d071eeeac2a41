"""A loss that is computed in chunks is the plain one, and holds the logits of one chunk at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.workloads.training.setups import SMALL, ranks_of, small_setup
from workloads.core.transformer import Transformer, chunked_loss, next_token_loss
from workloads.cost_models.absent import Absent
from workloads.options import training_refusals
from workloads.registry import SPECS, spec_of
from workloads.spec import OptionValue

WIDE = replace(SMALL, vocabulary=4096)


def gradients(chunks: int, *, is_autocast: bool = False) -> tuple[float, dict[str, Tensor]]:
    torch.manual_seed(3)
    model = Transformer(SMALL)
    tokens_bs = torch.randint(SMALL.vocabulary, (3, SMALL.sequence + 1))
    inputs_bs, targets_bs = tokens_bs[:, :-1], tokens_bs[:, 1:]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
        if chunks == 1:
            loss = next_token_loss(model(inputs_bs), targets_bs)
        else:
            loss = model(inputs_bs, targets_bs, chunks=chunks)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("chunks", [2, 5, 48])
def test_loss_and_gradients_are_those_of_the_plain_loss(chunks: int) -> None:
    loss, expected = gradients(1)
    chunked, found = gradients(chunks)
    assert chunked == pytest.approx(loss, rel=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= 1e-6 * gradient.norm(), name


def test_under_autocast_they_differ_by_rounding_only() -> None:
    loss, expected = gradients(1, is_autocast=True)
    chunked, found = gradients(4, is_autocast=True)
    assert chunked == pytest.approx(loss, rel=1e-5)
    for name, gradient in expected.items():
        # Each chunk's part of the head's gradient is rounded to bf16, as are those of microbatches.
        assert (found[name] - gradient).norm() <= 1e-2 * gradient.norm(), name


class LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most elements that one result of an operation has."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(result, Tensor):
                self.elements = max(self.elements, result.numel())
        return results


@pytest.mark.parametrize("chunks", [4, 8])
def test_no_tensor_has_the_logits_of_more_than_one_chunk(chunks: int) -> None:
    positions, width, vocabulary = 256, 8, 1024
    head = nn.Linear(width, vocabulary, bias=False)
    x_bsd = torch.randn(1, positions, width, requires_grad=True)
    with LargestResult() as largest:
        chunked_loss(head, x_bsd, torch.randint(vocabulary, (1, positions)), chunks=chunks).backward()  # type: ignore[no-untyped-call]
    assert largest.elements == positions * vocabulary // chunks


def test_saved_for_backward_are_no_logits() -> None:
    saved: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    head = nn.Linear(8, 1024, bias=False)
    x_bsd = torch.randn(1, 256, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        chunked_loss(head, x_bsd, torch.randint(1024, (1, 256)), chunks=4)
    assert max(saved, default=0) <= 1024 * 8


TRAININGS = [spec for spec in SPECS if spec.kind == "training"]
REFUSED = {
    "deepspeed": "DeepSpeed's engine may free the head's weight before backward",
    "tensor_parallel": "ranks share the head's vocabulary",
    "zero_bubble": "each half of a zero-bubble schedule's backward would recompute",
    "three_d": "ranks share the head's vocabulary",
}


@pytest.mark.parametrize("name", [spec.name for spec in TRAININGS])
def test_a_strategy_computes_the_loss_in_chunks_or_says_why_not(name: str) -> None:
    spec = spec_of(name)
    setup = small_setup(name, ranks=ranks_of(spec), options={"loss_chunks": 2})
    reasons = [reason for reason in spec.refusals(setup) if "loss_chunks" in reason]
    if name in REFUSED:
        (reason,) = reasons
        assert reason.startswith(f"option loss_chunks is 2, but {REFUSED[name]}")
        assert reason.endswith("; leave it out")
    else:
        assert reasons == []
        assert isinstance(spec.peak(setup), Absent)


def test_more_chunks_than_positions_are_refused() -> None:
    options: dict[str, OptionValue] = {"loss_chunks": 65, "accumulate": 2}
    (reason,) = training_refusals(small_setup(options=options), data_ranks=1)
    assert reason == ("option loss_chunks is 65, and a microbatch of a rank has 64 positions; use 64 or fewer")


def test_a_batch_that_is_too_small_for_the_microbatches_is_refused_without_chunks_of_nothing() -> None:
    options: dict[str, OptionValue] = {"loss_chunks": 2, "accumulate": 1000}
    (reason,) = training_refusals(small_setup(options=options), data_ranks=1)
    assert reason.startswith("batch ")
