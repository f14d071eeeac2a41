"""The model and precision of a training if the user chose none; they follow only from the device and a GPU's memory.

They are the same for every strategy and number of ranks, so that comparisons and scaling curves measure the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.machine.gpus import Gpu
from workloads.spec import Device, Precision

ON_CPU = "tiny"
"""A step of this model takes about a tenth of a second on one core."""
SMALL, LARGE = "125m", "1b"
SMALL_FROM_BYTES = 4 * 2**30
"""Memory of a GPU that trains SMALL, whose weights, gradients and moments alone take 2 GB."""
LARGE_FROM_BYTES = 24 * 2**30
"""Memory of a GPU that trains LARGE. With recomputed blocks `single` holds 24.0 GB of live tensors in a step of 8
sequences, to which CUDA adds about 1 GB; GPUs that are sold as 24 GB have slightly less than 24 GiB."""
FALLBACKS = ("balance=flops",)
"""LARGE has 22 layers, which 4 stages do not divide; stages of equal FLOPs need not have equal numbers of layers."""
DIVISIBLE_LAYERS = 24
"""Layers of LARGE if a strategy cannot divide 22 at all: several stages per rank are cut only between layers."""
GPU_PRECISION: Precision = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultModel:
    """What a training gets if the user chose nothing.

    options: of the strategy, as far as it accepts them. fallbacks: options without which it may refuse the shape.
    divisible_layers: replaces the shape's layers if the strategy accepts the shape with no option. because: the device
    or GPU that decided, in words.
    """

    shape_name: str
    precision: Precision
    options: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    divisible_layers: int | None = None
    because: str = ""

    @property
    def words(self) -> str:
        """The model as a line: "no --shape given: 1b with checkpoint=full in bf16, because GPU 0 has 80 GiB"."""
        options = f" with {', '.join(self.options)}" if self.options else ""
        return f"no --shape given: {self.shape_name}{options} in {self.precision}, {self.because}"


PROBE = DefaultModel(shape_name="", precision="fp32")
"""A probe has no model, and measures in fp32."""


def default_model(device: Device, gpus: Sequence[Gpu]) -> DefaultModel:
    """Return the default on this device; the GPU with the least memory decides, since each rank has its own GPU."""
    if device == "cpu":
        return DefaultModel(shape_name=ON_CPU, precision="fp32", because="on the CPU")
    known = [gpu for gpu in gpus if gpu.memory_bytes is not None]
    if not known or len(known) < len(gpus):
        because = "because the memory of the GPUs is not known"
        return DefaultModel(shape_name=SMALL, precision=GPU_PRECISION, because=because)
    least = min(known, key=lambda gpu: gpu.memory_bytes or 0)
    memory_bytes = least.memory_bytes or 0
    because = f"because GPU {least.index} has {memory_bytes / 2**30:.0f} GiB"
    if memory_bytes < LARGE_FROM_BYTES:
        shape_name = SMALL if memory_bytes >= SMALL_FROM_BYTES else ON_CPU
        return DefaultModel(shape_name=shape_name, precision=GPU_PRECISION, because=because)
    return DefaultModel(
        shape_name=LARGE,
        precision=GPU_PRECISION,
        options=("checkpoint=full",),
        fallbacks=FALLBACKS,
        divisible_layers=DIVISIBLE_LAYERS,
        because=because,
    )
