"""A delay in one rank's backward pass, which phase times do not show, is told by rank and cause."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.rank.instrumentation import trace
from bench.results.stragglers import joined_estimates
from bench.results.timelines import save_timeline, window_path
from collectors.metrics.results import (
    RUN_COLLECTIVE_TRANSFER_SECONDS,
    RUN_COLLECTIVE_WAIT_SECONDS,
    RUN_HELD_UP_RATIO,
    RUN_STRAGGLER_RATIO,
    RUN_TRACED_BUS_BANDWIDTH,
    RUN_WAITING_RATIO,
)
from collectors.traces.cross_rank.clock_sync import align
from collectors.traces.timeline import load
from tests.bench.made.examples import small_case
from tests.support.ranks import OnRanks

RANKS, STEPS, LATE = 4, 3, 2
TRIALS = 5
"""As many as tell one of four ranks from luck, and one more."""
INJECTED_S = 0.05
CASE = small_case("ddp", ranks=RANKS, trace_steps=STEPS)


class _Slowed(torch.autograd.Function):
    """The same tensor; its gradient comes after so much computation."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        weights, until = torch.ones(128, 128), time.perf_counter() + INJECTED_S
        while time.perf_counter() < until:
            weights = (weights @ weights).clamp(max=1)
        return gradients[0]


def _model(injected: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    lower = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    upper = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lower, self.upper = lower, upper

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.lower(x)
            return self.upper(_Slowed.apply(x) if injected else x)  # type: ignore[no-any-return, no-untyped-call]

    return DistributedDataParallel(Model())


def _traced_rank(folder: Path, late: int | None) -> float:
    """The median seconds of a rank's backward pass, in steps before its window."""
    rank = dist.get_rank()
    model, batch = _model(injected=rank == late), torch.ones(8, 64)
    backward_s: list[float] = []

    def step() -> None:
        loss = model(batch).sum()
        begun_s = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        backward_s.append(time.perf_counter() - begun_s)

    for _ in range(6):
        step()
    taken_s = median(backward_s[1:])
    for trial in range(TRIALS):
        window = trace(
            STEPS, step, warm_up=dist.barrier, device=torch.device("cpu"), backend="gloo", rank=rank, ranks=RANKS
        )
        assert window.notes == ()
        save_timeline(window.timeline, folder, trial)
    return taken_s


@pytest.fixture(scope="module")
def slowed(on_ranks: OnRanks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A run's folder with the windows of four ranks, one of which is late; the seconds of their backward passes."""
    folder = tmp_path_factory.mktemp("slowed")
    return folder, on_ranks(RANKS, _traced_rank, folder, LATE)


def test_phase_times_do_not_show_whose_backward_pass_is_slow(slowed: tuple[Path, list[float]]) -> None:
    _, backward_s = slowed
    assert min(backward_s) > INJECTED_S  # All wait for the late rank's gradients.


@pytest.mark.alone
def test_the_late_rank_is_named_with_what_it_does(slowed: tuple[Path, list[float]]) -> None:
    folder, _ = slowed
    estimates, notes = joined_estimates(CASE, folder, trials=TRIALS)
    (straggler,) = [one for one in estimates if one.metric == RUN_STRAGGLER_RATIO.name]
    assert straggler.labels == {"rank": str(LATE), "cause": "compute"}
    one_clock, note = notes
    assert one_clock == f"ranks 0 to 3 are on host {socket.gethostname()}: they share a clock"
    assert note.startswith(f"rank {LATE} holds the others up by compute (aten::")
    held_up = {one.labels["rank"]: one.median for one in estimates if one.metric == RUN_HELD_UP_RATIO.name}
    assert max(held_up, key=lambda rank: held_up[rank]) == str(LATE)


def test_windows_name_their_host_so_that_its_ranks_have_one_clock(slowed: tuple[Path, list[float]]) -> None:
    folder, _ = slowed
    windows = [load(window_path(folder, 0, rank)) for rank in range(RANKS)]
    assert {window.about.host for window in windows} == {socket.gethostname()}
    assert set(align(windows).offset_ns.values()) == {0}


def test_the_run_tells_wait_and_transfer_of_the_collective(slowed: tuple[Path, list[float]]) -> None:
    folder, _ = slowed
    estimates, _ = joined_estimates(CASE, folder, trials=1)
    found = {one.metric: one for one in estimates if one.labels.get("collective", "all_reduce") == "all_reduce"}
    wait, transfer = found[RUN_COLLECTIVE_WAIT_SECONDS.name], found[RUN_COLLECTIVE_TRANSFER_SECONDS.name]
    shared = wait.median / (wait.median + transfer.median)
    assert shared == pytest.approx(found[RUN_WAITING_RATIO.name].median, rel=1e-9)
    assert RUN_TRACED_BUS_BANDWIDTH.name in found
