"""`--on MACHINE` of `run --dry-run`, `suite plan` and `list`: what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.errors import FINE, MISUSE

RUN = "run fsdp --shape 70b --on h100x8x8 --ranks 64 --batch 64 --precision bf16 --option checkpoint=full --dry-run"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, whose folder of runs could not be made."""
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nothing")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _json(line: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main.run([*line.split(), "--format", "json"]) == FINE
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_says_memory_bytes_step_and_what_they_rest_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(RUN.split()) == FINE
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0].startswith("h100x8x8: 8 nodes of 8 x NVIDIA H100 80GB HBM3, 79.1 GiB each by torch")
    starts = (
        "the rank that holds most needs",
        "it fits",
        "all_gather",
        "expected step: ",
        "expected MFU: ",
        "rests on ",
    )
    assert [start for start in starts if not any(line.startswith(start) for line in lines)] == []
    assert lines[-1] == "nothing was started, and nothing written"


def test_a_dry_run_as_json_has_the_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    (document,) = _json(RUN, capsys)
    on = document["on"]
    assert document["case"]["nodes"] == 8
    assert sum(on["memory"]["parts"].values()) == on["memory"]["total_bytes"] < on["memory"]["room_bytes"]
    assert {row["level"] for row in on["traffic"]} == {"InfiniBand"}
    assert 0 < on["mfu"] < 1
    assert on["step_s"] > on["step"]["compute"]["forward_s"]


def test_what_does_not_fit_is_a_line_and_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "ddp", "--shape", "8b", "--on", "h100x8", "--dry-run"]) == FINE
    out = capsys.readouterr().out
    assert "it does not fit: parameters, gradients and optimizer state alone: 120 GiB of the 79.1 GiB" in out


def test_a_machine_has_a_default_model_and_all_its_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "ddp", "--on", "h100x8", "--dry-run"]) == FINE
    assert "\nddp on 8: cuda, nccl, bf16" in capsys.readouterr().out


def test_a_curve_has_a_prediction_each(capsys: pytest.CaptureFixture[str]) -> None:
    documents = _json("run ddp --shape 1b --ranks 8,16 --batch 16 --on h100x8x2 --dry-run", capsys)
    assert [document["on"]["traffic"][0]["level"] for document in documents] == ["NVLink", "InfiniBand"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run ddp --on h100x8", "--on plans for another machine, on which nothing can run; add --dry-run"),
        ("run ddp --on nope --dry-run", 'machine "nope" is unknown; --on takes a100-40x8,'),
        ("run ddp --on h100x8 --dry-run --ranks 9", "ranks is 9, and h100x8 has 8 GPUs; use --ranks 8 or fewer"),
        ("run ddp --on h100x8 --dry-run --nodes 2", "--nodes cannot be set with it; leave them out"),
        ("run ddp --on h100x8 --dry-run --device cpu", "device is cpu, and --on h100x8 plans for its GPUs"),
        ("run dpp --on h100x8 --dry-run", 'strategy "dpp" is unknown; did you mean "ddp"?'),
        ("suite plan smoke --on nope", 'machine "nope" is unknown'),
        ("suite plan smoke --on h100x8 --nodes 2", "--ranks-per-node cannot be set with it; leave them out"),
        ("suite plan smoke --on h100x8 --engine local", "--ranks-per-node cannot be set with it; leave them out"),
        ("list --on nope", 'machine "nope" is unknown'),
        ("list --on h100x8 --options", "leave one of the two out"),
    ],
)
def test_nonsense_is_refused_in_one_line(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(line.split()) == MISUSE
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_suite_is_planned_for_a_machine_with_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    document = _json("suite plan smoke --on h100x8", capsys)
    cases = {row["case"]: row for row in document["cases"]}
    assert document["machine"] == "h100x8"
    assert cases["ddp"]["fits"] is True
    assert cases["ddp"]["on"]["memory"]["room_bytes"] > 80e9


def test_a_suite_says_which_cases_need_more_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.toml").write_text(
        'schema_version = 1\n[defaults]\ndevice = "cuda"\nneeds = { gpus = 8 }\n[case.ddp]\nranks = [8, 16]\n'
        'shape = "8b"\nbatch = 16\n'
    )
    assert main.run(["suite", "plan", "own.toml", "--on", "h100x8"]) == FINE
    out = capsys.readouterr().out
    assert "cannot run there: ddp[ranks=16]: it needs 2 nodes, and h100x8 has 1" in out
    assert "ddp[ranks=8]: it does not fit: parameters, gradients and optimizer state alone" in out


def test_list_shows_the_largest_preset_of_a_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["strategy"]: row for row in _json("list --on h100x8", capsys)}
    assert rows["single"]["preset"] == "1b"
    assert rows["matmul"]["preset"] is None
    assert main.run(["list", "ddp", "--on", "h100x8"]) == FINE
    assert "largest preset" in capsys.readouterr().out


def test_the_answer_in_the_readme_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[4] / "README.md").read_text()
    section = text.partition("## Before you have the GPUs")[2].partition("\n## ")[0]
    command, *shown = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    assert command == f"observatory {RUN}"
    assert main.run(command.split()[1:]) == FINE
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert len(shown) >= 5
    assert [line for line in shown if line not in printed] == []
