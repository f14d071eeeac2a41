"""Reference training, the same for every strategy: model, AdamW, learning rate, and one optimizer step.

A step covers precision, accumulation and clipping. Knows no strategy: what differs between them is passed in.
Dimensions: b sequences of a rank, s sequence + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from workloads.core.attention import attend_of, attention_notes
from workloads.core.fp8 import product_notes
from workloads.core.learning_rate import rate_factor
from workloads.core.precision import compute_with_rounded_weights
from workloads.core.precision_options import weights_of
from workloads.core.transformer import Block, Checkpoint, Transformer, next_token_loss, rotary_tables
from workloads.core.weights import fill_weights
from workloads.cost_models.memory import is_recomputed
from workloads.options import check_of, checkpoint_every, loss_chunks, microbatch_count
from workloads.protocols import Phase
from workloads.spec import Precision, Setup


class LearningRate:
    """Sets the learning rate of each step in the optimizer, by the rule of the setup's options."""

    def __init__(self, setup: Setup) -> None:
        check = check_of(setup)
        self._setup = setup
        self._data_ranks = setup.data_ranks if check is None else check.data_ranks
        self._step = 0

    def begin_step(self, optimizer: Optimizer) -> None:
        """Set the rate of the optimizer's next update: a multiple of the rate that it was made with.

        An optimizer that updates nothing itself has no rate and gets none.
        """
        factor = rate_factor(self._setup, data_ranks=self._data_ranks, step=self._step)
        for group in optimizer.param_groups:
            if "lr" in group:
                group["lr"] = factor * group.setdefault("initial_lr", group["lr"])
        self._step += 1

    def progress(self) -> dict[str, float]:
        """Return the number of steps begun; see `workloads.protocols.KeepsProgress`."""
        return {"steps": self._step}

    def resume(self, progress: Mapping[str, float]) -> None:
        """Continue after the steps of this progress."""
        self._step = int(progress["steps"])


WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
AUTOCAST_TYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(setup: Setup) -> AbstractContextManager[object]:
    """Return the context of a forward in the setup's precision; none where weights are in bf16 themselves."""
    dtype = AUTOCAST_TYPES.get(setup.precision) if weights_of(setup) == "autocast" else None
    return nullcontext() if dtype is None else torch.autocast(setup.device, dtype=dtype)


Clip = Callable[[Iterable[nn.Parameter], float], Tensor | None]
"""Scales the weights' gradients down to a largest norm; returns their norm before, None if it computes none."""


class Trainer:
    """A `Workload`: a model and its optimizer, trained on one batch of the rank at a time.

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
        """Take a model that is on its device, and make its optimizer if none is passed in.

        model: the module to call, including wrappers.
        no_sync: entered around forward and backward of every microbatch but the last.
        after_backward: called after the last microbatch's backward; its time counts as backward's.
        clip: limits the norm of the full gradient, of which a rank may hold only a shard.
        scaler: needed if other ranks must know of an overflow that this rank sees.
        notes: see `KnowsNotes`; by default, a note on the attention kernel.
        """
        self.model = model
        self.optimizer: Optimizer = optimizer or make_optimizer(setup, model.parameters())
        self._notes = (*(attention_notes(setup) if notes is None else notes), *product_notes(setup))
        self._phase = phase
        self._no_sync = no_sync
        self._after_backward = after_backward
        self._setup = setup
        self._microbatches = microbatch_count(setup)
        self._loss_chunks = loss_chunks(setup)
        self._clip = clip
        self._largest_norm = float(setup.options["clip"])
        self._gradient_norm: Tensor | None = None
        self._learning_rate = LearningRate(setup)
        # Only fp16's range of exponents is too small for gradients; a disabled scaler changes nothing.
        self._scaler = scaler or torch.amp.GradScaler(setup.device, enabled=setup.precision == "fp16")

    def step(self, tokens_bs: Tensor) -> Tensor | None:
        with self._phase("optimizer"):
            self.optimizer.zero_grad()
        loss = self._compute_gradients(tokens_bs)
        with self._phase("optimizer"):
            self._update()
        return loss

    def notes(self) -> Sequence[str]:
        return self._notes

    def full_gradients(self) -> dict[str, Tensor]:
        return gather_gradients(self.model)

    def gradient_norm(self) -> Tensor | None:
        return self._gradient_norm

    def progress(self) -> dict[str, float]:
        """See `KeepsProgress`: steps begun, and in fp16 the state of the loss scaler."""
        return {**self._learning_rate.progress(), **self._scaler.state_dict()}

    def resume(self, progress: Mapping[str, float]) -> None:
        self._learning_rate.resume(progress)
        if self._scaler.is_enabled():
            counts = ("growth_interval", "_growth_tracker")
            state = {name: progress[name] for name in self._scaler.state_dict()}
            self._scaler.load_state_dict({name: int(n) if name in counts else n for name, n in state.items()})

    def _compute_gradients(self, tokens_bs: Tensor) -> Tensor | None:
        """Run forward and backward of all microbatches; see `Workload.step` for the result."""
        microbatches = tokens_bs.chunk(self._microbatches)
        losses = []
        for microbatch_bs in microbatches[:-1]:
            with self._no_sync():
                losses.append(self._forward_backward(microbatch_bs))
        losses.append(self._forward_backward(microbatches[-1], then=self._after_backward))
        return torch.stack(losses).sum()

    def _forward_backward(self, tokens_bs: Tensor, then: Callable[[], None] = lambda: None) -> Tensor:
        """Add the microbatch's gradients to those already there, and return its part of the loss, detached."""
        with self._phase("forward"), autocast(self._setup):
            loss = self._loss(tokens_bs) / self._microbatches
        with self._phase("backward"):
            self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            then()
        return loss.detach()

    def _loss(self, tokens_bs: Tensor) -> Tensor:
        inputs_bs, targets_bs = self._inputs(tokens_bs), self._targets(tokens_bs)
        if self._loss_chunks == 1:
            return next_token_loss(self.model(inputs_bs), targets_bs)
        loss: Tensor = self.model(inputs_bs, targets_bs, chunks=self._loss_chunks)
        return loss

    def _inputs(self, tokens_bs: Tensor) -> Tensor:
        """Return the tokens that this rank reads."""
        return tokens_bs[:, :-1]

    def _targets(self, tokens_bs: Tensor) -> Tensor:
        """Return the tokens that follow the inputs."""
        return tokens_bs[:, 1:]

    def _update(self) -> None:
        self._learning_rate.begin_step(self.optimizer)
        # The optimizer could unscale by itself, but then clipping and readers would see scaled gradients.
        self._scaler.unscale_(self.optimizer)
        if self._largest_norm:
            self._gradient_norm = self._clip(self.model.parameters(), self._largest_norm)
        self._scaler.step(self.optimizer)
        self._scaler.update()


def make_model(setup: Setup) -> Transformer:
    """Make the whole reference model on the rank's device."""
    model = outline_model(setup)
    materialise(setup, model)
    return model


def outline_model(setup: Setup, *, device: str = "meta") -> Transformer:
    """Make the reference model on the meta device, where it takes no memory, to be divided and then materialised.

    device: used instead, for a library that divides modules while they are made.
    """
    checkpoint: Checkpoint = setup.options["checkpoint"]  # type: ignore[assignment]  # The option allows no other word.
    with torch.device(device):
        model = Transformer(setup.shape, checkpoint=checkpoint)
    compute_with_rounded_weights(setup, model)
    attend, compile_mode = attend_of(setup), str(setup.options["compile"])
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        if not is_recomputed(index, every=checkpoint_every(setup)):
            block.checkpoint = "none"
        block.attention.attend = attend
        if compile_mode != "none":
            # Each block in place, so that no name changes; all blocks share one graph.
            block.compile(mode=compile_mode, fullgraph=True)
    return model


def materialise(setup: Setup, part: nn.Module, *, device: str | None = None) -> None:
    """Allocate this rank's part of an outlined model and set its initial values.

    part: the model, or a stage of it, after it was divided.
    device: of the weights, if it is not the setup's, for example because they are offloaded.
    """
    part.to_empty(device=device or setup.device)
    if isinstance(part, Transformer) and setup.shape.is_tied:
        part.tie()
    fill_weights(part.named_parameters(), seed=setup.seed, layers=setup.shape.layers)
    fill_tables(setup, part)


def fill_tables(setup: Setup, part: nn.Module) -> None:
    """Set the rotary tables, which `to_empty` leaves without values; made on the host, they are the same everywhere."""
    tables = rotary_tables(setup.shape)
    for name, table in zip(("cos_sr", "sin_sr"), tables, strict=True):
        part.register_buffer(name, table.to(setup.device), persistent=False)


def make_optimizer(setup: Setup, parameters: Iterable[nn.Parameter]) -> AdamW:
    """Make AdamW over these weights."""
    return AdamW(parameters, **adamw_settings(setup))


def adamw_settings(setup: Setup) -> dict[str, Any]:
    """Return AdamW's arguments other than the weights; its update is one fused kernel."""
    rate = float(setup.options["learning_rate"])
    return {"lr": rate, "betas": BETAS, "weight_decay": WEIGHT_DECAY, "fused": True}


def gather_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradient of each weight, by the weight's name without wrapper prefixes.

    Sharded gradients are gathered, so all ranks must call this.

    Raises:
        RuntimeError: a weight has no gradient.
    """
    gradients = {}
    for name, weight in model.named_parameters():
        if weight.grad is None:
            raise RuntimeError(f"weight {plain_name(name)} has no gradient; the last backward did not reach it")
        gradients[plain_name(name)] = full_tensor_of(weight.grad)
    return gradients


def plain_name(name: str) -> str:
    """Return the name that a weight has in `single`: without a wrapper's prefix or its stage's number."""
    first, _, rest = name.partition(".")
    return rest if rest and (first == "module" or first.isdecimal()) else name


def full_tensor_of(tensor: Tensor) -> Tensor:
    """Return the full tensor; if it is sharded over ranks, all of them must call this."""
    if not isinstance(tensor, DTensor):
        return tensor
    # An offloaded shard has to be moved to the device that the mesh gathers on.
    shard = tensor.to(tensor.device_mesh.device_type)
    full: Tensor = shard.full_tensor()  # type: ignore[attr-defined]  # A DTensor stays one on any device.
    return full
