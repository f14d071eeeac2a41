"""The probe `copies`: times of copies within memory and over the bus, on all ranks at the same time.

Ranks that share a memory or a bus share its bandwidth, so that several show what is left for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import ELEMENT_BYTES
from workloads.cards.copies import KINDS, size_bytes
from workloads.laws.ceilings import CopyKind
from workloads.parts.dtypes import DTYPES
from workloads.probe import Elapsed, ProbeSetup, Record, Stopwatch

SCALAR = 3.0
"""STREAM's own."""
SAMPLED = 4096

Place = Literal["host", "pinned", "device"]
PLACES: dict[CopyKind, tuple[Place, Place]] = {
    "memory_copy": ("device", "device"),  # The CPU is the device.
    "device_copy": ("device", "device"),
    "host_to_device": ("pinned", "device"),
    "device_to_host": ("device", "pinned"),
    "host_to_device_pageable": ("host", "device"),
}
"""Where a copy comes from, and where it goes."""

Work = tuple[Callable[[], object], Callable[[], bool]]
"""What is timed, and whether it did what it should."""


def probe(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Copy by each kind that the device has, and record the median time of one copy.

    Raises:
        RuntimeError: a copy differs from what it was copied from, or the buffers do not fit into memory.
    """
    for kind in KINDS[setup.device]:
        record({"copy_s": _timed(setup, kind, stopwatch)}, kind=kind, size=str(size_bytes(setup)))


def is_copied(source: Tensor, target: Tensor) -> bool:
    """Whether some elements, the first and the last among them, are equal."""
    return torch.equal(_sampled(source), _sampled(target))


def is_triad(result: Tensor, b: Tensor, c: Tensor) -> bool:
    """Whether some elements are b + 3 c, of factors not below 0, within two roundings of their type."""
    expected = _sampled(b).double() + SCALAR * _sampled(c).double()
    error = (_sampled(result).double() - expected).abs()
    return bool((error <= 2 * torch.finfo(result.dtype).eps * expected).all())


def _timed(setup: ProbeSetup, kind: CopyKind, stopwatch: Stopwatch) -> Elapsed:
    """Median time of one copy; its buffers are given back with the function's end."""
    copy, is_right = _triad(setup) if kind == "memory_triad" else _copy(setup, kind)
    elapsed = stopwatch.each(copy, warm_up=setup.warm_up, calls=setup.steps)
    if not is_right():
        raise RuntimeError(
            f"{kind} of {size_bytes(setup)} bytes is wrong: what was written differs from what was read;"
            " run it again, and have the node's memory examined if it stays so"
        )
    return elapsed


def _copy(setup: ProbeSetup, kind: CopyKind) -> Work:
    come_from, go_to = PLACES[kind]
    source = _placed(_random(setup, torch.Generator(setup.device).manual_seed(setup.seed)), come_from)
    target = _placed(_unwritten(setup), go_to)
    return partial(target.copy_, source, non_blocking=True), partial(is_copied, source, target)


def _triad(setup: ProbeSetup) -> Work:
    generator = torch.Generator(setup.device).manual_seed(setup.seed)
    b, c = _random(setup, generator), _random(setup, generator)
    result = _unwritten(setup)
    return partial(torch.add, b, c, alpha=SCALAR, out=result), partial(is_triad, result, b, c)


def _random(setup: ProbeSetup, generator: torch.Generator) -> Tensor:
    return torch.rand(_elements(setup), generator=generator, dtype=DTYPES[setup.precision], device=setup.device)


def _unwritten(setup: ProbeSetup) -> Tensor:
    """No number anywhere, and no page untouched: the first touch of a page is slow, and no part of a copy."""
    return torch.full((_elements(setup),), torch.nan, dtype=DTYPES[setup.precision], device=setup.device)


def _elements(setup: ProbeSetup) -> int:
    return size_bytes(setup) // ELEMENT_BYTES[setup.precision]


def _placed(buffer: Tensor, place: Place) -> Tensor:
    """The buffer, which lies on the device, or its copy in the host's memory."""
    if place == "device":
        return buffer
    return torch.empty_like(buffer, device="cpu", pin_memory=place == "pinned").copy_(buffer)


def _sampled(buffer: Tensor) -> Tensor:
    """Elements from the first to the last, in the host's memory."""
    last = len(buffer) - 1
    indices = torch.linspace(0, last, min(len(buffer), SAMPLED), dtype=torch.float64, device=buffer.device)
    return buffer[indices.round().long()].cpu()
