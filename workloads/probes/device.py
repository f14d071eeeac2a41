"""The probe `copies`: times of copies within memory and over the bus, on all ranks at the same time.

Ranks that share a memory or a bus share its bandwidth, so that several show what is left for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.core.mesh import DTYPES
from workloads.probes.cost_model import CopyKind
from workloads.probes.spec import KINDS, size_bytes, sizes
from workloads.protocols import Elapsed, ProbeSetup, Record, Stopwatch
from workloads.spec import ELEMENT_BYTES, Device

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


def probe_copies(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
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


# The probe `matmul`: times of square matrix products on each rank's device, all ranks at the same time.
#
# fp32 is computed without TF32, as in training. Elements are drawn from the normal distribution: zeros and other
# regular values draw less power, so that a GPU keeps a clock that it does not keep when it trains. Source: He 2024,
# Strangely, matrix multiplications on GPUs run faster when given "predictable" data. Dimensions: m, n, k as in an m
# by k times a k by n matrix; r, c sampled rows and columns.

WARM_UP_S = 2.0
"""Two beats of the node's collectors, so that one reads the clock and the power while the device is warm."""
WARMED_SIZE = 4096
"""Products from here on fill a GPU, whose power limit sets the clock after a while; a few calls are over before."""
SAMPLED_ROWS = 8
SAMPLED_COLUMNS = 64


def probe_matmul(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Multiply matrices of each size, and record the median time of one product.

    Raises:
        RuntimeError: a product is wrong by more than rounding explains, or the matrices do not fit into memory.
    """
    for size in sizes(setup):
        record({"matmul_s": _product(setup, size, stopwatch)}, m=str(size), n=str(size), k=str(size))


def warm_up_s(device: Device, size: int) -> float:
    """How long products of a size are computed before they are measured."""
    return WARM_UP_S if device == "cuda" and size >= WARMED_SIZE else 0.0


def check_product(a_mk: Tensor, b_kn: Tensor, product_mn: Tensor) -> None:
    """Compare some elements of the product with those computed in fp64.

    The result is rounded once to its own type, and a sum of k products in fp32 drifts by the square root of k; four
    times both is allowed, which TF32 exceeds by far where fp32 is meant.
    Source: Higham and Mary 2019, A new approach to probabilistic rounding error analysis.

    Raises:
        RuntimeError: the product is wrong.
    """
    rows = _spread(product_mn.shape[0], SAMPLED_ROWS, product_mn.device)
    columns = _spread(product_mn.shape[1], SAMPLED_COLUMNS, product_mn.device)
    expected_rc = a_mk[rows].double() @ b_kn[:, columns].double()
    error_rc = product_mn[rows][:, columns].double() - expected_rc
    error_ratio = float(error_rc.norm() / expected_rc.norm())
    k = a_mk.shape[1]
    # Rounding is by half of eps at most.
    limit = 4 * (torch.finfo(product_mn.dtype).eps + sqrt(k) * torch.finfo(torch.float32).eps) / 2
    if not error_ratio <= limit:
        raise RuntimeError(
            f"the product of {len(a_mk)} x {k} and {k} x {b_kn.shape[1]} in {product_mn.dtype} is wrong by"
            f" {error_ratio:.2g} of its norm, and rounding explains {limit:.2g};"
            " switch TF32 off if it is on, and if it is not, have the device examined"
        )


def _product(setup: ProbeSetup, size: int, stopwatch: Stopwatch) -> Elapsed:
    """Median time of one product; its matrices are given back with the function's end."""
    generator = torch.Generator(setup.device).manual_seed(setup.seed)
    draw = partial(torch.randn, size, size, generator=generator, dtype=DTYPES[setup.precision], device=setup.device)
    a_mk, b_kn = draw(), draw()
    product_mn = torch.full_like(a_mk, torch.nan)
    multiply = partial(torch.mm, a_mk, b_kn, out=product_mn)
    elapsed = stopwatch.each(
        multiply, warm_up=setup.warm_up, calls=setup.steps, warm_up_s=warm_up_s(setup.device, size)
    )
    check_product(a_mk, b_kn, product_mn)
    return elapsed


def _spread(length: int, count: int, device: torch.device) -> Tensor:
    """Indices of so many elements, from the first to the last."""
    return torch.linspace(0, length - 1, min(length, count), dtype=torch.float64, device=device).round().long()
