"""Training of bf16 weights with an fp32 master: the trainer of `single`, `ddp` and `zero1`, and fp32 gradient buckets.

Weights are 2 bytes on each rank, gradients 4 (or 2), master and moments 12, which zero1 divides among the ranks as
Megatron's distributed optimizer does; but zero1 divides by whole weights, and Megatron by equal parts of its buckets,
which it reduces only to their owners.
Source: Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py and distrib_optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from workloads.core.precision import MasterAdamW, clip_in_fp32
from workloads.core.trainer import Trainer, adamw_settings
from workloads.protocols import Phase
from workloads.spec import Setup

DivideUpdates = Callable[[Iterable[nn.Parameter], Callable[..., MasterAdamW]], Optimizer]
"""Makes an optimizer that updates some of the weights by an inner optimizer of these, and receives the others."""


class MasterTrainer(Trainer):
    """A `Workload` whose optimizer holds the masters that the model's weights are rounded from."""

    def __init__(
        self,
        setup: Setup,
        model: nn.Module,
        replica: nn.Module,
        phase: Phase,
        *,
        masters: Mapping[nn.Parameter, Tensor],
        divide: DivideUpdates | None = None,
        no_sync: Callable[[], AbstractContextManager[None]] = nullcontext,
        after_backward: Callable[[], None] = lambda: None,
    ) -> None:
        """Make the trainer. model: with its weights rounded. replica: the module to call. masters: see `round_weights`.

        divide: divides updates among ranks; None: this rank updates all weights.
        """
        weights = list(model.parameters())
        made: list[MasterAdamW] = []

        def make(groups: Iterable[Any], **settings: Any) -> MasterAdamW:
            # ZeroRedundancyOptimizer passes a group of its rank's weights, which may be empty.
            own = [weight for group in groups for weight in (group["params"] if isinstance(group, dict) else [group])]
            made.append(MasterAdamW(own, masters=masters, **settings))
            return made[-1]

        optimizer = make(weights, **adamw_settings(setup)) if divide is None else divide(weights, make)
        super().__init__(
            setup,
            replica,
            phase,
            no_sync=no_sync,
            after_backward=after_backward,
            optimizer=optimizer,
            clip=clip_in_fp32,
        )
        self._own_optimizer = made[-1]

    def own_masters(self) -> dict[nn.Parameter, Tensor]:
        """See `KeepsMaster`."""
        return dict(zip(self._own_optimizer.weights, self._own_optimizer.masters, strict=True))

    def held_tensors(self) -> dict[str, Sequence[Tensor]]:
        """See `HoldsTensors`: the masters are not in the optimizer's state."""
        weights, own = list(self.model.parameters()), self._own_optimizer
        states = [value for state in own.state.values() for value in state.values() if isinstance(value, Tensor)]
        return {
            "parameters": weights,
            "gradients": [weight.grad for weight in weights if weight.grad is not None],
            "optimizer": [*own.masters, *states],
        }


class GradientBuckets:
    """Averages gradients over a group in their own precision, bucket by bucket while backward continues.

    Buckets are filled in the reverse order of the weights, in which backward makes their gradients. Each is sent when
    its gradients exist and all buckets before it are sent, so that all ranks send in the same order.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], group: dist.ProcessGroup, *, bucket_bytes: int, element_bytes: int
    ) -> None:
        """Make the buckets. bucket_bytes: gradients that fill a bucket. element_bytes: of an element of a gradient."""
        self._group, self._is_sending = group, True
        self._buckets: list[list[nn.Parameter]] = [[]]
        filled_bytes = 0
        for weight in reversed(weights):
            if filled_bytes >= bucket_bytes:
                self._buckets.append([])
                filled_bytes = 0
            self._buckets[-1].append(weight)
            filled_bytes += weight.numel() * element_bytes
        self._bucket_of = {weight: place for place, bucket in enumerate(self._buckets) for weight in bucket}
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent: list[tuple[Tensor, dist.Work]] = []
        for weight in weights:
            weight.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]  # By torch.

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate on this rank."""
        self._is_sending = False
        try:
            yield
        finally:
            self._is_sending = True

    def finish(self) -> None:
        """Wait for all buckets, and replace the gradients by the means.

        Raises:
            RuntimeError: a weight has no gradient.
        """
        if len(self._sent) < len(self._buckets):
            raise RuntimeError("a weight has no gradient; the last backward did not reach it")
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            work.wait()
            flat /= self._group.size()
            means = torch.split(flat, [weight.numel() for weight in bucket])
            for weight, mean in zip(bucket, means, strict=True):
                weight.grad = mean.view_as(weight)
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent.clear()

    def _note(self, weight: Tensor) -> None:
        """Count a gradient that is ready, and send the buckets that are full."""
        if not self._is_sending:
            return
        self._missing[self._bucket_of[weight]] -= 1  # type: ignore[index]  # Hooks get the parameter itself.
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            bucket = self._buckets[len(self._sent)]
            gradients = [weight.grad.flatten() for weight in bucket if weight.grad is not None]
            flat = torch.cat(gradients)
            for weight_of_bucket in bucket:
                weight_of_bucket.grad = None  # The bucket has its elements; two copies would take too much memory.
            work = dist.all_reduce(flat, group=self._group, async_op=True)
            assert work is not None, "this rank belongs to the group"
            self._sent.append((flat, work))
