"""`observatory predict`: what is printed in each format, here and on another machine, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.analysis.prediction.fit import fit
from bench.analysis.prediction.forecast_report import forecast_page
from bench.analysis.prediction.planned import PredictOptions, predicted_cases
from bench.cli import main
from bench.errors import FINE, MISUSE
from bench.machine.machines.machine_file import read_machine
from bench.report.table import print_page
from bench.results.estimate import estimate
from bench.session.case_args import CaseArgs
from bench.store.history import History
from collectors.metrics.probes import (
    RUN_COPY_BANDWIDTH,
    RUN_LINK_BANDWIDTH,
    RUN_LINK_LATENCY_SECONDS,
    RUN_MATMUL_FLOPS,
)
from tests.bench.made.calibrations import add_copies
from tests.bench.made.examples import make_machine, make_probe, make_summary
from workloads.cost_models.step_time import StepTime
from workloads.registry import spec_of

ON = "predict fsdp --shape 8b --batch 16 --on h100x8x2 --tokens 15T"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, in which nothing was measured, on a host whose free memory stays as it is."""
    monkeypatch.setattr("bench.session.case_args.available_bytes", lambda: 16 << 30)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _lines(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main.run(line.split()) == FINE
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out.splitlines()


def _json(line: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main.run([*line.split(), "--format", "json"]) == FINE
    return json.loads(capsys.readouterr().out)


# On a machine that is not here.


def test_a_page_has_the_fact_memory_the_step_by_part_and_what_it_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines(ON, capsys)
    assert lines[0].startswith("h100x8x2: 2 nodes of 8 x NVIDIA H100 80GB HBM3")
    assert lines[-1] == "nothing was started, and nothing written"
    starts = (
        "what decides: computing is ",
        "activations ",
        "it fits (model: memory.md)",
        "compute ",
        "exposed, InfiniBand ",
        "optimizer ",
        "host: absent: ",
        "step ",
        "ranges: scatter of rates that were measured elsewhere, relative to data sheets",
        "tokens/s: ",
        "MFU: ",
        "15T tokens: ",
        "rests on products at 78 % [57, 83] and attention at 18 % [17, 19] of 989.4 TFLOP/s",
        "rests on memory at 80 % ",
    )
    assert [start for start in starts if not any(line.startswith(start) for line in lines)] == []


def test_the_step_is_that_of_a_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    (document,) = _json(ON, capsys)
    args = CaseArgs(strategy="fsdp", shape_name="8b", dimensions={"batch": 16})
    (predicted,) = predicted_cases(args, PredictOptions(on="h100x8x2"))
    step = fit(predicted.forecast.case, read_machine("h100x8x2")).step
    assert isinstance(step, StepTime)
    parts = {(part["name"], part["level"]): part["seconds"] for part in document["parts"]}
    assert document["step_s"]["value"] == pytest.approx(step.step_s)
    assert parts["optimizer", None]["value"] == pytest.approx(step.compute.optimizer_s)
    assert parts["communication", "InfiniBand"]["value"] == pytest.approx(step.exposed_s)
    assert "reason" in parts["host", None]
    assert document["days"]["value"] == pytest.approx(15e12 / document["tokens_per_second"]["value"] / 86400)
    assert document["decides"]["about"] == "compute"


def test_csv_has_a_row_for_each_part_with_the_page_of_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*ON.split(), "--format", "csv"]) == FINE
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    by_part = {row["part"]: row for row in rows}
    assert {"memory activations", "compute", "communication", "optimizer", "host", "step", "mfu", "days"} <= set(
        by_part
    )
    assert {(row["fits"], row["decides"]) for row in rows} == {("yes", "compute")}
    pages = {row["model"] for row in rows} - {""}
    folder = Path(__file__).parents[4] / "docs" / "cost_models"
    assert sorted(page for page in pages if not (folder / page).is_file()) == []
    assert float(by_part["step"]["low"]) < float(by_part["step"]["value"]) < float(by_part["step"]["high"])


def test_what_does_not_fit_names_the_nearest_setup_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines("predict ddp --shape 8b --on h100x8", capsys)
    assert "what decides: states need 120 GiB, a GPU has 79.1 GiB" in lines
    (verdict,) = [line for line in lines if line.startswith("it does not fit")]
    assert "; with --option checkpoint=full" in verdict or "; with fsdp" in verdict
    (document,) = _json("predict ddp --shape 8b --on h100x8", capsys)
    assert document["memory"]["fits"] is False
    assert document["nearest"]["words"] in verdict


def test_several_numbers_of_ranks_have_a_page_each(capsys: pytest.CaptureFixture[str]) -> None:
    documents = _json("predict ddp --shape 1b --ranks 8,16 --batch 16 --on h100x8x2", capsys)
    assert [document["case"]["ranks"] for document in documents] == [8, 16]


def test_a_machine_of_ones_own_gives_the_bandwidth_of_its_memory_or_is_asked_for_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = OWN_MACHINE
    (home / "own.toml").write_text(text)
    lines = _lines("predict single --shape 125m --on own.toml", capsys)
    assert any("add gpu.memory_bandwidth_bytes_per_second from its data sheet" in line for line in lines)
    (home / "own.toml").write_text(text.replace("[gpu]", "[gpu]\nmemory_bandwidth_bytes_per_second = 1e12"))
    lines = _lines("predict single --shape 125m --on own.toml", capsys)
    assert any(line.startswith("rests on memory at 80 % [74, 87] of 1,000 GB/s") for line in lines)


OWN_MACHINE = """
schema_version = 1
description = "one ACME 9"
gpus_per_node = 1
host_memory_bytes = 500_000_000_000
host_memory_source = "quote"
[gpu]
name = "ACME 9"
memory_bytes = 84_900_000_000
memory_source = "torch"
[peak_flops_per_second]
source = "ACME 9 data sheet"
bf16 = 400e12
[[levels]]
name = "Ethernet"
bandwidth_bytes_per_second = 3e9
latency_s = 2e-5
source = "quote"
"""


@pytest.mark.parametrize("line", ["fsdp --shape 8b --batch 16", "ddp --shape 8b --batch 16", "hsdp --shape 1b"])
def test_a_page_fits_80_columns_between_words(line: str) -> None:
    strategy, _, shape, *rest = line.split()
    args = CaseArgs(strategy=strategy, shape_name=shape, dimensions={"batch": int(rest[1]) if rest else 16})
    (predicted,) = predicted_cases(args, PredictOptions(on="h100x8x2"))
    written = io.StringIO()
    print_page(
        forecast_page([predicted], 15e12), Console(file=written, width=80, force_terminal=True, color_system=None)
    )
    lines = [line.rstrip() for line in written.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    (step,) = [line for line in lines if line.startswith("step ")]
    assert len(step.split()) == 9  # The word, four figures and their units; the share and its sign come last.


# On this machine, by its history.


def test_a_history_too_short_says_what_is_missing_and_keeps_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _lines("predict ddp --device cpu --ranks 2", capsys)
    assert "step: absent until its rates are measured" in lines
    missing = [line for line in lines if line.startswith("not measured: ")]
    for command in ("matmul", "copies", "collectives", "ddp"):
        assert any(f"`observatory run {command} " in line for line in missing)
    assert any(line.startswith("the rank that holds most needs ") for line in lines)


def test_a_step_that_is_absent_rests_on_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (predicted,) = predicted_cases(CaseArgs(strategy="ddp", device="cpu", ranks=(2,)), PredictOptions())
    with History(f"sqlite:///{home / 'history.sqlite'}") as history:
        add_copies(history, predicted.forecast.case, predicted.forecast.machine)
    lines = _lines(f"predict ddp --device cpu --ranks 2 --store sqlite:///{home / 'history.sqlite'}", capsys)
    assert not any(line.startswith("not measured: the history has no comparable copies run") for line in lines)
    assert not any(line.startswith("rests on ") for line in lines)


def test_without_a_machine_the_step_rests_on_runs_of_this_hardware(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"predict ddp --device cpu --ranks 2 --store sqlite:///{home / 'history.sqlite'}"
    (predicted,) = predicted_cases(CaseArgs(strategy="ddp", device="cpu", ranks=(2,)), PredictOptions())
    hardware = predicted.forecast.machine
    with History(f"sqlite:///{home / 'history.sqlite'}") as history:
        for name, estimates in (
            (
                "matmul",
                [
                    estimate(RUN_MATMUL_FLOPS, [rate, 1.5 * rate], m=str(rows), n=str(rows), k=str(rows))
                    for rows, rate in ((256, 2e9), (1024, 2e10))
                ],
            ),
            ("copies", [estimate(RUN_COPY_BANDWIDTH, [1e10], kind="memory_copy", size="1")]),
            (
                "collectives",
                [
                    estimate(RUN_LINK_LATENCY_SECONDS, [1e-4], collective="all_reduce"),
                    estimate(RUN_LINK_BANDWIDTH, [1e9], collective="all_reduce"),
                ],
            ),
        ):
            case = make_probe(name, version=spec_of(name).version_on("cpu"))
            history.add(
                make_summary(f"{name}-a", case=case, hardware=hardware, estimates=tuple(estimates), scaling=()),
                make_machine(),
            )
    lines = _lines(line, capsys)
    assert lines[0] == f"{hardware}: this machine, by its history"
    assert any(line.endswith(" of the measured ceiling") for line in lines if line.startswith("MFU: "))
    assert "ranges: range of 2 trials in 1 run of matmul; range of 1 trial in 1 run of collectives" in lines
    assert _lines(f"{line} --from-history", capsys) == lines


def test_a_machine_elsewhere_takes_rates_of_the_history_where_its_hardware_was_measured(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{home / 'history.sqlite'}"
    line = f"predict single --shape 125m --ranks 1 --on h100x8 --from-history --store {store}"
    with History(store) as history:
        for name, estimates in (
            ("matmul", [estimate(RUN_MATMUL_FLOPS, [5e14], m="4096", n="4096", k="4096")]),
            ("copies", [estimate(RUN_COPY_BANDWIDTH, [2e12], kind="device_copy", size="1")]),
        ):
            version = spec_of(name).version_on("cuda")
            case = make_probe(name, device="cuda", backend="nccl", precision="bf16", version=version)
            history.add(
                make_summary(
                    f"{name}-a",
                    case=case,
                    hardware="8 x NVIDIA H100 80GB HBM3",
                    estimates=tuple(estimates),
                    scaling=(),
                ),
                make_machine(),
            )
    lines = _lines(line, capsys)
    assert any(
        line.startswith("rests on products at 500 TFLOP/s of 4,096 rows, range of 1 trial in 1 run of matmul")
        for line in lines
    )
    assert any(line.endswith(" of the data sheet's peak") for line in lines)
    (document,) = _json(line, capsys)
    assert document["memory"]["room_bytes"] == 84_943_716_000


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("predict matmul", "matmul is a probe, which trains no model"),
        (
            "predict ddp --on h100x8 --from-history",
            "the history has no run of matmul, copies or collectives on 8 x NVIDIA H100 80GB HBM3",
        ),
        ("predict ddp --on h100x8 --nodes 2", "--nodes and --ranks-per-node cannot be set with it; leave them out"),
        ("predict ddp --on h100x8 --ranks 1000000", "ranks is 1000000; it must be 4096 or less"),
        ("predict ddp --on h100x8 --tokens 15X", "'15X' is not a number of tokens; use for example 15T, 300B or 2e9"),
        ("predict ddp --on h100x8 --tokens 0", "'0' tokens are too few"),
        ("predict ddp --on h100x8 --tokens 1e99", "'1e99' tokens are too many"),
        ("predict ddp --on h100x8 --batch 7", "batch 7 cannot be shared equally by 8 data ranks; --batch 8 would fit"),
        (
            "predict three_d --on h100x8 --option tensor_ranks=3 --option pipeline_ranks=2",
            "make replicas of 6 ranks, which do not divide 8 ranks; --ranks 6 or 12 would fit",
        ),
        ("predict ddp --on nope", 'machine "nope" is unknown; --on takes a100-40x8,'),
    ],
)
def test_nonsense_is_refused_in_one_line(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(line.split()) == MISUSE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1
