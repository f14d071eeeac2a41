"""Seconds of each of torch's attention kernels, forward and backward, and how far their outputs are apart.

Prints as JSON, by (b, h, s, e) and kernel; a kernel that refuses is there with its reason.
"""

from __future__ import annotations

import json
import warnings
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.gpu.scripts.device import device_of_words, times_s

KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
CALLS = 10


def main() -> None:
    arguments = device_of_words(("shapes", str, "8x32x2048x64,1x32x8192x128"))
    found: dict[str, dict[str, Any]] = {}
    for shape in arguments.shapes.split(","):
        sizes = [int(size) for size in shape.split("x")]
        torch.manual_seed(0)
        q, k, v = (
            torch.randn(sizes, device=arguments.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
        found[shape] = {name: _tried(arguments.device, backend, q, k, v) for name, backend in KERNELS.items()}
        outputs = {name: one.pop("output") for name, one in found[shape].items() if "output" in one}
        reference = outputs.get("flash")
        for name, output in outputs.items():
            if reference is not None:
                found[shape][name]["apart"] = float((output - reference).norm() / reference.norm())
    print(json.dumps({"kernels": found}))


def _tried(device: torch.device, backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
    def call() -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.backward(out.sum())
        return out

    try:
        with sdpa_kernel(backend):
            output = call().detach().float()
            return {"step_s": median(times_s(device, call, CALLS)), "output": output}
    except RuntimeError as error:
        return {"refused": str(error).splitlines()[0]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
