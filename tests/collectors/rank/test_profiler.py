"""The profiler's window: what is warmed, what is marked, and what a torch gives whose events do not tell their kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from collectors.rank.profiler import EVENTS_HAVE_KINDS, ProfiledSteps, may_start_before_fork, warm
from collectors.traces.reading.reader import read_trace
from tests.collectors.traces.made.kineto_text import differing

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("cuda", "hip", "may"), [(None, None, True), ("13.0", None, False), (None, "7.1.25424", False)]
)
def test_only_a_build_for_no_gpu_starts_the_profiler_before_the_fork(
    cuda: str | None, hip: str | None, may: bool
) -> None:
    assert may_start_before_fork(cuda, hip) == may


WHAT_IS_STARTED = """
import importlib, sys
import torch
from collectors.rank import profiler
for cuda in ("13.0", None):
    print("built for", cuda)
    torch.version.cuda = cuda
    importlib.reload(profiler)  # It asks how torch is built when it is loaded.
    profiler.warm = lambda device: print("warmed for", device)
    importlib.import_module("bench.engines.node.forkserver_preload")
    del sys.modules["bench.engines.node.forkserver_preload"]
"""


@pytest.mark.slow
def test_the_forkserver_starts_no_profiler_with_a_build_for_cuda() -> None:
    """In a process of its own, whose torch nobody has started; what the module itself does is done for each build."""
    found = subprocess.run(
        [sys.executable, "-c", WHAT_IS_STARTED], capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout == "built for 13.0\nbuilt for None\nwarmed for cpu\n"


def _window(**settings: object) -> ProfiledSteps:
    with ProfiledSteps(CPU, **settings) as window:  # type: ignore[arg-type]
        for _ in range(2):
            with window.step():
                torch.ones(8, 8) @ torch.ones(8, 8)
    return window


def test_what_warms_a_window_up_is_not_in_it() -> None:
    timeline = _window(warm_up=lambda: torch.zeros(3).cumsum(0)).timeline(rank=0)
    assert "aten::cumsum" not in timeline.names
    assert "aten::mm" in timeline.names
    assert len(timeline.steps()) == 2


def test_events_that_do_not_tell_their_kind_are_read_from_the_file(tmp_path: Path) -> None:
    window = _window(events_have_kinds=False, folder=tmp_path)
    timeline = window.timeline(rank=3)
    assert timeline.rank == 3
    assert "aten::mm" in timeline.names
    assert len(timeline.steps()) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_file_that_was_read_can_still_be_exported(tmp_path: Path) -> None:
    window = _window(events_have_kinds=False)
    timeline = window.timeline(rank=0)
    path = tmp_path / "rank0.trace.json.gz"
    window.export(path)
    assert differing(timeline, read_trace(path, rank=0)) == []


@pytest.mark.skipif(
    not EVENTS_HAVE_KINDS, reason="torch 2.11 has one way: its events do not tell of what kind they are"
)
def test_both_ways_give_the_same_kinds_and_order() -> None:
    one, other = (_window(events_have_kinds=tells).timeline(rank=0) for tells in (True, False))
    assert one.names == other.names
    assert np.array_equal(one.kind, other.kind)


def test_the_profiler_can_be_warmed_again_and_again() -> None:
    warm(CPU)
    warm(CPU)
