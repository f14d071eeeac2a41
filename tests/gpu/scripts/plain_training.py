"""The plainest training of the reference model on one device: what `single` is measured against.

Prints the step by the device's clock, the allocator's peak, and the kernels' time in a window of plain torch.profiler.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from tests.gpu.scripts.device import device_of_words, times_s, wait
from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import PRESETS

WARM_UP = 5
TRACED = 3


def main() -> None:
    arguments = device_of_words(
        ("shape", str, "tiny"), ("batch", int, 8), ("steps", int, 20), ("precision", str, "bf16")
    )
    device: torch.device = arguments.device
    shape = replace(PRESETS[arguments.shape], batch=arguments.batch)
    torch.manual_seed(0)
    with device:
        model = Transformer(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batches = _batches(WARM_UP + arguments.steps + TRACED, shape.batch, device, arguments.shape)
    autocast = torch.autocast(device.type, torch.bfloat16) if arguments.precision == "bf16" else nullcontext()

    def step() -> None:
        tokens_bs: Tensor = next(batches).to(device, non_blocking=True)
        optimizer.zero_grad()
        with autocast:
            logits = model(tokens_bs[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens_bs[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    elapsed_s = times_s(device, step, arguments.steps)
    peak_bytes = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiled:
        for _ in range(TRACED):
            step()
        wait(device)
    # Operators bear the time of the kernels that they launched, too; annotations lie over kernels.
    kernels_us = sum(
        one.self_device_time_total
        for one in profiled.key_averages()
        if one.device_type == DeviceType.CUDA and not one.is_user_annotation and not one.key.startswith("Mem")
    )
    print(
        json.dumps(
            {
                "step_s": median(elapsed_s),
                "peak_bytes": peak_bytes,
                "kernel_s": kernels_us / 1e6 / TRACED if device.type == "cuda" else None,
            }
        )
    )


def _batches(steps: int, batch: int, device: torch.device, shape: str) -> Iterator[Tensor]:
    data = Progressions(replace(PRESETS[shape], batch=batch), seed=0, sequences=steps * batch)
    return iter(DataLoader(data, batch_size=batch, shuffle=True, num_workers=1, pin_memory=device.type == "cuda"))


if __name__ == "__main__":
    main()
