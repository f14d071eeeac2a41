"""Tensor parallelism as in Megatron, on torch's DTensor: division of the model, and the trainer.

The first products of a block's halves are divided by columns and the last by rows, so that each half needs one
collective in forward and one in backward: attention has the rank's share of the heads, the MLP its share of the inner
width. The head is divided by the vocabulary. So is Megatron's embedding, whose weight is also the head's; here the
embedding has its own weight and is divided by columns, which are gathered at half the cost of a sum. Norms are whole on
each rank. Outside of products all tensors are plain, and the same on each rank; if the residual stream is divided by
positions, they hold the rank's share of the sequence.
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
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
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

from workloads.core.sharded_gradients import AgreeingScaler, add_up, clip_gradients, parameter_groups
from workloads.core.trainer import Trainer, adamw_settings, make_model, materialise, outline_model
from workloads.core.transformer import Block
from workloads.protocols import Phase, Workload
from workloads.spec import Setup

WHOLE = Replicate()
BY_POSITION = Shard(1)
BY_COLUMN = Shard(-1)


def parallelize(setup: Setup, module: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the module's part of the model, in place, over the mesh's axis `tensor`.

    module: the whole model or a stage, equal on all ranks of the axis. This divides its blocks at any depth, and its
    children `embedding` and `head` if it has them. No weight changes its name.
    """
    if mesh["tensor"].size() == 1:
        return
    axis = mesh["tensor"]
    stream = BY_POSITION if setup.options["sequence_parallel"] else WHOLE
    # three_d has neither option: its stages gather the logits and cut no product into pieces.
    is_loss_sharded, is_async = (bool(setup.options.get(name, False)) for name in ("loss_parallel", "async_tp"))
    for block in [part for part in module.modules() if isinstance(part, Block)]:
        _apply(_block_plan(stream), block, axis)
        for half in (block.attention, block.mlp):
            half.register_forward_pre_hook(_round, prepend=True)
    children = dict(module.named_children())
    if "embedding" in children:
        _apply({"embedding": ColwiseParallel(use_local_output=False)}, module, axis)
        # ColwiseParallel could do this itself, but would return a tensor that is still in flight, for which a compiled
        # block makes a graph of its own.
        exchange = PrepareModuleOutput(output_layouts=BY_COLUMN, desired_output_layouts=stream)
        _apply({"embedding": exchange}, module, axis)
    if "head" in children:
        head = ColwiseParallel(
            input_layouts=stream,
            output_layouts=BY_COLUMN if is_loss_sharded else WHOLE,
            use_local_output=not is_loss_sharded,
        )
        _apply({"head": head}, module, axis)
        children["head"].register_forward_pre_hook(_round, prepend=True)
    if is_async:
        _overlap_products(axis)


def norm_weights(module: nn.Module) -> list[nn.Parameter]:
    """Return the weights that are whole on each rank.

    If the stream is divided by positions, backward leaves only the part of their gradients that comes from the rank's
    own positions.
    """
    return [part.weight for part in module.modules() if isinstance(part, nn.RMSNorm)]


def _block_plan(stream: Placement) -> dict[str, ParallelStyle]:
    """Return how a block is divided. stream: placement of the residual stream on the ranks."""
    # The input is gathered once for all products that read it; their gradients are summed first, then reduced once.
    return {
        "attention": PrepareModuleInput(input_layouts=(stream, None, None), desired_input_layouts=(WHOLE, None, None)),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(output_layouts=stream),
        "mlp": PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(WHOLE,)),
        "mlp.gate": ColwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=stream),
    }


def _apply(plan: dict[str, ParallelStyle], module: nn.Module, axis: DeviceMesh) -> None:
    # Weights have no values yet, so there is nothing to transfer.
    parallelize_module(module, axis, plan, src_data_rank=None)


def _round(module: nn.Module, inputs: tuple[Tensor, *tuple[Any, ...]]) -> tuple[Any, ...]:
    """Cast the first input to the precision of the products that read it, so that it travels in that precision."""
    first, *others = inputs
    device = first.device.type
    if torch.is_autocast_enabled(device):
        first = first.to(torch.get_autocast_dtype(device))
    return first, *others


def _overlap_products(axis: DeviceMesh) -> None:
    """Let the compiler cut each product next to a collective into pieces, and move one while the next is computed."""
    import torch._inductor.config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    torch._inductor.config._micro_pipeline_tp = True
    with warnings.catch_warnings():
        # torch calls this function unnecessary, but up to 2.14 the compiler changes only collectives of groups that it
        # enabled. Since 2.15 it asks the GPU instead.
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(axis.get_group().group_name)


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build the model divided over the axis `tensor`, or the plain trainer if the axis has one rank."""
    if mesh["tensor"].size() == 1:
        return Trainer(setup, make_model(setup), phase)
    return TensorTrainer(setup, mesh, phase)


class TensorTrainer(Trainer):
    """A `Workload` that holds its part of the weights, and whose loss is that of all ranks."""

    def __init__(self, setup: Setup, mesh: DeviceMesh, phase: Phase) -> None:
        model, group = outline_model(setup), mesh.get_group("tensor")
        parallelize(setup, model, mesh)
        materialise(setup, model)
        self._is_sequence_sharded = bool(setup.options["sequence_parallel"])
        self._is_loss_sharded = bool(setup.options["loss_parallel"])
        super().__init__(
            setup,
            model,
            phase,
            after_backward=self._sum_norm_gradients,
            optimizer=AdamW(parameter_groups(model.parameters()), **adamw_settings(setup)),
            clip=partial(clip_gradients, groups=[group], tensor_ranks=group.size()),
            scaler=AgreeingScaler(setup.device, groups=[group], enabled=setup.precision == "fp16"),
        )
        self._group = group

    def _forward_backward(self, tokens_bs: Tensor, then: Callable[[], None] = lambda: None) -> Tensor:
        if not self._is_loss_sharded:
            return super()._forward_backward(tokens_bs, then)
        with loss_parallel():
            loss = super()._forward_backward(tokens_bs, then)
        assert isinstance(loss, DTensor)
        return loss.to_local()

    def _sum_norm_gradients(self) -> None:
        """Sum the norms' gradients over the ranks if each rank has seen only its own positions."""
        if self._is_sequence_sharded:
            add_up(norm_weights(self.model), self._group)
