"""The strategy `parameter_server`: servers hold the weights; workers push gradients to them and pull weights, by RPC.

The first ranks are the servers, the others the workers. On a GPU tensors travel through the host's memory.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.parts.parameter_server.connection import connect, timeout_s
from workloads.parts.parameter_server.inbox import Inbox, open_inbox, watch
from workloads.parts.parameter_server.norms import Norms, open_norms
from workloads.parts.parameter_server.placement import Placement, place
from workloads.parts.parameter_server.remote_optimizer import RemoteOptimizer
from workloads.parts.parameter_server.server import AsynchronousServer, Share, SynchronousServer
from workloads.parts.training import Trainer, make_model
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """A server or a worker, by the rank; connected with all others."""
    model, group = make_model(setup), mesh.get_group("rpc")
    placement = place(model, int(setup.options["servers"]))
    if group.rank() < int(setup.options["servers"]):
        return _serve(setup, Share(setup, model, placement, group), phase, group)
    connect(group, _device_of(model))
    return Worker(setup, model, phase, placement, group)


def _serve(setup: Setup, share: Share, phase: Phase, group: dist.ProcessGroup) -> Workload:
    """What workers push to has to be open before they are connected."""
    device = _device_of(share.model)
    servers = int(setup.options["servers"])
    workers = range(servers, setup.ranks)
    inbox, norms = Inbox(timeout_s(group, device)), Norms(group.rank(), servers)
    open_inbox(inbox)
    open_norms(norms)
    connect(group, device)
    for worker in workers:
        watch(inbox, worker)
    if setup.options["mode"] == "asynchronous":
        return AsynchronousServer(setup, share, phase, inbox=inbox, workers=workers)
    return SynchronousServer(setup, share, phase, inbox=inbox, workers=workers, norms=norms)


class Worker(Trainer):
    """Trains on its share of the batch with weights of the servers."""

    def __init__(
        self, setup: Setup, model: nn.Module, phase: Phase, placement: Placement, group: dist.ProcessGroup
    ) -> None:
        self._remote = RemoteOptimizer(model, placement, worker=group.rank())
        self._placement = placement
        self._group = group
        super().__init__(
            setup,
            model,
            phase,
            optimizer=self._remote,
            # The mean of all workers is the servers' to clip; a gradient that updates alone is its worker's.
            clip=_leave if setup.options["mode"] == "synchronous" else nn.utils.clip_grad_norm_,
        )

    def full_gradients(self) -> dict[str, Tensor]:
        """What the servers updated with; all ranks call it."""
        return self._placement.gather({}, self._group, _device_of(self.model))

    def payload_bytes(self) -> dict[str, int]:
        """What was sent and received in the last step."""
        return {"send": self._remote.traffic.sent_bytes + self._remote.traffic.received_bytes}


def _leave(weights: Iterable[nn.Parameter], largest_norm: float) -> None:
    """Clips nothing."""


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
