"""Strategy `parameter_server`: servers hold the weights; workers push gradients to them and pull weights, by RPC.

The first ranks are the servers, the others the workers. On a GPU tensors travel through the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from workloads.core.trainer import Trainer, make_model
from workloads.parameter_server.cost_model import Traffic
from workloads.parameter_server.rpc import (
    Inbox,
    acknowledge,
    answer_of,
    bytes_of,
    connect,
    name_of,
    open_inbox,
    push,
    timeout_s,
    to_host,
    watch,
)
from workloads.parameter_server.server import (
    AsynchronousServer,
    Norms,
    Placement,
    Share,
    SynchronousServer,
    open_norms,
    place,
)
from workloads.protocols import Phase, Workload
from workloads.spec import Setup


class RemoteOptimizer(Optimizer):
    """A worker's optimizer: it pushes gradients to the servers and waits for their new weights; it has no state.

    In fp16 each worker has a scaler of its own. Gradients travel unscaled, so that the scales need not be equal.
    """

    _step_supports_amp_scaling = True
    """Makes torch's scaler call `step` even when a gradient is not finite, which `found_inf` then says: the servers
    wait for this worker's push either way."""

    found_inf: Tensor | None = None

    def __init__(self, model: nn.Module, placement: Placement, *, worker: int) -> None:
        super().__init__(model.parameters(), {})
        self.traffic = Traffic(sent_bytes=0, received_bytes=0)
        """Traffic of the last step."""
        weights = list(model.parameters())
        self._weights_of = {
            server: [weights[index] for index in placement.held_by(server)] for server in set(placement.servers)
        }
        self._worker = worker

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all servers' weights once, and fetch them.

        Raises:
            PeerLost: a server is gone, or did not answer in time.
        """
        is_finite = self.found_inf is None or not self.found_inf.item()
        gradients_for = {
            server: to_host([weight.grad for weight in weights]) for server, weights in self._weights_of.items()
        }
        calls = {
            server: rpc.rpc_async(name_of(server), push, args=(self._worker, gradients, is_finite))
            for server, gradients in gradients_for.items()
        }
        received_bytes = 0
        for server, call in calls.items():
            new = answer_of(call, server)
            received_bytes += bytes_of(new)
            for weight, value in zip(self._weights_of[server], new, strict=True):
                weight.copy_(value)
        for server in calls:
            rpc.rpc_async(name_of(server), acknowledge, args=(self._worker,))
        sent_bytes = sum(bytes_of(gradients) for gradients in gradients_for.values())
        self.traffic = Traffic(sent_bytes=sent_bytes, received_bytes=received_bytes)


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build a server or a worker, by the rank, connected with all others."""
    model, group = make_model(setup), mesh.get_group("rpc")
    placement = place(model, int(setup.options["servers"]))
    if group.rank() < int(setup.options["servers"]):
        return _serve(setup, Share(setup, model, placement, group), phase, group)
    connect(group, _device_of(model))
    return Worker(setup, model, phase, placement, group)


def _serve(setup: Setup, share: Share, phase: Phase, group: dist.ProcessGroup) -> Workload:
    """Build a server; its inbox and norms are opened before the ranks connect and can call."""
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
            # Servers clip the mean of all workers; a gradient that updates alone is clipped by its worker.
            clip=_leave if setup.options["mode"] == "synchronous" else nn.utils.clip_grad_norm_,
        )

    def full_gradients(self) -> dict[str, Tensor]:
        """Return the gradients that the servers updated with; all ranks must call it."""
        return self._placement.gather({}, self._group, _device_of(self.model))

    def payload_bytes(self) -> dict[str, int]:
        """Return the bytes that were sent and received in the last step."""
        return {"send": self._remote.traffic.sent_bytes + self._remote.traffic.received_bytes}


def _leave(weights: Iterable[nn.Parameter], largest_norm: float) -> None:
    """Do not clip."""


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
