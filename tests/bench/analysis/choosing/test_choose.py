"""`observatory choose`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.errors import FINE
from bench.machine.machines.machine_file import read_machine
from bench.session.case_args import node_on
from bench.suite.file import read_suite
from bench.suite.plan import plan_suite

CHOOSE = "choose fsdp hsdp three_d --shape 1b --batch 32 --on h100x8"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, whose folder of runs could not be made."""
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nothing")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def choice_of(line: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main.run([*line.split(), "--format", "json"]) == FINE
    return json.loads(capsys.readouterr().out)


def test_at_most_ten_lines_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(CHOOSE.split()) == FINE
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0].split() == ["strategy", "tokens/s", "memory", "limit", "options"]
    assert 1 <= sum(" ####" in line for line in lines) <= 10
    assert lines[-1].startswith(("no winner between ", "fsdp pays: ", "hsdp pays: ", "three_d pays: "))
    assert any(line.startswith("why the first, ") for line in lines)


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_each_setup_is_counted_once(objective: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = choice_of(f"{CHOOSE} --objective {objective}", capsys)
    worked_out = document["unfit_count"] + document["not_worked_out_count"] + document["predicted_count"]
    worked_out += sum(document["unpredicted"].values())
    assert document["setups"] == sum(each["count"] for each in document["refused"]) + worked_out


def test_a_setup_without_a_predicted_step_is_not_counted_as_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    document = choice_of("choose fsdp --shape 1b --batch 32 --on h100x8 --option offload=true", capsys)
    assert document["predicted_count"] == 0
    assert sum(document["unpredicted"].values()) > 0
    assert "offloaded states" in document["conclusion"]


def test_json_has_what_the_table_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    document = choice_of(CHOOSE, capsys)
    first = document["candidates"][0]
    assert first["step_low_s"] < first["step_s"] < first["step_high_s"]
    assert sum(first["parts_s"].values()) == pytest.approx(first["step_s"])
    assert document["conclusion"]


def test_csv_has_a_row_for_each_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*CHOOSE.split(), "--format", "csv"]) == FINE
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("strategy,options,step_s,")
    assert 3 <= len(rows) <= 10


def test_the_suite_file_has_the_same_cases(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = choice_of(f"{CHOOSE} -o best.toml", capsys)
    suite = read_suite(home / "best.toml")
    plan = plan_suite(suite, node_on(read_machine("h100x8")), "not here")
    planned = [each.case for each in plan.cases]
    assert [case.strategy for case in planned if case is not None] == [
        each["strategy"] for each in document["candidates"]
    ]
    for case, each in zip(planned, document["candidates"], strict=True):
        assert case is not None
        assert dict(case.options) | {"lr_decay_steps": 0} == each["case"]["options"] | {"lr_decay_steps": 0}
        assert (case.shape.batch, case.shape.layers, case.ranks, case.nodes) == (32, 22, 8, 1)


def test_suite_plan_on_the_machine_predicts_the_same_steps(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = choice_of(f"{CHOOSE} -o best.toml", capsys)
    planned = choice_of("suite plan best.toml --on h100x8", capsys)
    steps = [case["step_s"] for case in planned["cases"]]
    assert steps == pytest.approx([each["step_s"] for each in document["candidates"]])
    assert all(case["fits"] for case in planned["cases"])


def test_a_config_file_is_found_from_the_suite(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_hidden_layers": 4,
        "vocab_size": 1024,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
    }
    (home / "config.json").write_text(json.dumps(config))
    (home / "suites").mkdir()
    line = "choose ddp fsdp --shape config.json --sequence 512 --batch 8 --on h100x8 -o suites/best.toml"
    assert main.run(line.split()) == FINE
    capsys.readouterr()
    suite = read_suite(home / "suites" / "best.toml")
    plan = plan_suite(suite, node_on(read_machine("h100x8")), "not here")
    assert {case.shape.width for each in plan.cases if (case := each.case) is not None} == {512}


def test_no_torch_is_imported() -> None:
    code = (
        "import sys; from bench.cli.main import run;"
        f" code = run({CHOOSE.split()!r}); print(code, 'torch' in sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd(), env=_paths())
    assert ended.stderr.split() == ["0", "False"]


def _paths() -> dict[str, str]:
    return {
        "PYTHONPATH": str(Path(main.__file__).parents[2]),
        "PATH": "/usr/bin:/bin",
        "XDG_DATA_HOME": "/proc/nothing",
    }
