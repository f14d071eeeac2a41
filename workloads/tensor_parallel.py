"""The strategy `tensor_parallel`: every rank computes its share of each matrix product, on the same sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.optim import AdamW

from workloads.cards.card import Setup
from workloads.parts.divided_gradients import AgreeingScaler, add_up, clip_gradients, parameter_groups
from workloads.parts.tensor_parallel import norm_weights, parallelize
from workloads.parts.training import Trainer, adamw_settings, make_model
from workloads.workload import Phase, Workload


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
