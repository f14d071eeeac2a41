"""Servers of a parameter server: they take the workers' gradients, update their own weights, and answer with these.

Both kinds, `SynchronousServer` and `AsynchronousServer`, are a `Workload` without batches. They count steps with the
workers: a step ends when every worker has pushed its gradients of that step, so that all ranks end with the same number
of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer

from workloads.core.trainer import LearningRate, adamw_settings
from workloads.core.weights import fill_weights
from workloads.cost_models.terms import divide
from workloads.parameter_server.messages import Inbox, PeerLost, Push, flatten, split
from workloads.protocols import Phase
from workloads.spec import Setup

# Placement: which server holds which weight of the model.


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlacement:
    """The weights of the model in their order, and the server of each. Servers are the group's first ranks."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    servers: tuple[int, ...]

    def held_by(self, server: int) -> list[int]:
        """Return the indices of a server's weights, in the model's order."""
        return [index for index, holder in enumerate(self.servers) if holder == server]

    def gather(self, gradients: dict[str, Tensor], group: dist.ProcessGroup, device: torch.device) -> dict[str, Tensor]:
        """Return all gradients by the weights' names, on each rank; all ranks must call it.

        gradients: the gradients that this rank updated with as a server; empty on a worker.
        """
        full = {}
        for name, shape, server in zip(self.names, self.shapes, self.servers, strict=True):
            gradient = gradients[name] if name in gradients else torch.empty(shape, device=device)
            dist.broadcast(gradient, group=group, group_src=server)
            full[name] = gradient
        return full


def place(model: nn.Module, servers: int) -> WeightPlacement:
    """Divide the weights among servers by their bytes; see `workloads.cost_models.terms.divide`."""
    names, weights = zip(*model.named_parameters(), strict=True)
    return WeightPlacement(
        names=names,
        shapes=tuple(weight.shape for weight in weights),
        servers=divide([weight.nbytes for weight in weights], servers),
    )


class ServerWeights:
    """The weights that one server holds, with their gradients and AdamW states."""

    def __init__(self, setup: Setup, placement: WeightPlacement, group: dist.ProcessGroup) -> None:
        """Make this rank's weights of the model."""
        indices = placement.held_by(group.rank())
        self._names = [placement.names[index] for index in indices]
        self._device = torch.device(setup.device)
        self.model = nn.ParameterList(torch.empty(placement.shapes[index], device=self._device) for index in indices)
        named = zip(self._names, self.model, strict=True)
        fill_weights(named, seed=setup.seed, layers=setup.shape.layers)
        self.optimizer: Optimizer = AdamW(self.model.parameters(), **adamw_settings(setup))
        self._learning_rate = LearningRate(setup)
        self.received_bytes = 0
        """Bytes received in the last step, as `sent_bytes` counts those sent."""
        self.sent_bytes = 0
        self.size = sum(weight.numel() for weight in self.model)
        """Elements of all weights together."""
        self._placement = placement
        self._group = group

    def begin_step(self) -> None:
        """Reset the byte counts, and set the learning rate for all updates of this step."""
        self.received_bytes = self.sent_bytes = 0
        self._learning_rate.begin_step(self.optimizer)

    def take_in(self, push: Push) -> list[Tensor]:
        """Return the push's gradients on the device of the weights; the caller may overwrite them."""
        self.received_bytes += push.gradients.nbytes
        return split(push.gradients.to(self._device), self.model)

    def set_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Set the gradients of the next update, which stay readable after it."""
        for weight, gradient in zip(self.model, gradients, strict=True):
            weight.grad = gradient

    def weights(self, copies: int) -> Tensor:
        """Return a copy of the current weights, flat and on the host, to be sent `copies` times."""
        weights = flatten(self.model, torch.empty(self.size))
        self.sent_bytes += copies * weights.nbytes
        return weights

    def progress(self) -> dict[str, float]:
        """See `KeepsProgress`."""
        return self._learning_rate.progress()

    def resume(self, progress: Mapping[str, float]) -> None:
        """See `KeepsProgress`."""
        self._learning_rate.resume(progress)

    def own_states(self) -> dict[str, Tensor]:
        """See `KeepsOwnStates`: the weights that this server holds, and AdamW's states for them."""
        states: dict[str, Tensor] = {}
        for name, weight in zip(self._names, self.model, strict=True):
            states[f"weights.{name}"] = weight
            states |= {f"optimizer.{name}.{key}": state for key, state in self.optimizer.state[weight].items()}
        return states

    def full_gradients(self) -> dict[str, Tensor]:
        """See `Workload.full_gradients`; all ranks must call it."""
        gradients = {}
        for name, weight in zip(self._names, self.model, strict=True):
            if weight.grad is None:
                raise RuntimeError(f"weight {name} has no gradient; no worker has pushed one")
            gradients[name] = weight.grad
        return self._placement.gather(gradients, self._group, self._device)


class SynchronousServer:
    """Updates once a step, with the mean of all workers' gradients."""

    def __init__(
        self,
        setup: Setup,
        share: ServerWeights,
        phase: Phase,
        *,
        inbox: Inbox,
        workers: Sequence[int],
        whole_norm: Callable[[float], float],
    ) -> None:
        """whole_norm: returns the norm of the whole gradient from that of this server's part."""
        self.model: nn.Module = share.model
        self.optimizer = share.optimizer
        self.full_gradients = share.full_gradients
        self.progress, self.resume, self.own_states = share.progress, share.resume, share.own_states
        self._share = share
        self._phase = phase
        self._inbox = inbox
        self._workers = workers
        self._whole_norm = whole_norm
        self._gradient_norm: Tensor | None = None
        self._largest_norm = float(setup.options["clip"])

    def step(self, tokens_bs: Tensor) -> None:
        """Make one update. The batch is empty."""
        self._share.begin_step()
        with self._phase("wait"):
            arrived: dict[int, Push] = {}
            while missing := set(self._workers) - set(arrived):
                push = self._inbox.take(missing)
                arrived[push.worker] = push
            # In the order of the workers, so that sums do not depend on the order of arrival.
            pushes = [arrived[worker] for worker in self._workers]
        with self._phase("optimizer"), torch.no_grad():
            self._update(pushes)
            weights = self._share.weights(len(pushes))
            for push in pushes:
                self._inbox.answer(push, weights)
        with self._phase("wait"):
            self._inbox.settle()

    def payload_bytes(self) -> dict[str, int]:
        """Return the bytes that were sent and received in the last step."""
        return {"send": self._share.sent_bytes + self._share.received_bytes}

    def gradient_norm(self) -> Tensor | None:
        return self._gradient_norm

    def _update(self, pushes: Sequence[Push]) -> None:
        means, *others = [self._share.take_in(push) for push in pushes]
        for gradients in others:
            torch._foreach_add_(means, gradients)
        torch._foreach_div_(means, len(pushes))
        self._share.set_gradients(means)
        # Skip the update as a scaler would. The workers tell all servers the same, so all skip it.
        if not all(push.is_finite for push in pushes):
            return
        if self._largest_norm:
            self._gradient_norm = torch.tensor(self._whole_norm(get_total_norm(means).item()))
            clip_grads_with_norm_(self.model.parameters(), self._largest_norm, self._gradient_norm)
        self.optimizer.step()


def whole_norm(group: dist.ProcessGroup, norm: float) -> float:
    """Return the norm of the whole gradient from that of this server's part; all servers (the group) call it.

    Raises:
        PeerLost: a server is gone, or did not answer in time.
    """
    if group.size() == 1:
        return norm
    parts = [torch.empty((), dtype=torch.float64) for _ in range(group.size())]
    try:
        dist.all_gather(parts, torch.tensor(norm, dtype=torch.float64), group=group)
    except RuntimeError as error:
        raise PeerLost(f"another server timed out or is gone, so its norm is missing: {error}") from error
    return math.hypot(*(part.item() for part in parts))


class AsynchronousServer:
    """Updates with each gradient as it arrives, and holds back the workers that are too far ahead.

    A worker's lead is the number of steps that it has pushed and the slowest worker has not. While its lead is above
    `staleness`, it gets no weights. With 0, all workers begin each step together.
    Source: Ho et al. 2013, More effective distributed ML via a stale synchronous parallel parameter server.
    """

    def __init__(
        self, setup: Setup, share: ServerWeights, phase: Phase, *, inbox: Inbox, workers: Sequence[int]
    ) -> None:
        self.model: nn.Module = share.model
        self.optimizer = share.optimizer
        self.full_gradients = share.full_gradients
        self.progress, self.resume, self.own_states = share.progress, share.resume, share.own_states
        self.largest_lead = 0
        """The most steps that a worker was ahead of the slowest when it pushed."""
        self._share = share
        self._phase = phase
        self._inbox = inbox
        self._staleness = int(setup.options["staleness"])
        self._pushed = dict.fromkeys(workers, 0)
        self._held_back: list[Push] = []
        self._steps = 0

    def step(self, tokens_bs: Tensor) -> None:
        """Update with every push until each worker has pushed this step. The batch is empty."""
        self._share.begin_step()
        self._steps += 1
        while behind := {worker for worker, pushed in self._pushed.items() if pushed < self._steps}:
            with self._phase("wait"):
                push = self._inbox.take(behind)
            with self._phase("optimizer"), torch.no_grad():
                self._update(push)
        with self._phase("wait"):
            self._inbox.settle()

    def payload_bytes(self) -> dict[str, int]:
        """Return the bytes that were sent and received in the last step."""
        return {"send": self._share.sent_bytes + self._share.received_bytes}

    def _update(self, push: Push) -> None:
        gradients = self._share.take_in(push)
        if push.is_finite:  # Otherwise skip the update, as a scaler would.
            self._share.set_gradients(gradients)
            self.optimizer.step()
        self.largest_lead = max(self.largest_lead, self._lead(push))
        self._pushed[push.worker] += 1
        self._held_back.append(push)
        free = [push for push in self._held_back if self._lead(push) <= self._staleness]
        self._held_back = [push for push in self._held_back if push not in free]
        for push in free:
            self._inbox.answer(push, self._share.weights(1))

    def _lead(self, push: Push) -> int:
        """Return how many steps the push's worker is ahead of the slowest."""
        return self._pushed[push.worker] - min(self._pushed.values())
