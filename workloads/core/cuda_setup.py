"""Translates a setup for the cost model of memory on CUDA, and says which setups that model does not cover.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from workloads.core.precision_options import gradient_bytes, is_fp8, stream_bytes, weights_of
from workloads.cost_models.absent import Absent
from workloads.cost_models.cuda.model import CudaModel
from workloads.cost_models.cuda.sizes import Copies
from workloads.cost_models.memory import FULL_BYTES, Weights
from workloads.options import loss_chunks, microbatch, pinned_kernel
from workloads.spec import ELEMENT_BYTES, Setup

_COPIES: Mapping[Weights, Copies] = {"autocast": "cached", "bf16_compute": "each", "bf16": "none", "fp8": "each"}


def cuda_peak_not_covered(setup: Setup) -> Absent | None:
    """Return why the cost model cannot predict this setup's peak on CUDA under any strategy; None if it may."""
    if setup.options["compile"] != "none":
        return Absent(reason="which activations a compiled block keeps is the compiler's choice")
    if is_fp8(setup):
        return Absent(reason="the cost model of memory does not cover what products in fp8 scale and round")
    if pinned_kernel(setup) == "math" and setup.options["checkpoint"] == "selective":
        return Absent(
            reason="which products of attention=math are stored by checkpoint=selective is not covered by the cost"
            " model of memory"
        )
    if setup.shape.head_width % 8:
        return Absent(
            reason=f"torch pads heads of {setup.shape.head_width} elements for its kernels of attention on CUDA, which"
            " the cost model of memory does not cover"
        )
    return None


def cuda_model(setup: Setup, data_ranks: int, *, is_gathered: bool = False) -> CudaModel:
    """Describe one of a rank's microbatches to the cost model of memory on CUDA.

    is_gathered: FSDP2 gathers weights in the precision of the products, so that no product makes its own copy.
    """
    size, weights = microbatch(setup, data_ranks), weights_of(setup)
    copies = "none" if setup.precision == "fp32" else _COPIES[weights]
    is_math = pinned_kernel(setup) == "math"
    # As backward leaves a weight's gradient.
    gradient = stream_bytes(setup) if is_gathered else FULL_BYTES
    if weights == "bf16":
        gradient = gradient_bytes(setup)
    return CudaModel(
        shape=setup.shape,
        sequences=size.sequences,
        positions=setup.shape.sequence,
        stream_bytes=stream_bytes(setup),
        product_bytes=ELEMENT_BYTES[setup.precision],
        gradient_bytes=gradient,
        copies="none" if is_gathered and copies == "each" else copies,
        is_efficient=pinned_kernel(setup) == "efficient" or (setup.precision == "fp32" and not is_math),
        is_math=is_math,
        checkpoint=size.checkpoint,
        checkpoint_every=size.checkpoint_every,
        loss_chunks=loss_chunks(setup),
    )
