"""Probes `copies` and `matmul`: copies within memory and over the bus, and matrix products, on all ranks at once.

Ranks that share a memory or a bus share its bandwidth, so several ranks show what each of them gets.
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
"""The scalar that STREAM uses."""
SAMPLED = 4096
"""Elements that a check compares."""

Memory = Literal["host", "pinned", "device"]
COPIED: dict[CopyKind, tuple[Memory, Memory]] = {
    "memory_copy": ("device", "device"),  # Here the device is the CPU.
    "device_copy": ("device", "device"),
    "host_to_device": ("pinned", "device"),
    "device_to_host": ("device", "pinned"),
    "host_to_device_pageable": ("host", "device"),
}
"""Source and destination of a copy."""


def probe_copies(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Time each kind of copy that the device has, and record the median time of one copy.

    Raises:
        RuntimeError: a copy differs from its source, or the buffers do not fit into memory.
    """
    for kind in KINDS[setup.device]:
        record({"copy_s": _timed(setup, kind, stopwatch)}, kind=kind, size=str(size_bytes(setup)))


def is_copied(source: Tensor, target: Tensor) -> bool:
    """Whether a sample of elements, including the first and the last, is equal."""
    return torch.equal(_sampled(source), _sampled(target))


def is_triad(result: Tensor, b: Tensor, c: Tensor) -> bool:
    """Whether a sample of elements equals b + 3 c within two roundings of their type; b and c must not be negative."""
    expected = _sampled(b).double() + SCALAR * _sampled(c).double()
    error = (_sampled(result).double() - expected).abs()
    return bool((error <= 2 * torch.finfo(result.dtype).eps * expected).all())


def _timed(setup: ProbeSetup, kind: CopyKind, stopwatch: Stopwatch) -> Elapsed:
    """Return the median time of one copy; its buffers are freed when the function returns."""
    elements, dtype = size_bytes(setup) // ELEMENT_BYTES[setup.precision], DTYPES[setup.precision]
    generator = torch.Generator(setup.device).manual_seed(setup.seed)
    random = partial(torch.rand, elements, generator=generator, dtype=dtype, device=setup.device)
    # NaN touches every page: the first touch of a page is slow and not part of a copy.
    unwritten = partial(torch.full, (elements,), torch.nan, dtype=dtype, device=setup.device)
    copy: Callable[[], object]
    is_right: Callable[[], bool]
    if kind == "memory_triad":
        b, c, result = random(), random(), unwritten()
        copy, is_right = partial(torch.add, b, c, alpha=SCALAR, out=result), partial(is_triad, result, b, c)
    else:
        from_memory, to_memory = COPIED[kind]
        source, target = _moved(random(), from_memory), _moved(unwritten(), to_memory)
        copy, is_right = partial(target.copy_, source, non_blocking=True), partial(is_copied, source, target)
    elapsed = stopwatch.each(copy, warm_up=setup.warm_up, calls=setup.steps)
    if not is_right():
        raise RuntimeError(
            f"{kind} of {size_bytes(setup)} bytes is wrong: what was written differs from what was read;"
            " run it again, and have the node's memory examined if this happens again"
        )
    return elapsed


def _moved(buffer: Tensor, memory: Memory) -> Tensor:
    """Return the buffer, which is on the device, or its copy in the host's memory."""
    if memory == "device":
        return buffer
    return torch.empty_like(buffer, device="cpu", pin_memory=memory == "pinned").copy_(buffer)


def _sampled(buffer: Tensor) -> Tensor:
    """Return evenly spaced elements from the first to the last, in the host's memory."""
    last = len(buffer) - 1
    indices = torch.linspace(0, last, min(len(buffer), SAMPLED), dtype=torch.float64, device=buffer.device)
    return buffer[indices.round().long()].cpu()


# Probe `matmul`: times of square matrix products on each rank's device, all ranks at once.
#
# fp32 is computed without TF32, as in training. Elements are drawn from the normal distribution: zeros and other
# regular values draw less power, so a GPU keeps a higher clock than in training. Source: He 2024, Strangely, matrix
# multiplications on GPUs run faster when given "predictable" data.
# Dimensions: m, n, k as in an (m, k) times a (k, n) matrix; r, c sampled rows and columns.

WARM_UP_S = 2.0
"""Two polling intervals of the node's collectors, so that one poll reads clock and power on a warm device."""
WARMED_SIZE = 4096
"""Products from this size on fill a GPU, whose power limit sets the clock only after a while; a few calls end sooner.
"""
SAMPLED_ROWS = 8
SAMPLED_COLUMNS = 64


def probe_matmul(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Time products of matrices of each size, and record the median time of one product.

    Raises:
        RuntimeError: a product is wrong by more than rounding explains, or the matrices do not fit into memory.
    """
    for size in sizes(setup):
        record({"matmul_s": _product(setup, size, stopwatch)}, m=str(size), n=str(size), k=str(size))


def warm_up_s(device: Device, size: int) -> float:
    """Return how long products of a size run before they are measured."""
    return WARM_UP_S if device == "cuda" and size >= WARMED_SIZE else 0.0


def check_product(a_mk: Tensor, b_kn: Tensor, product_mn: Tensor) -> None:
    """Compare a sample of the product's elements with the same elements computed in fp64.

    The result is rounded once to its own type, and a sum of k products in fp32 drifts by the square root of k. The
    limit is four times both together, which TF32 exceeds by far in place of fp32.
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
    # One rounding errs by at most half of eps, hence the division by 2.
    limit = 4 * (torch.finfo(product_mn.dtype).eps + sqrt(k) * torch.finfo(torch.float32).eps) / 2
    if not error_ratio <= limit:
        raise RuntimeError(
            f"the product of {len(a_mk)} x {k} and {k} x {b_kn.shape[1]} in {product_mn.dtype} is wrong by"
            f" {error_ratio:.2g} of its norm, and rounding explains {limit:.2g};"
            " switch TF32 off if it is on, and if it is not, have the device examined"
        )


def _product(setup: ProbeSetup, size: int, stopwatch: Stopwatch) -> Elapsed:
    """Return the median time of one product; its matrices are freed when the function returns."""
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
    """Return this many evenly spaced indices, from the first to the last."""
    return torch.linspace(0, length - 1, min(length, count), dtype=torch.float64, device=device).round().long()
