"""Who holds the GPUs' monitors, and what the page says of it."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from bench.machine.doctor.node_state import monitors
from bench.machine.doctor.page import Entry
from collectors.nvml.library import FieldSupport, NVMLError, SupportState

IN_USE = str(NVMLError(pynvml.NVML_ERROR_IN_USE))
RELEASE = "`dcgmi profile --pause` releases them, `dcgmi profile --resume` returns them to DCGM"


@pytest.fixture
def with_dcgm(tmp_path: Path) -> Path:
    (tmp_path / "proc/812").mkdir(parents=True)
    (tmp_path / "proc/812/comm").write_text("nv-hostengine\n")
    return tmp_path


def _monitored(*answers: SupportState, reason: str | None = None) -> tuple[FieldSupport, ...]:
    return tuple(
        FieldSupport(gpu=str(place), question="GPM", answer=answer, reason=reason)
        for place, answer in enumerate(answers)
    )


def _said(entries: tuple[Entry, ...]) -> str:
    (entry,) = [one for one in entries if one.name == "performance monitors"]
    return str(entry.value)


def test_a_node_without_gpus_and_dcgm_has_one_line(tmp_path: Path) -> None:
    assert monitors((), tmp_path) == (Entry(name="DCGM", value="none found"),)


def test_a_dcgm_is_named(with_dcgm: Path) -> None:
    assert monitors((), with_dcgm) == (Entry(name="DCGM", value="nv-hostengine runs (process 812)"),)


def test_monitors_that_answer_are_free_beside_a_dcgm(with_dcgm: Path) -> None:
    assert _said(monitors(_monitored("answers", "answers"), with_dcgm)) == (
        "GPUs 0, 1: GPM answers, and no client holds them exclusively"
    )


def test_held_monitors_name_the_dcgm_and_the_way_out(with_dcgm: Path) -> None:
    assert _said(monitors(_monitored("not always", reason=IN_USE), with_dcgm)) == (
        f"GPU 0: held by another client, perhaps this DCGM; {RELEASE}; SM activity is missing meanwhile"
    )


def test_held_monitors_without_a_dcgm_in_sight_say_so(tmp_path: Path) -> None:
    said = _said(monitors(_monitored("not always", "not always", reason=IN_USE), tmp_path))
    assert said.startswith(
        "GPUs 0, 1: held by a client that is not visible here, for example DCGM in another container"
    )


def test_gpus_without_gpm_lose_their_monitors_to_a_dcgm_that_profiles(with_dcgm: Path) -> None:
    assert _said(monitors(_monitored("not supported"), with_dcgm)) == (
        "GPU 0: no GPM, so DCGM holds the monitors exclusively while it watches fields 1001 and up, and profilers get"
        f" no counters; {RELEASE}"
    )


def test_gpus_without_gpm_have_no_line_where_no_dcgm_is(tmp_path: Path) -> None:
    assert len(monitors(_monitored("not supported", reason="Not Supported"), tmp_path)) == 1
