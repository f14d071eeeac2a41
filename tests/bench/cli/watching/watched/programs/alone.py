"""Training in one process without torch.distributed, which asks for windows itself: `python alone.py CASE`.

Prints the losses, and what is left in the process once the windows are over.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.autograd import profiler as engine
from torch.profiler import ProfilerActivity, profile, record_function, schedule

HOOK = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0])
STARTS = {name: getattr(engine, name) for name in ("_prepare_profiler", "_enable_profiler")}


def ask(number: int) -> None:
    if not (HOOK / "settings.json").exists():  # Not watched.
        return
    (HOOK.parent / "windows" / str(number)).mkdir(parents=True, exist_ok=True)
    draft = HOOK / "window.part"
    draft.write_text(json.dumps({"id": number, "steps": 4, "why": sys.argv[1]}))
    draft.rename(HOOK / "window.json")


def steps(count: int) -> Iterator[int]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(count):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9g}")
        time.sleep(0.02)
        yield number


def whole() -> None:
    ask(1)
    environment, modules = dict(os.environ), set(sys.modules)
    threads = 0
    for number in steps(90):
        if number == 5:  # Before the window, which begins a second after the first step.
            environment, modules = dict(os.environ), set(sys.modules)
            threads = sum(1 for _ in Path("/proc/self/task").iterdir())  # Kineto then keeps one of its own.
    has_left = [
        *(name for name, original in STARTS.items() if getattr(engine, name) is not original),
        *(["environment"] if dict(os.environ) != environment else []),
        *(["profiler"] if engine._is_profiler_enabled else []),
        *sorted(name for name in set(sys.modules) - modules if name.startswith("torch")),
        *(["thread"] if sum(1 for _ in Path("/proc/self/task").iterdir()) > threads + 1 else []),
    ]
    print("left:", *has_left)


def theirs_first() -> None:
    """The script's own profiler is on when ours is due."""
    ask(1)
    with profile(activities=[ProfilerActivity.CPU]) as own:
        for _ in steps(90):
            pass
    report(own)


def theirs_scheduled() -> None:
    """The script's own profiler waits for its turn, warming up, when ours is due."""
    ask(1)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=80, active=2, repeat=1)) as own:
        for _ in steps(90):
            own.step()
    report(own)


def theirs_later() -> None:
    """The script's own profiler starts within our window."""
    ask(1)
    own = profile(activities=[ProfilerActivity.CPU])
    has_begun, after = False, 0
    for _ in steps(90):
        if not has_begun and engine._is_profiler_enabled:
            own.start()
            has_begun = True
        elif has_begun and (after := after + 1) == 5:
            own.stop()
    report(own)


def forked() -> None:
    """A data worker begins within our window, and outlives it."""
    ask(1)
    grown_mb = None
    for _ in steps(90):
        if grown_mb is None and engine._is_profiler_enabled:
            grown_mb = grown_by_worker_mb()
    print("grown by MB:", grown_mb)


def grown_by_worker_mb() -> int:
    """How much a forked process grows by 100,000 operations, of which kineto would keep each."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        before = resident_bytes()
        values = torch.ones(8)
        for _ in range(100_000):
            values = values + 1
        os.write(writing, str((resident_bytes() - before) >> 20).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        grown = int(answer.read())
    os.wait()
    return grown


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def named() -> None:
    """Operations of the script bear paths."""
    ask(1)
    for _ in steps(90):
        with record_function("load /home/somebody/secret/rows.bin"):
            torch.ones(1)


def nested() -> None:
    """Steps end inside ranges that begin in the same step: a range of the script's, and an optimizer in backward."""
    for number in (1, 2):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if number == 2:
            model.weight.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
        ask(number)
        for _ in range(90):
            loss = model(torch.ones(3, 4)).square().mean()
            loss.backward()
            if number == 1:
                with record_function("update"):
                    optimizer.step()
            time.sleep(0.02)
        print(f"{loss.item():.9g}")


def report(own: profile) -> None:
    assert own.profiler is not None
    events = own.profiler.kineto_results.events() if own.profiler.kineto_results is not None else []
    print("own events:", any("Optimizer.step" in event.name() for event in events))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
