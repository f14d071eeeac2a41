"""The device that a script's command line names, and small tools to time work on it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch


def device_of_words(*options: tuple[str, type, object]) -> argparse.Namespace:
    """The words of a script's command line: `--device`, as `device`, and these options with their defaults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", type=torch.device, required=True)
    for name, kind, default in options:
        parser.add_argument(f"--{name}", type=kind, default=default)
    arguments = parser.parse_args()
    if arguments.device.type == "cuda":
        torch.cuda.set_device(0)
    return arguments


def wait(device: torch.device) -> None:
    """Return when the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times_s(device: torch.device, call: Callable[[], object], calls: int) -> Sequence[float]:
    """Seconds of each of so many calls, one after another: by events on a GPU, by the host's clock on a CPU."""
    wait(device)
    if device.type == "cpu":
        moments = [time.perf_counter()]
        for _ in range(calls):
            call()
            moments.append(time.perf_counter())
        return [after - before for before, after in pairwise(moments)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]  # type: ignore[no-untyped-call]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    wait(device)
    return [float(before.elapsed_time(after)) / 1e3 for before, after in pairwise(events)]
