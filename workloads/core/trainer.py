"""One optimizer step, the same for every strategy: precision, accumulation, clipping, compilation.

Knows no strategy: what differs between them is handed in.
Dimensions: b sequences of a rank, s sequence + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from workloads.core.attention_choice import attend_of, attention_notes
from workloads.core.batch_norm import make_batch_norm
from workloads.core.transformer import Block, Checkpoint, Transformer, next_token_loss
from workloads.options import check_of, is_made, parts, rate_factor
from workloads.protocols import Phase
from workloads.registry import card_of
from workloads.spec import Precision, Setup

# The learning rate, set in an optimizer before each of its steps.


class LearningRate:
    """The rates of a training, step after step, by the rule of its options."""

    def __init__(self, setup: Setup) -> None:
        check = check_of(setup)
        self._setup = setup
        self._data_ranks = card_of(setup.strategy).data_ranks(setup) if check is None else check.data_ranks
        self._is_scaled = not is_made("learning_rate", setup)
        self._step = 0

    def begin_step(self, optimizer: Optimizer) -> None:
        """Set what the optimizer's next update uses: a multiple of the rate that it was made with.

        An optimizer that updates nothing itself has no rate, and gets none.
        """
        factor = rate_factor(self._setup, data_ranks=self._data_ranks, step=self._step) if self._is_scaled else 1.0
        for group in optimizer.param_groups:
            if "lr" in group:
                group["lr"] = factor * group.setdefault("initial_lr", group["lr"])
        self._step += 1


WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
AUTOCAST_TYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}

Clip = Callable[[Iterable[nn.Parameter], float], Tensor | None]
"""Scales the gradients of the weights down to a norm, where theirs is larger; gives theirs, None if it takes none."""


class Trainer:
    """A model and its optimizer, trained on one batch of the rank at a time; a `Workload` of itself.

    After a step the gradients stay readable until the next one: the mean over the effective batch, unscaled, clipped.
    """

    def __init__(
        self,
        setup: Setup,
        model: nn.Module,
        phase: Phase,
        *,
        no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
        after_backward: Callable[[], None] = lambda: None,
        optimizer: Optimizer | None = None,
        clip: Clip = nn.utils.clip_grad_norm_,
        scaler: torch.amp.GradScaler | None = None,
        notes: Sequence[str] | None = None,
    ) -> None:
        """Take over a model that lies on its device, and make its optimizer where none is handed in.

        model: what is called, wrappers included.
        no_sync: entered around forward and backward of every microbatch but the last.
        after_backward: called when the last microbatch's backward is through; its time is backward's.
        clip: what limits the norm of the whole gradient, of which a rank may hold a part only.
        scaler: where it is not enough that this rank sees an overflow.
        notes: see `KnowsNotes`; which kernel attends, where they are left out.
        """
        self.model = model
        self.optimizer: Optimizer = optimizer or make_optimizer(setup, model.parameters())
        self._notes = attention_notes(setup) if notes is None else tuple(notes)
        self._phase = phase
        self._no_sync = no_sync
        self._after_backward = after_backward
        self._device = setup.device
        self._autocast_type = AUTOCAST_TYPES.get(setup.precision)
        self._parts = parts(setup)
        self._clip = clip
        self._largest_norm = float(setup.options["clip"])
        self._gradient_norm: Tensor | None = None
        self._learning_rate = LearningRate(setup)
        # fp16 alone has too few exponents for gradients; without it the scaler passes everything through.
        self._scaler = scaler or torch.amp.GradScaler(setup.device, enabled=setup.precision == "fp16")

    def step(self, tokens_bs: Tensor) -> Tensor | None:
        """See `Workload.step`."""
        with self._phase("optimizer"):
            self.optimizer.zero_grad()
        loss = self._compute_gradients(tokens_bs)
        with self._phase("optimizer"):
            self._update()
        return loss

    def notes(self) -> Sequence[str]:
        """See `KnowsNotes`."""
        return self._notes

    def full_gradients(self) -> dict[str, Tensor]:
        """See `Workload.full_gradients`."""
        return whole_gradients(self.model)

    def gradient_norm(self) -> float | None:
        """See `KnowsNorm`."""
        return None if self._gradient_norm is None else self._gradient_norm.item()

    def _compute_gradients(self, tokens_bs: Tensor) -> Tensor | None:
        """Forward and backward of all microbatches; see `Workload.step`."""
        microbatches = tokens_bs.chunk(self._parts)
        losses = []
        for microbatch_bs in microbatches[:-1]:
            with self._no_sync():
                losses.append(self._forward_backward(microbatch_bs))
        losses.append(self._forward_backward(microbatches[-1], then=self._after_backward))
        return torch.stack(losses).sum()

    def _forward_backward(self, tokens_bs: Tensor, then: Callable[[], None] = lambda: None) -> Tensor:
        """The microbatch's part of the loss, detached; its gradients are added to those that are there."""
        with self._phase("forward"), self._autocast():
            logits_bsv = self.model(self._inputs(tokens_bs))
            loss = next_token_loss(logits_bsv, self._targets(tokens_bs)) / self._parts
        with self._phase("backward"):
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            then()
        return loss.detach()

    def _inputs(self, tokens_bs: Tensor) -> Tensor:
        """The tokens that this rank reads."""
        return tokens_bs[:, :-1]

    def _targets(self, tokens_bs: Tensor) -> Tensor:
        """Those that follow them."""
        return tokens_bs[:, 1:]

    def _autocast(self) -> AbstractContextManager[object]:
        if self._autocast_type is None:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._autocast_type)

    def _update(self) -> None:
        self._learning_rate.begin_step(self.optimizer)
        # The optimizer could unscale by itself, but then clipping would see scaled gradients, and so would readers.
        self._scaler.unscale_(self.optimizer)
        if self._largest_norm:
            self._gradient_norm = self._clip(self.model.parameters(), self._largest_norm)
        self._scaler.step(self.optimizer)
        self._scaler.update()


def make_model(setup: Setup) -> Transformer:
    """The reference model on the rank's device: equal in all ranks, whatever was drawn before."""
    torch.manual_seed(setup.seed)
    with torch.device(setup.device):
        model = Transformer(setup.shape, checkpoint=_checkpoint(setup), batch_norm=make_batch_norm(setup))
    attend = attend_of(setup)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.attention.attend = attend
    compile_blocks(model, str(setup.options["compile"]))
    return model


def make_optimizer(setup: Setup, parameters: Iterable[nn.Parameter]) -> AdamW:
    """AdamW over these weights."""
    return AdamW(parameters, **adamw_settings(setup))


def adamw_settings(setup: Setup) -> dict[str, Any]:
    """What AdamW is made with, beside the weights; its update is one kernel."""
    return {
        "lr": float(setup.options["learning_rate"]),
        "betas": BETAS,
        "weight_decay": WEIGHT_DECAY,
        "fused": True,
    }


def compile_blocks(model: Transformer, mode: str) -> None:
    """Compile each block in place, so that no name changes; all blocks share one graph. mode: "none" leaves them."""
    if mode == "none":
        return
    for block in model.blocks:
        block.compile(mode=mode, fullgraph=True)


def whole_gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradient of each weight, by the weight's name without those of wrappers.

    Gradients that ranks hold in parts are brought together, so that all ranks must call this.

    Raises:
        RuntimeError: a weight has no gradient.
    """
    gradients = {}
    for name, weight in model.named_parameters():
        if weight.grad is None:
            raise RuntimeError(f"weight {plain_name(name)} has no gradient; the last backward did not reach it")
        gradients[plain_name(name)] = whole_of(weight.grad)
    return gradients


def plain_name(name: str) -> str:
    """The name that a weight has in `single`, without the wrapper's or the number of the stage that it is in."""
    first, _, rest = name.partition(".")
    return rest if rest and (first == "module" or first.isdecimal()) else name


def whole_of(tensor: Tensor) -> Tensor:
    """The tensor, brought together where ranks hold it in parts; then all of them must call this."""
    if not isinstance(tensor, DTensor):
        return tensor
    # An offloaded part has to lie on the device whose ranks bring it together.
    part = tensor.to(tensor.device_mesh.device_type)
    whole: Tensor = part.full_tensor()  # type: ignore[attr-defined]  # A DTensor stays one on any device.
    return whole


def _checkpoint(setup: Setup) -> Checkpoint:
    choice: Checkpoint = setup.options["checkpoint"]  # type: ignore[assignment]  # The card allows no other word.
    return choice
