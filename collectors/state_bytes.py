"""The training state that a rank holds: bytes behind parameters, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from collectors.catalogue.memory import STATE_BYTES
from collectors.metric import Sample


def state_bytes(
    model: nn.Module, optimizer: Optimizer, held: Mapping[str, Iterable[Tensor]] | None = None
) -> list[Sample]:
    """What this rank holds now, on whatever device; to be called after a step, while its gradients are there.

    A storage counts once and whole, in the first part that it belongs to: tensors may share it, or leave some of it
    unused. Of a DTensor the local tensor counts. A part of which the rank holds no byte is left out.
    held: the tensors of each part, where model and optimizer do not lead to them.
    """
    weights = list(model.parameters())
    found: Mapping[str, Iterable[Tensor]] = {
        "parameters": weights,
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimizer": _tensors(optimizer),
    }
    counted: set[tuple[str, int]] = set()
    samples = []
    for part, tensors in (found if held is None else held).items():
        held_bytes = sum(_uncounted_bytes(tensor, counted) for tensor in tensors)
        if held_bytes:
            samples.append(STATE_BYTES.at(held_bytes, part=part))
    return samples


def _tensors(optimizer: Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def _uncounted_bytes(tensor: Tensor, counted: set[tuple[str, int]]) -> int:
    """The bytes of the tensor's storage, 0 if it is among those counted; adds it to them."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    storage = local.untyped_storage()
    key = str(storage.device), storage.data_ptr()
    if key in counted:
        return 0
    counted.add(key)
    return storage.nbytes()
