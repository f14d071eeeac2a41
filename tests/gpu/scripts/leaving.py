"""How long the driver takes to end a process that left with seconds of work queued and much memory held.

The child leaves by os._exit, as ranks do; this process looks at NVML and touches no CUDA. Prints seconds as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pynvml

from tests.gpu.scripts.device import device_of_words

NEAR_BYTES = 64 << 20
"""As much as other processes' memory may have changed meanwhile."""
GIVE_UP_S = 25.0
_CHILD = """
import os, sys, torch
device = torch.device(sys.argv[1])
size, calls, taken = (16384, 180, 32 << 30) if device.type == "cuda" else (64, 10, 1 << 20)
held = torch.empty(taken, dtype=torch.uint8, device=device)
one = torch.randn(size, size, device=device, dtype=torch.bfloat16)
for _ in range(calls):
    torch.mm(one, one)
print("queued", flush=True)
sys.stdin.readline()
os._exit(0)
"""


def main() -> None:
    device = device_of_words().device
    handle = None
    if device.type == "cuda":
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = _used(handle)
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(device)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    held = _used(handle)
    begun_s = time.monotonic()
    child.stdin.close()
    child.wait()
    gone_s = time.monotonic() - begun_s
    free_s = None
    while handle is not None and time.monotonic() - begun_s < GIVE_UP_S:
        if _used(handle) <= before + NEAR_BYTES:
            free_s = time.monotonic() - begun_s
            break
        time.sleep(0.01)
    print(json.dumps({"gone_s": gone_s, "free_s": free_s, "held_bytes": held - before}))


def _used(handle: object) -> int:
    return 0 if handle is None else int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


if __name__ == "__main__":
    main()
