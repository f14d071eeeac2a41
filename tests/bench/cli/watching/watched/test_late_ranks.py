"""Two real ranks of DDP and of FSDP2 under watch: who is late is named with the phase, or the run says unsure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main

PROGRAM = Path(__file__).parent / "programs" / "late.py"
STEPS = 80
SLEEP_S = 0.02

pytestmark = pytest.mark.slow


def _late(folder: Path, strategy: str, phase: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Watch two ranks, of which rank 1 sleeps in a phase of each step; return who is late by the run's summary."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    where = ("--quiet", "--name", "job", "--runs", str(folder / "runs"), "--store", f"sqlite:///{folder}/h.sqlite")
    program = (sys.executable, str(PROGRAM), strategy, str(SLEEP_S), phase, str(STEPS), str(folder / "store"))
    assert main.run(["watch", *where, "--", *program]) == 0
    (run,) = (folder / "runs").iterdir()
    watched = json.loads((run / "summary.json").read_text())["watched"]
    assert [rank["rank"] for rank in watched["ranks"]] == [0, 1]
    late: dict[str, Any] = watched["late"]
    return late


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("phase", ["data", "forward", "optimizer"])
def test_the_late_rank_is_named_with_its_phase(
    strategy: str, phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = _late(tmp_path, strategy, phase, monkeypatch)
    assert (late["verdict"], late["rank"], late["phase"]) == ("late", 1, phase), late
    assert late["late_s"] >= SLEEP_S / 2


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_rank_that_is_late_inside_backward_is_named_for_it_or_nobody_is(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks wait within the same backward, which hosts' times do not divide."""
    late = _late(tmp_path, strategy, "backward", monkeypatch)
    assert (late["verdict"], late.get("rank"), late.get("phase")) in (("unsure", None, None), ("late", 1, "backward"))


@pytest.mark.parametrize(("strategy", "runs"), [("ddp", 3), ("fsdp2", 2)])
def test_without_a_fault_nobody_is_named(
    strategy: str, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(runs):
        folder = tmp_path / str(number)
        folder.mkdir()
        late = _late(folder, strategy, "none", monkeypatch)
        assert late["verdict"] == "unsure", late
