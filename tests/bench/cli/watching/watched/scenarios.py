"""Training loops of many kinds in one process with the hooks, each with a watch of its own; prints what was seen.

Run as a script: `python scenarios.py FOLDER`, with the hook's folder first on PYTHONPATH.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import observatory_watch as recorder  # On PYTHONPATH under watch.
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

FOLDER = Path(sys.argv[1])


def model_of(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def loss_of(model: Callable[[Tensor], Tensor]) -> Tensor:
    return model(torch.ones(3, 4)).square().mean()


def two_optimizers() -> None:
    first, second = model_of(), model_of()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (first, second)]
    for _ in range(4):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()


def remade_optimizers() -> None:
    """A new optimizer each four steps; it may have the id of the one before."""
    model = model_of()
    optimizer = None
    for number in range(12):
        if number % 4 == 0:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert optimizer is not None
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def accumulation() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for microbatch in range(8):
        loss_of(model).backward()
        if microbatch % 2:
            optimizer.step()


def closure() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def compute() -> Tensor:
        loss = loss_of(model)
        time.sleep(0.02)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(compute)


def scaler(is_fused: bool = False, is_named: bool = False) -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(4):
        optimizer.zero_grad()
        loss = loss_of(model) * (float("inf") if number == 1 else 1.0)
        scaler.scale(loss).backward()
        if is_named:
            scaler.step(optimizer=optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()


def named_scaler() -> None:
    scaler(is_named=True)


def fused_scaler() -> None:
    scaler(is_fused=True)


def zero_redundancy() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = model_of()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    for _ in range(3):
        loss_of(model).backward()
        optimizer.step()


def compiled_whole() -> None:
    """A model compiled as one graph, which a clock in a hook would break."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for _ in range(3):
        loss_of(compiled).backward()
        optimizer.step()


def compiled_optimizer() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    update = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(3):
        update()


def compiled_backward() -> None:
    """Its graph ends at backward, which the compiled function then calls by itself."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forward_and_backward = torch.compile(lambda: loss_of(model).backward(), backend="eager")
    for _ in range(3):
        forward_and_backward()
        optimizer.step()


def compiled_step() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        loss_of(model).backward()
        optimizer.step()

    step = torch.compile(train, backend="eager")
    for _ in range(3):
        step()


class Slow(Dataset[Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, place: int) -> Tensor:
        time.sleep(0.01)
        return torch.ones(4)


def data_and_phases() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Slow(), batch_size=2):
        loss = model(batch).mean()
        time.sleep(0.03)
        loss.backward()
        optimizer.step()


def workers_of_data() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2, num_workers=2):
        model(batch).mean().backward()
        optimizer.step()


def children() -> None:
    """A forked child of a rank that trains itself is no rank."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.step()
    if (pid := os.fork()) == 0:
        for _ in range(5):
            optimizer.step()
        os._exit(0)
    os.waitpid(pid, 0)
    optimizer.step()


def saved() -> None:
    """The model and the optimizer are pickled as without a watch: nothing in them is ours."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model).backward()
    optimizer.step()
    assert b"observatory" not in pickle.dumps(model) + pickle.dumps(optimizer)


def no_optimizer() -> None:
    model = model_of()
    for _ in range(3):
        loss_of(model).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None


def marked() -> None:
    for _ in range(3):
        with recorder.step(tokens=100):
            loss_of(model_of()).backward()


def engine_later() -> None:
    """DeepSpeed is imported after the first steps; a class with its engine's names is as good here."""
    from observatory_watch_hooks import _hook_deepspeed  # type: ignore[import-not-found]  # On PYTHONPATH under watch.

    recorder.current.on_backward = _hook_deepspeed
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class DeepSpeedEngine:
        def _take_model_step(self) -> None:
            optimizer.step()

    for number in range(5):
        if number == 2:
            sys.modules["deepspeed.runtime.engine"] = SimpleNamespace(DeepSpeedEngine=DeepSpeedEngine)  # type: ignore[assignment]
        loss_of(model).backward()
        if number < 2:
            optimizer.step()
        else:
            DeepSpeedEngine()._take_model_step()
    del sys.modules["deepspeed.runtime.engine"]


def own_profiler() -> None:
    """The script's own profiler gets its events."""
    from torch.profiler import ProfilerActivity, profile

    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            loss_of(model).backward()
            optimizer.step()
    assert any("Optimizer.step" in event.name() for event in profiler.profiler.kineto_results.events())


SCENARIOS = (
    *(
        two_optimizers,
        remade_optimizers,
        accumulation,
        closure,
        scaler,
        named_scaler,
        fused_scaler,
        zero_redundancy,
        compiled_whole,
        compiled_optimizer,
        compiled_backward,
        compiled_step,
    ),
    *(data_and_phases, workers_of_data, children, saved, no_optimizer, marked, engine_later, own_profiler),
)


def main() -> None:
    seen: dict[str, Any] = {}
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())  # type: ignore[attr-defined]
    started = recorder.current
    for scenario in SCENARIOS:
        folder = FOLDER / scenario.__name__
        folder.mkdir()
        recorder.current = recorder.Watch({"folder": str(folder)})
        torch.manual_seed(0)
        scenario()
        recorder.current.end()
        seen[scenario.__name__] = {
            path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")
        }
        failures = folder / "watch_failures.txt"
        assert not failures.exists(), failures.read_text()
    recorder.current = None
    dist.destroy_process_group()
    seen["process"] = {"has_hook": started is not None, "finders": [type(each).__name__ for each in sys.meta_path]}
    (FOLDER / "seen.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
