"""What `observatory watch` costs a step: blocks of steps with and without its hooks, in turn, in one process.

Without: torch's own functions, no hooks of an optimizer. With: the hooks, phases and rank file, as under watch. Two
neighbouring blocks are a pair, whose order alternates. The ratio is the median of the pairs' ratios with its
distribution-free interval, so that the machine's drift cancels and its pauses do not count. The time that the watch
counts from inside stands next to the ratio: it holds the lines that are written about once a second, which a median
step does not.

    python -m tests.benchmarks.watch [--pairs N] [--steps N] [--width N]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from scipy.stats import quantile_test
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from bench.session.watched.session import write_hook
from collectors.watch import observatory_watch, observatory_watch_hooks

PROMISE = 0.01


class Training:
    """A loop with a DataLoader, forward, backward and an optimizer, whose hooks can be taken out and put in again."""

    def __init__(self, folder: Path, width: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.loader = DataLoader(TensorDataset(torch.randn(4096, width)), batch_size=64)
        self._batches = iter(self.loader)
        self._bare = self._functions()
        self.watch = observatory_watch.Watch({"folder": str(folder)})
        observatory_watch.current = self.watch
        observatory_watch_hooks._recorder = observatory_watch
        observatory_watch_hooks._hook_torch()
        self._hooked = self._functions()

    @staticmethod
    def _functions() -> dict[str, Any]:
        optimizer = torch.optim.Optimizer.__init__.__globals__
        names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
        hooks = {name: dict(optimizer[name]) for name in names}
        return {"backward": torch.autograd.backward, "next": _BaseDataLoaderIter.__next__, "hooks": hooks}

    def _put(self, functions: dict[str, Any]) -> None:
        torch.autograd.backward = functions["backward"]
        _BaseDataLoaderIter.__next__ = functions["next"]  # type: ignore[method-assign]
        optimizer = torch.optim.Optimizer.__init__.__globals__
        for name, hooks in functions["hooks"].items():
            optimizer[name].clear()
            optimizer[name].update(hooks)

    def block_s(self, steps: int, *, is_watched: bool) -> float:
        """Return the median step of a block."""
        self._put(self._hooked if is_watched else self._bare)
        times_ns = []
        before_ns = time.perf_counter_ns()
        for _ in range(steps):
            self._step()
            now_ns = time.perf_counter_ns()
            times_ns.append(now_ns - before_ns)
            before_ns = now_ns
        return median(times_ns) / 1e9

    def _step(self) -> None:
        try:
            (batch,) = next(self._batches)
        except StopIteration:
            self._batches = iter(self.loader)
            (batch,) = next(self._batches)
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400, help="of blocks")
    parser.add_argument("--steps", type=int, default=2, help="of a block")
    parser.add_argument("--width", type=int, default=1024, help="of the model; wider makes longer steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_hook(folder)
        training = Training(folder, arguments.width)
        pairs: list[dict[bool, float]] = []
        for pair in range(arguments.pairs + 1):
            order = (False, True) if pair % 2 else (True, False)
            steps_s = {kind: training.block_s(arguments.steps, is_watched=kind) for kind in order}
            if pair:  # The first warms up.
                pairs.append(steps_s)
        training.watch.end()
        lines = [json.loads(line) for line in (folder / "watch_rank0.jsonl").read_text().splitlines()]
    own_ns = [value for line in lines if line["kind"] == "steps" for value in line["own_ns"]]
    ratios = [100 * pair[True] / pair[False] for pair in pairs]
    ends: Any = quantile_test(ratios, p=0.5).confidence_interval(0.95)
    interval = f"{median(ratios):.2f} % [{ends.low:.2f}, {ends.high:.2f}]"
    bare_s = median(pair[False] for pair in pairs)
    print(f"watched step over bare step: {interval}, promised at most {100 * (1 + PROMISE):.0f} %")
    print(f"counted from inside: {1e-3 * fmean(own_ns):.0f} us a step, {100e-9 * fmean(own_ns) / bare_s:.2f} %")
    print(f"{arguments.pairs} pairs of blocks of {arguments.steps} steps; bare steps of {1e3 * bare_s:.1f} ms")


if __name__ == "__main__":
    main()
