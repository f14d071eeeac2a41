"""Gathering named tensors that other ranks have, without a Python object on the wire: a pickle runs code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor


class _Heading(msgspec.Struct, frozen=True, array_like=True):
    """What a rank must know about a tensor to receive it."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["float64", "float32", "bfloat16", "float16"]


def gather_named(own: Mapping[str, Tensor], group: dist.ProcessGroup, device: torch.device) -> dict[str, Tensor]:
    """Return the named tensors of all ranks of the group, on `device`; all of them call it.

    own: this rank's, of floating point, on `device`. Where ranks share a name, the last one's is returned.
    """
    headings = _gather_headings(
        [_Heading(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in own.items()],  # type: ignore[arg-type]
        group,
        device,
    )
    gathered: dict[str, Tensor] = {}
    for rank, of_rank in enumerate(headings):
        for heading in of_rank:
            if rank == group.rank():
                tensor = own[heading.name].detach().contiguous()
            else:
                tensor = torch.empty(heading.shape, dtype=getattr(torch, heading.dtype), device=device)
            dist.broadcast(tensor, group=group, group_src=rank)
            gathered[heading.name] = tensor
    return gathered


def _gather_headings(own: list[_Heading], group: dist.ProcessGroup, device: torch.device) -> list[list[_Heading]]:
    """Return each rank's headings: their lengths are gathered first, then the texts, padded to the longest."""
    text = torch.frombuffer(bytearray(msgspec.json.encode(own)), dtype=torch.uint8).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(group.size())]
    dist.all_gather(lengths, torch.tensor([text.numel()], device=device), group=group)
    longest = max(int(length) for length in lengths)
    texts = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(group.size())]
    dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - text.numel())), group=group)
    return [
        msgspec.json.decode(padded[: int(length)].cpu().numpy().tobytes(), type=list[_Heading])
        for padded, length in zip(texts, lengths, strict=True)
    ]
