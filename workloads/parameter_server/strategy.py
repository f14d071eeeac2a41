"""Strategy `parameter_server`: servers hold the weights; workers push gradients to them and pull weights, over gloo.

The first ranks are the servers, the others the workers. On a GPU tensors travel through the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from workloads.core.mesh import timeout_of
from workloads.core.trainer import Trainer, materialise, outline_model
from workloads.parameter_server.cost_model import StepTraffic
from workloads.parameter_server.messages import Inbox, ServerLink, connect, serve_worker, timeout_s
from workloads.parameter_server.server import (
    AsynchronousServer,
    ServerWeights,
    SynchronousServer,
    WeightPlacement,
    place,
    whole_norm,
)
from workloads.protocols import Phase, Workload
from workloads.spec import Setup


class RemoteOptimizer(Optimizer):
    """A worker's optimizer: it pushes gradients to the servers and waits for their new weights; it has no state.

    In fp16 each worker has its own scaler. Gradients travel unscaled, so the scales need not be equal.
    """

    _step_supports_amp_scaling = True
    """Makes torch's scaler call `step` even when a gradient is not finite, with `found_inf` set: the servers wait for
    this worker's push in any case."""

    found_inf: Tensor | None = None

    def __init__(self, model: nn.Module, placement: WeightPlacement, group: dist.ProcessGroup) -> None:
        """Make the optimizer. group: for messages."""
        super().__init__(model.parameters(), {})
        weights = list(model.parameters())
        self._links = [
            ServerLink(group, server, [weights[index] for index in placement.held_by(server)])
            for server in sorted(set(placement.servers))
        ]
        size_bytes = sum(weight.nbytes for weight in weights)
        self.traffic = StepTraffic(sent_bytes=size_bytes, received_bytes=size_bytes)
        """Traffic of a step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all servers' weights once, and fetch them.

        Raises:
            PeerLost: a server is gone, or did not answer in time.
        """
        is_finite = self.found_inf is None or not self.found_inf.item()
        for link in self._links:
            link.push(is_finite=is_finite)
        for link in self._links:
            link.pull()


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build a server or a worker, depending on the rank, connected to all others."""
    model, group = outline_model(setup), mesh.get_group("server")
    device, servers = torch.device(setup.device), int(setup.options["servers"])
    placement = place(model, servers)
    messages = connect(group, device)
    among_servers = dist.new_group(range(servers), backend="gloo", timeout=timeout_of(group, device))
    if group.rank() >= servers:
        materialise(setup, model)
        return Worker(setup, model, phase, placement, group, messages)

    share, workers, inbox = (
        ServerWeights(setup, placement, group),
        range(servers, setup.ranks),
        Inbox(timeout_s(messages)),
    )
    for worker in workers:
        serve_worker(messages, worker, share.size, inbox)
    if setup.options["mode"] == "asynchronous":
        return AsynchronousServer(setup, share, phase, inbox=inbox, workers=workers)
    return SynchronousServer(
        setup, share, phase, inbox=inbox, workers=workers, whole_norm=partial(whole_norm, among_servers)
    )


class Worker(Trainer):
    """Trains on its share of the batch with the servers' weights."""

    def __init__(
        self,
        setup: Setup,
        model: nn.Module,
        phase: Phase,
        placement: WeightPlacement,
        group: dist.ProcessGroup,
        messages: dist.ProcessGroup,
    ) -> None:
        """Make the worker. messages: a group that `connect` made."""
        self._remote = RemoteOptimizer(model, placement, messages)
        self._placement = placement
        self._group = group
        self._is_synchronous = setup.options["mode"] == "synchronous"
        super().__init__(
            setup,
            model,
            phase,
            optimizer=self._remote,
            # Servers clip the mean of all workers; a gradient that updates alone is clipped by its worker.
            clip=_leave if self._is_synchronous else nn.utils.clip_grad_norm_,
        )

    def full_gradients(self) -> dict[str, Tensor]:
        """Return the gradients that the servers updated with; all ranks must call it."""
        return self._placement.gather({}, self._group, next(self.model.parameters()).device)

    def own_states(self) -> dict[str, Tensor]:
        """See `KeepsOwnStates`: the weights, under the servers' names if all are equal between steps."""
        own = "" if self._is_synchronous else f"rank{self._group.rank()}."
        return {f"{own}weights.{name}": weight for name, weight in self.model.named_parameters()}

    def payload_bytes(self) -> dict[str, int]:
        """Return the bytes that were sent and received in the last step."""
        return {"send": self._remote.traffic.sent_bytes + self._remote.traffic.received_bytes}


def _leave(weights: Iterable[nn.Parameter], largest_norm: float) -> None:
    """Do not clip."""
