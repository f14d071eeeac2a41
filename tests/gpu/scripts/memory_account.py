"""What one look at the allocator's account costs, as the step's memory is read; on a CPU that of the process's file."""

from __future__ import annotations

import json
import time

import torch

from collectors.rank.memory import make_memory
from tests.gpu.scripts.device import device_of_words

CALLS = 1000


def main() -> None:
    device: torch.device = device_of_words().device
    torch.zeros(1, device=device)
    memory = make_memory(device)
    found = {}
    for name, call in (("phase_s", lambda: memory.end_phase("forward")), ("step_s", memory.end_step)):
        elapsed_s = 0.0
        for _ in range(CALLS):
            memory.start()  # The step after it is asked for its account, however short it is.
            begun_s = time.perf_counter()
            call()
            elapsed_s += time.perf_counter() - begun_s
        found[name] = elapsed_s / CALLS
    print(json.dumps(found))


if __name__ == "__main__":
    main()
