"""One run of each strategy by the command line, with all its defaults, whose figures are there and right.

pytest collects it where it is named, as `make test-torch` does: its minutes buy nothing where all other tests run.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workloads.registry import SPECS, spec_of
from workloads.spec import StrategySpec

QUICK = ("--device=cpu", "--trials=1", "--port=0", "--format=json")
TRAINING = ("--shape=tiny", "--sequence=32", "--steps=2", "--warm-up=1")
PROBES = {
    "collectives": ("--option=max_bytes=4096",),
    "all_reduce": ("--option=max_bytes=4096",),
    "matmul": ("--option=max_size=256",),
    "copies": ("--option=size_bytes=4096",),
    "pairs": ("--option=size_bytes=4096",),
}
"""Small sizes: a probe's defaults are for a machine that is measured."""

RUNS = [*((spec, ()) for spec in SPECS), (spec_of("zero_bubble"), ("--option=variant=zbv",))]


def _ids() -> Iterator[str]:
    for spec, options in RUNS:
        yield " ".join([spec.name, *options])


@pytest.mark.parametrize(("spec", "options"), RUNS, ids=_ids())
def test_a_run_ends_well_and_has_its_figures(spec: StrategySpec, options: tuple[str, ...], tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bench", "run", spec.name, *QUICK, *(PROBES.get(spec.name) or TRAINING), *options],
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    (summary,) = json.loads(ended.stdout)
    assert (summary["outcome"], summary["trials_done"]) == ("done", 1)
    assert [line for line in _said(Path(summary["folder"])) if "Warning" in line] == []
    figures = _figures(summary)
    assert all(math.isfinite(value) for value in figures.values())
    if spec.kind == "probe":
        assert figures
    else:
        _check_training(spec, figures)


def _check_training(spec: StrategySpec, figures: dict[tuple[str, ...], float]) -> None:
    assert figures["run_step_seconds",] > 0
    assert 5.5 < figures["run_loss_nats",] < 6.5  # Of tiny's 512 words all are still as likely: ln 512 is 6.2.
    assert figures["run_traced_step_seconds",] > 0
    assert 0 < figures["run_traced_ratio", "compute"] <= 1
    sent = {
        key[1:-1]: value for key, value in figures.items() if key[0] == "run_payload_bytes" and key[-1] == "expected"
    }
    counted = {
        key[1:-1]: value for key, value in figures.items() if key[0] == "run_payload_bytes" and key[-1] == "counted"
    }
    assert bool(sent) == (spec.name != "single")
    assert counted == sent


def _figures(summary: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """Medians, by the metric's name and what its labels say, in their order."""
    return {
        (estimate["metric"].removeprefix("observatory_"), *estimate["labels"].values()): estimate["median"]
        for estimate in summary["estimates"]
    }


def _said(folder: Path) -> Iterator[str]:
    """What ranks wrote to their logs."""
    for log in folder.glob("rank*.err"):
        yield from log.read_text(errors="replace").splitlines()
