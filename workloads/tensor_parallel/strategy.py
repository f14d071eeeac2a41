"""A model whose matrix products are divided among ranks by torch's DTensor, as in Megatron.

The first products of a block's halves are divided by columns and the last by rows, so that each half takes one
collective in forward and one in backward: attention has the rank's share of the heads, the MLP that of its inner width.
The head is divided by the vocabulary. So is Megatron's embedding, which is the head's weight too; this one is another,
and is divided by columns, which come together at half the cost of a sum. Norms are whole on each rank.
Outside of products all tensors are plain ones, the same on each rank; or, where the residual stream is divided by
positions, those of the rank's share of the sequence.
Source: Shoeybi et al. 2019, Megatron-LM, section 3; Korthikanti et al. 2022, Reducing Activation Recomputation in Large
Transformer Models, section 4.2.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.optim import AdamW

from workloads.core.trainer import Trainer, adamw_settings, make_model
from workloads.core.transformer import Block
from workloads.protocols import Phase, Workload
from workloads.spec import Setup
from workloads.tensor_parallel.sharded_gradients import AgreeingScaler, add_up, clip_gradients, parameter_groups

WHOLE = Replicate()
BY_POSITION = Shard(1)
BY_COLUMN = Shard(-1)


def parallelize(setup: Setup, module: nn.Module, mesh: DeviceMesh) -> None:
    """Divide, in place, what the module has of the model over the mesh's axis `tensor`.

    module: whole or a stage of it, equal on all ranks of the axis: its blocks wherever they are, and, where it has
    them, its children `embedding` and `head`. No weight changes its name.
    """
    if mesh["tensor"].size() == 1:
        return
    axis = mesh["tensor"]
    plan = _Plan(is_divided_by_position=bool(setup.options["sequence_parallel"]))
    for part in [part for part in module.modules() if isinstance(part, Block)]:
        _apply(plan.block(), part, axis)
        for half in (part.attention, part.mlp):
            half.register_forward_pre_hook(_round, prepend=True)
    children = dict(module.named_children())
    if "embedding" in children:
        _apply({"embedding": ColwiseParallel(use_local_output=False)}, module, axis)
        _apply({"embedding": plan.stream_of_columns()}, module, axis)
    if "head" in children:
        _apply({"head": plan.head(is_gathered=not setup.options["loss_parallel"])}, module, axis)
        children["head"].register_forward_pre_hook(_round, prepend=True)
    if setup.options["async_tp"]:
        _overlap_products(axis)


def norm_weights(module: nn.Module) -> list[nn.Parameter]:
    """The weights that are whole on each rank.

    Where the stream is divided by positions, backward leaves the part of their gradients that the rank's own make.
    """
    return [part.weight for part in module.modules() if isinstance(part, nn.RMSNorm)]


class _Plan:
    """How each part is divided, in torch's words."""

    def __init__(self, *, is_divided_by_position: bool) -> None:
        self._stream = BY_POSITION if is_divided_by_position else WHOLE

    def block(self) -> dict[str, ParallelStyle]:
        # The input is made whole once for all products that read it, and so is its gradient, which they add up before.
        return {
            "attention": PrepareModuleInput(
                input_layouts=(self._stream, None, None), desired_input_layouts=(WHOLE, None, None)
            ),
            "attention.q": ColwiseParallel(),
            "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(),
            "attention.o": RowwiseParallel(output_layouts=self._stream),
            "mlp": PrepareModuleInput(input_layouts=(self._stream,), desired_input_layouts=(WHOLE,)),
            "mlp.gate": ColwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=self._stream),
        }

    def stream_of_columns(self) -> ParallelStyle:
        # The column style could do this itself, but would hand on a tensor that has yet to arrive, of which a compiled
        # block makes a graph of its own.
        return PrepareModuleOutput(output_layouts=BY_COLUMN, desired_output_layouts=self._stream)

    def head(self, *, is_gathered: bool) -> ParallelStyle:
        return ColwiseParallel(
            input_layouts=self._stream,
            output_layouts=WHOLE if is_gathered else BY_COLUMN,
            use_local_output=is_gathered,
        )


def _apply(plan: dict[str, ParallelStyle], module: nn.Module, axis: DeviceMesh) -> None:
    # All ranks have made the same weights, so that each takes its part without being sent it.
    parallelize_module(module, axis, plan, src_data_rank=None)


def _round(module: nn.Module, inputs: tuple[Tensor, *tuple[Any, ...]]) -> tuple[Any, ...]:
    """The first input in the precision of the products that read it, so that it travels in that."""
    first, *others = inputs
    device = first.device.type
    if torch.is_autocast_enabled(device):
        first = first.to(torch.get_autocast_dtype(device))
    return first, *others


def _overlap_products(axis: DeviceMesh) -> None:
    """Let the compiler cut each product beside a collective into pieces, and move one while the next is computed."""
    import torch._inductor.config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    torch._inductor.config._micro_pipeline_tp = True
    with warnings.catch_warnings():
        # It calls itself needless, but the compiler leaves collectives alone of groups that it was not called for.
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(axis.get_group().group_name)


# The strategy `tensor_parallel`: every rank computes its share of each matrix product, on the same sequences.


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """The model divided over the axis `tensor`; as it is where there is nobody to share it with."""
    if mesh["tensor"].size() == 1:
        return Trainer(setup, make_model(setup), phase)
    return TensorTrainer(setup, mesh, phase)


class TensorTrainer(Trainer):
    """A `Workload` that holds its part of the weights, and whose loss is that of all ranks."""

    def __init__(self, setup: Setup, mesh: DeviceMesh, phase: Phase) -> None:
        model, group = make_model(setup), mesh.get_group("tensor")
        parallelize(setup, model, mesh)
        self._is_sequence_divided = bool(setup.options["sequence_parallel"])
        self._is_loss_divided = bool(setup.options["loss_parallel"])
        super().__init__(
            setup,
            model,
            phase,
            after_backward=self._complete_norms,
            optimizer=AdamW(parameter_groups(model.parameters()), **adamw_settings(setup)),
            clip=partial(clip_gradients, groups=[group], tensor_ranks=group.size()),
            scaler=AgreeingScaler(setup.device, groups=[group], enabled=setup.precision == "fp16"),
        )
        self._group = group

    def _forward_backward(self, tokens_bs: Tensor, then: Callable[[], None] = lambda: None) -> Tensor:
        if not self._is_loss_divided:
            return super()._forward_backward(tokens_bs, then)
        with loss_parallel():
            loss = super()._forward_backward(tokens_bs, then)
        assert isinstance(loss, DTensor)
        return loss.to_local()

    def _complete_norms(self) -> None:
        """Where each rank has seen its own positions only, its gradient of a norm is a part of the sum."""
        if self._is_sequence_divided:
            add_up(norm_weights(self.model), self._group)
