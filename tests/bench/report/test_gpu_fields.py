"""The table of questions by GPUs, for people and as rows."""

from __future__ import annotations

import io

from rich.console import Console

from bench.machine.doctor.page import GpuFields
from bench.machine.doctor.report import field_blocks, field_rows
from bench.report.table import print_page
from collectors.nvml.library import FieldSupport

FIELDS = GpuFields(
    standings=(
        FieldSupport(gpu="0", question="energy counter", answer="answers", cost_s=14e-6),
        FieldSupport(gpu="0", question="power sensor", answer="answers", cost_s=2.34e-3),
        FieldSupport(gpu="0", question="GPM", answer="not supported", reason="Not Supported"),
        FieldSupport(gpu="1", question="energy counter", answer="answers", cost_s=0.0),
        FieldSupport(gpu="1", question="power sensor", answer="not permitted", reason="Insufficient Permissions"),
        FieldSupport(gpu="1", question="encoder", answer="not always", reason="Timeout", cost_s=3e-6),
    ),
    left_out=("GPU 1: this process is not permitted to read power sensor; they are left out of this run",),
)


def _printed(fields: GpuFields) -> list[str]:
    text = io.StringIO()
    print_page(field_blocks(fields), Console(file=text, width=120))
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


def test_questions_are_rows_and_gpus_are_columns() -> None:
    lines = _printed(FIELDS)
    assert lines[1:] == [
        "question GPU 0 GPU 1",
        "energy counter 14 us < 1 us",
        "power sensor 2.3 ms denied",
        "GPM no",
        "encoder fails",
        *FIELDS.left_out,
    ]


def test_the_words_are_explained_above_the_table() -> None:
    assert _printed(FIELDS)[0].startswith("no: not reported by this driver for this GPU; denied: ")


def test_eight_gpus_stand_side_by_side_on_a_pipe() -> None:
    standings = tuple(
        FieldSupport(gpu=str(gpu), question="uncorrected ECC errors, volatile", answer="answers", cost_s=123e-6)
        for gpu in range(8)
    )
    lines = _printed(GpuFields(standings=standings, left_out=()))
    assert lines[1:] == [
        " ".join(["question", *(f"GPU {gpu}" for gpu in range(8))]),
        " ".join(["uncorrected ECC errors, volatile", *("123 us",) * 8]),
    ]


def test_a_node_without_gpus_has_its_reason_and_no_table() -> None:
    assert _printed(GpuFields(standings=(), left_out=("no NVIDIA driver: NVML library not found",))) == [
        "unknown: no NVIDIA driver: NVML library not found"
    ]


def test_rows_are_in_seconds_or_have_a_reason() -> None:
    rows = list(field_rows(FIELDS))
    assert rows[0] == {
        "section": "fields",
        "name": "energy counter",
        "setting": "GPU 0",
        "value": 14e-6,
        "unit": "seconds",
    }
    assert rows[2]["reason"] == "not supported: Not Supported"
    assert "value" not in rows[2]
    assert (rows[5]["value"], rows[5]["reason"]) == (3e-6, "not always: Timeout")
    assert rows[6] == {"section": "fields", "name": "left out", "reason": FIELDS.left_out[0]}
