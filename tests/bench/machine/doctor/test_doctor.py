"""The doctor's page as it is printed, and the command that prints it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.cli.doctor import command
from bench.errors import Misuse
from bench.machine.doctor.page import Entry, GpuFields, MachineComparison, Page, ReachedCeiling, Section
from bench.machine.doctor.report import print_page
from bench.machine.machine_diff import MachineDifference
from collectors.nvml.library import FieldSupport
from tests.bench.machine.doctor.runs import product
from workloads.cost_models.absent import Absent

PAGE = Page(
    hostname="node0",
    sections=(
        Section(
            title="devices",
            entries=(
                Entry(name="CPU", value="AMD [EPYC]"),
                Entry(name="usable cores", value=2),
                Entry(name="memory", value=3 << 29, unit="bytes"),
                Entry(name="clock", value=2_596_000_000, unit="hertz"),
                Entry(name="eth0", value=100_000_000_000, unit="bits_per_second"),
                Entry(name="NCCL", reason="torch is built without NCCL"),
            ),
        ),
    ),
    fields=GpuFields(
        standings=(FieldSupport(gpu="0", question="energy counter", answer="answers", cost_s=14e-6),),
        left_out=("GPU 1: it is lost",),
    ),
    ceilings=(
        ReachedCeiling(
            what="matmul fp32",
            best=product(256, 3e9),
            setting="256 x 256 x 256, 1 rank, cpu",
            run="run-a",
            started_ns=0,
        ),
        ReachedCeiling(what="copies", reason="it was not measured"),
    ),
    comparison=MachineComparison(
        run="run-b",
        strategy="ddp",
        started_ns=0,
        differences=(MachineDifference(field="kernel", before="5.0", now="6.1"),),
    ),
)


def _printed(page: Page, width: int = 120) -> list[list[str]]:
    text = io.StringIO()
    print_page(page, "table", Console(file=text, width=width))
    return [line.split() for line in text.getvalue().splitlines()]


def test_lines_are_in_units_for_people() -> None:
    lines = _printed(PAGE)
    assert ["CPU", "AMD", "[EPYC]"] in lines
    assert ["usable", "cores", "2"] in lines
    assert ["memory", "1.5", "GiB"] in lines
    assert ["clock", "2.60", "GHz"] in lines
    assert ["eth0", "100", "Gbit/s"] in lines
    assert "NCCL unknown: torch is built without NCCL" in [" ".join(line) for line in lines]


def test_a_ceiling_names_its_setting_and_its_run() -> None:
    lines = [" ".join(line) for line in _printed(PAGE)]
    assert "matmul fp32 3.00 GFLOP/s 256 x 256 x 256, 1 rank, cpu run-a" in lines
    assert "copies unknown: it was not measured" in lines


def test_a_runs_name_is_whole_on_a_narrow_pipe() -> None:
    run = "20261121-101500-all_reduce-0a1b2c"
    assert not isinstance(PAGE.ceilings, Absent)
    best = replace(PAGE.ceilings[0], setting="recursive_halving, 16,777,216 B, fp32, 2 ranks, gloo", run=run)
    lines = [" ".join(line) for line in _printed(replace(PAGE, ceilings=(best,)), width=80)]
    assert f"matmul fp32 3.00 GFLOP/s {best.setting} {run}" in lines


def test_what_is_compared_and_what_is_not_stands_under_the_heading() -> None:
    lines = [" ".join(line) for line in _printed(PAGE)]
    below = " ".join(lines[lines.index("what differs from the last good run") + 1 :])
    assert below.startswith("compared: versions, host, CPU, memory, GPUs")
    assert "not clocks, PCIe, network or kernel settings" in below


def test_differences_are_a_table_of_then_and_now() -> None:
    assert ["kernel", "5.0", "6.1"] in _printed(PAGE)


def test_a_machine_that_is_as_it_was_is_said_to_be() -> None:
    same = replace(PAGE, comparison=MachineComparison(run="run-b", strategy="ddp", started_ns=0, differences=()))
    assert ["nothing", "differs", "from", "run-b", "(ddp,"] in [line[:5] for line in _printed(same)]


def test_one_reason_is_not_said_twice() -> None:
    absent = Absent(reason="the store is not there")
    lines = [" ".join(line) for line in _printed(replace(PAGE, ceilings=absent, comparison=absent))]
    assert lines.count("unknown: the store is not there") == 1
    assert "unknown, for the same reason" in lines


def test_csv_has_every_line_once_in_base_units(capsys: pytest.CaptureFixture[str]) -> None:
    print_page(PAGE, "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["section"], row["name"], row["value"]) for row in rows] == [
        ("devices", "CPU", "AMD [EPYC]"),
        ("devices", "usable cores", "2"),
        ("devices", "memory", str(3 << 29)),
        ("devices", "clock", "2596000000"),
        ("devices", "eth0", "100000000000"),
        ("devices", "NCCL", ""),
        ("fields", "energy counter", "1.4e-05"),
        ("fields", "left out", ""),
        ("ceilings", "matmul fp32", "3000000000.0"),
        ("ceilings", "copies", ""),
        ("differences", "kernel", "6.1"),
    ]
    assert [rows[place]["reason"] for place in (5, 7, 9)] == [
        "torch is built without NCCL",
        "GPU 1: it is lost",
        "it was not measured",
    ]
    assert (rows[8]["run"], rows[10]["before"]) == ("run-a", "5.0")


def test_what_gpus_answer_is_a_table_of_its_own() -> None:
    lines = [" ".join(line) for line in _printed(PAGE)]
    (heading,) = [place for place, line in enumerate(lines) if line.startswith("fields: ")]
    assert lines[heading + 2 : heading + 5] == ["question GPU 0", "energy counter 14 us", "GPU 1: it is lost"]


def test_json_holds_the_whole_page(capsys: pytest.CaptureFixture[str]) -> None:
    print_page(PAGE, "json")
    printed = json.loads(capsys.readouterr().out)
    assert printed["sections"][0]["entries"][2] == {
        "name": "memory",
        "value": 3 << 29,
        "unit": "bytes",
        "reason": None,
    }
    assert printed["fields"] == {
        "standings": [
            {"gpu": "0", "question": "energy counter", "answer": "answers", "reason": None, "cost_s": 14e-6},
        ],
        "left_out": ["GPU 1: it is lost"],
    }
    assert printed["comparison"]["differences"] == [{"field": "kernel", "before": "5.0", "now": "6.1"}]


def test_the_command_prints_this_machine_as_ranks_see_it_even_without_a_store(tmp_path: Path) -> None:
    answer = CliRunner().invoke(command, ["--store", f"sqlite:///{tmp_path / 'no.sqlite'}", "--format", "json"])
    assert answer.exit_code == 0
    printed = json.loads(answer.stdout)
    starts = ("starting ranks", "asking ", "reading devices")
    said = [line for line in answer.stderr.splitlines() if line.startswith("doctor: ")]
    assert [line.removeprefix("doctor: ")[: len(start)] for line, start in zip(said, starts, strict=True)] == list(
        starts
    )
    sections = {
        section["title"]: {entry["name"]: entry["value"] for entry in section["entries"]}
        for section in printed["sections"]
    }
    assert list(sections) == ["versions", "devices", "topology", "clocks", "links", "limits", "settings", "monitors"]
    assert sections["devices"]["ranks"] == "can be started"
    assert "TORCH_FR_BUFFER_SIZE" in sections["settings"]
    assert printed["fields"]["standings"] or printed["fields"]["left_out"]
    assert "does not exist yet" in printed["ceilings"]["reason"]
    assert not (tmp_path / "no.sqlite").exists()


def test_seconds_without_a_recording_are_refused() -> None:
    answer = CliRunner().invoke(command, ["--seconds", "5"])
    assert isinstance(answer.exception, Misuse)
    assert str(answer.exception) == "--seconds is how long --record records; add --record FILE"


def test_a_recording_into_no_folder_is_refused(tmp_path: Path) -> None:
    answer = CliRunner().invoke(command, ["--record", str(tmp_path / "none" / "node.json")])
    assert isinstance(answer.exception, Misuse)
    assert "No such file or directory" in str(answer.exception)
