"""The probe `matmul`: times of square matrix products on each rank's device, all ranks at the same time.

fp32 is computed without TF32, as in training. Elements are drawn from the normal distribution: zeros and other regular
values draw less power, so that a GPU keeps a clock that it does not keep when it trains.
Source: He 2024, Strangely, matrix multiplications on GPUs run faster when given "predictable" data.
Dimensions: m, n, k as in an m by k times a k by n matrix; r, c sampled rows and columns.
"""

from __future__ import annotations

from functools import partial
from math import sqrt

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Device
from workloads.cards.matmul import sizes
from workloads.parts.dtypes import DTYPES
from workloads.probe import Elapsed, ProbeSetup, Record, Stopwatch

WARM_UP_S = 2.0
"""Two beats of the node's collectors, so that one reads the clock and the power while the device is warm."""
WARMED_SIZE = 4096
"""Products from here on fill a GPU, whose power limit sets the clock after a while; a few calls are over before."""
SAMPLED_ROWS = 8
SAMPLED_COLUMNS = 64


def probe(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
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
