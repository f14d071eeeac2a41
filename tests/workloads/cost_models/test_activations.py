"""Activations by arithmetic against what autograd is seen to keep, and against a paper's published shares."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workloads.core.transformer import Transformer, next_token_loss
from workloads.cost_models.memory import Checkpoint, Microbatch, Precision, paper_activation_bytes
from workloads.cost_models.shape import PRESETS, Shape

AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
CHECKPOINTS: tuple[Checkpoint, ...] = ("none", "full", "selective")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")

GROUPED = Shape(layers=3, width=48, heads=6, kv_heads=2, mlp_width=100, vocabulary=70, sequence=12, batch=4)
ALL_HEADS = Shape(layers=2, width=64, heads=4, kv_heads=4, mlp_width=33, vocabulary=11, sequence=31, batch=4)
ONE_HEAD = Shape(layers=1, width=16, heads=1, kv_heads=1, mlp_width=50, vocabulary=301, sequence=9, batch=4)
ONE_TOKEN = Shape(layers=2, width=32, heads=4, kv_heads=2, mlp_width=64, vocabulary=20, sequence=1, batch=4)
CASES = [(GROUPED, 4), (GROUPED, 1), (ALL_HEADS, 2), (ONE_HEAD, 3), (ONE_TOKEN, 2)]

GPT_3 = Shape(layers=96, width=12288, heads=96, kv_heads=96, mlp_width=49152, vocabulary=51200, sequence=2048, batch=1)
MT_NLG = Shape(
    layers=105, width=20480, heads=128, kv_heads=128, mlp_width=81920, vocabulary=51200, sequence=2048, batch=1
)


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclassing untyped.
    """Knows every storage that an operator gave while it was on, and which of them still live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None) -> object:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._seen[storage._cdata] = weakref.ref(storage)
        return result

    def live_bytes(self, without: set[int]) -> int:
        """Bytes of those that live, without those of these addresses."""
        live = [storage for reference in self._seen.values() if (storage := reference()) is not None]
        return sum(storage.nbytes() for storage in live if storage.data_ptr() not in without)


def forward(model: Transformer, sequences: int, precision: Precision, around: AbstractContextManager[object]) -> Tensor:
    """The loss of one microbatch; around: entered before anything is computed."""
    tokens_bs = torch.randint(0, model.head.out_features, (sequences, model.cos_sr.shape[0] + 1))
    half = AUTOCAST_TYPES.get(precision)
    with around, torch.autocast("cpu", dtype=half) if half else nullcontext():
        return next_token_loss(model(tokens_bs[:, :-1]), tokens_bs[:, 1:])


def activation_bytes(shape: Shape, sequences: int, precision: Precision, checkpoint: Checkpoint) -> int:
    """Return what one microbatch's forward keeps for backward, without weights and tables of positions."""
    microbatch = Microbatch(shape=shape, sequences=sequences, precision=precision, checkpoint=checkpoint)
    return microbatch.tokens_bytes + shape.layers * microbatch.stored_block_bytes + microbatch.head_bytes


def addresses(*tensors: Tensor) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("shape", "sequences"), CASES)
def test_activations_are_what_lives_after_forward_to_the_byte(
    shape: Shape, sequences: int, precision: Precision, checkpoint: Checkpoint
) -> None:
    model = Transformer(shape, checkpoint=checkpoint)
    storages = LiveStorages()
    loss = forward(model, sequences, precision, storages)
    live_bytes = storages.live_bytes(without=addresses(loss, *model.parameters(), *model.buffers()))
    assert activation_bytes(shape, sequences, precision, checkpoint) == live_bytes


@pytest.mark.parametrize("checkpoint", ["none", "full"])  # What is stored selectively lies with the checkpoint.
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("shape", "sequences"), CASES)
def test_activations_are_what_autograd_saves_to_the_byte(
    shape: Shape, sequences: int, precision: Precision, checkpoint: Checkpoint
) -> None:
    model = Transformer(shape, checkpoint=checkpoint)
    own = addresses(*model.parameters(), *model.buffers())
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage
        return tensor

    loss = forward(model, sequences, precision, saved_tensors_hooks(note, lambda tensor: tensor))
    saved_bytes = sum(storage.nbytes() for address, storage in saved.items() if address not in own)
    assert loss.requires_grad
    assert activation_bytes(shape, sequences, precision, checkpoint) == saved_bytes


@pytest.mark.parametrize("precision", PRECISIONS)
def test_checkpointing_keeps_less_the_more_it_computes_again(precision: Precision) -> None:
    full, selective, none = (
        activation_bytes(PRESETS["tiny"], 8, precision, checkpoint) for checkpoint in ("full", "selective", "none")
    )
    assert full < selective < none


def test_activations_of_the_blocks_grow_with_the_sequences() -> None:
    one, two = (
        Microbatch(shape=PRESETS["tiny"], sequences=sequences, precision="fp32", checkpoint="none")
        for sequences in (1, 2)
    )
    assert two.block_bytes == 2 * one.block_bytes


def test_under_autocast_the_copies_of_the_weights_do_not_grow_with_the_sequences() -> None:
    one, two, three = (
        Microbatch(shape=PRESETS["tiny"], sequences=sequences, precision="bf16", checkpoint="none").block_bytes
        for sequences in (1, 2, 3)
    )
    assert two - one == three - two
    assert one - (two - one) == 2 * PRESETS["tiny"].block_parameters()


@pytest.mark.parametrize(("shape", "saved_ratio"), [(GPT_3, 0.70), (MT_NLG, 0.65)])
def test_the_paper_saves_its_published_share_by_leaving_attentions_core_out(shape: Shape, saved_ratio: float) -> None:
    kept, selective = (paper_activation_bytes(shape, 1, checkpoint) for checkpoint in ("none", "selective"))
    assert 1 - selective / kept == pytest.approx(saved_ratio, abs=0.005)


def test_a_layer_of_the_paper_is_its_formula() -> None:
    """s b h (34 + 5 a s / h), 34 s b h and 2 s b h, by hand: s 4, b 3, h 8, a 2."""
    shape = Shape(layers=1, width=8, heads=2, kv_heads=2, mlp_width=32, vocabulary=2, sequence=4, batch=3)
    kept = {checkpoint: paper_activation_bytes(shape, 3, checkpoint) for checkpoint in CHECKPOINTS}
    assert kept == {"none": 96 * (34 + 5), "selective": 96 * 34, "full": 96 * 2}


def test_the_papers_layers_are_alike() -> None:
    assert paper_activation_bytes(GPT_3, 1, "none") == 96 * 2048 * 12288 * (34 + 80)


@pytest.mark.parametrize(
    "law", [lambda: activation_bytes(GPT_3, 0, "fp32", "none"), lambda: paper_activation_bytes(GPT_3, 0, "none")]
)
def test_no_sequence_is_refused(law: Callable[[], int]) -> None:
    with pytest.raises(ValueError, match="sequences is 0; it must be 1 or more"):
        law()
