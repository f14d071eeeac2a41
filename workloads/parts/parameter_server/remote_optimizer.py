"""A worker's optimizer, whose step happens on the servers: gradients go there, and new weights come back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from torch.optim import Optimizer

from workloads.laws.parameter_server import Traffic
from workloads.parts.parameter_server.connection import answer_of, bytes_of, name_of, to_host
from workloads.parts.parameter_server.inbox import acknowledge, push
from workloads.parts.parameter_server.placement import Placement


class RemoteOptimizer(Optimizer):
    """Pushes the gradients of its weights, and waits for the weights that the servers made of them; it has no state.

    In fp16 each worker has a scaler of its own. Gradients travel unscaled, so that the scales need not be equal.
    """

    _step_supports_amp_scaling = True
    """torch's word for an optimizer that steps whether or not a gradient is finite, and is told in `found_inf`: the
    servers wait for this worker's push either way."""

    found_inf: Tensor | None = None

    def __init__(self, model: nn.Module, placement: Placement, *, worker: int) -> None:
        super().__init__(model.parameters(), {})
        self.traffic = Traffic(sent_bytes=0, received_bytes=0)
        """Of the last step."""
        weights = list(model.parameters())
        self._weights_of = {
            server: [weights[index] for index in placement.held_by(server)] for server in set(placement.servers)
        }
        self._worker = worker

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all servers' weights.

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
