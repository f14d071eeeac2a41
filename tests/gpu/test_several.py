"""Checks of 2 and 8 GPUs as tests: they end, and what they find keeps its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.check import Check
from tests.gpu.roster import CHECKS
from tests.gpu.runner import Setting, run_one
from tests.support.markers import usable_gpus

_OF_2 = [check for check in CHECKS if check.gpus == 2]
_OF_8 = [check for check in CHECKS if check.gpus == 8]


def _run(check: Check, output: Path) -> None:
    setting = Setting(output=output, device="cuda", gpus=usable_gpus(), commit=None, budget_s=check.limit_s)
    result = run_one(check, setting)
    off = [f"{one.what}: {one.seen}, expected {one.expected}" for one in result.findings if one.verdict == "off"]
    assert result.verdict in ("ok", "seen"), f"{result.verdict}: {result.reason} {off}"


@pytest.mark.gpu2
@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", _OF_2, ids=lambda check: check.name)
def test_two_gpus_keep_the_bounds(check: Check, tmp_path: Path) -> None:
    _run(check, tmp_path)


@pytest.mark.gpu8
@pytest.mark.timeout(300)
@pytest.mark.parametrize("check", _OF_8, ids=lambda check: check.name)
def test_eight_gpus_keep_the_bounds(check: Check, tmp_path: Path) -> None:
    _run(check, tmp_path)
