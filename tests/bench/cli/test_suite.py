"""`observatory suite`: the plan for people and for programs, the schema, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from rich.console import Console
from rich.text import Text

from bench.cli import main
from bench.cli.completion import COMPLETION_VARIABLE, PROGRAM
from bench.errors import FINE, MISUSE
from bench.suite.file import read_suite
from bench.suite.form.tables import json_schema
from bench.suite.plan import left_out, plan_suite
from bench.suite.plan_report import print_plan
from tests.bench.made.nodes import CPU

FILE = """
schema_version = 1
description = "Some cases."
[defaults]
device = "cpu"
[case.ddp]
ranks = [2, 4]
scaling = "weak"
[case.long]
strategy = "fsdp"
options = { compile = "default" }
tags = ["extra"]
[case.big]
strategy = "fsdp"
needs = { gpus = 8 }
[case.matmul]
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite file, in a folder of its own with a home of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "some.toml"
    path.write_text(FILE)
    (tmp_path / "folder.toml").mkdir()
    return path


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.run(["suite", *words])
    out, error = capsys.readouterr()
    return code, out, error


def test_the_plan_tells_cases_needs_refusals_and_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "plan", "some.toml")
    assert code == FINE
    assert out.startswith("some: Some cases.\n")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["ddp[ranks=2]"][1:3] == ["2", "CPU"]
    assert rows["ddp[ranks=2]"][-4:] == ["3", "x", "20", "unknown"]
    assert rows["long"][-2:] == ["left", "out"]
    assert rows["big"][-2:] == ["cannot", "run"]
    assert "cannot run here: big: it needs 8 GPUs, and 0 can be used here" in out
    assert "left out: long: tagged extra; --only extra or --only all runs it" in out
    assert "3 cases of unknown time: no run is in the history yet" in out


def test_the_plan_is_whole_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "plan", "some.toml", "--format", "json", "--set", "defaults.trials=5")
    assert code == FINE
    plan = json.loads(out)
    assert (plan["suite"], plan["description"], plan["nightly"]) == ("some", "Some cases.", False)
    cases = {case["case"]: case for case in plan["cases"]}
    assert [*cases] == ["ddp[ranks=2]", "ddp[ranks=4]", "long", "big", "matmul"]
    second = cases["ddp[ranks=4]"]
    assert (second["baseline"], second["trials"], second["resolved"]["model"]["batch"]) == ("ddp[ranks=2]", 5, 16)
    assert cases["big"]["refusal"].startswith("it needs 8 GPUs")
    assert cases["long"]["left_out"] == "tagged extra; --only extra or --only all runs it"


def test_the_plan_as_csv_has_a_line_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys, "plan", "some.toml", "--format", "csv", "--only", "all")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["case"] for row in rows] == ["ddp[ranks=2]", "ddp[ranks=4]", "long", "big", "matmul"]
    assert {row["left_out"] for row in rows} == {""}


def test_the_plan_fits_a_terminal_of_80_columns(file: Path) -> None:
    written = io.StringIO()
    console: Console = Console(file=written, width=80, force_terminal=True)
    plan = plan_suite(read_suite(file), CPU, "no run is in the history yet")
    print_plan(plan, left_out(plan), "table", console=console)
    lines = Text.from_ansi(written.getvalue()).plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("ddp[ranks=2]") and "unknown" in line for line in lines)


def test_a_shipped_suite_is_found_by_its_name_with_or_without_its_ending(capsys: pytest.CaptureFixture[str]) -> None:
    plans = [json.loads(_run(capsys, "plan", name, "--format", "json")[1]) for name in ("smoke", "smoke.toml")]
    assert plans[0] == plans[1]


def test_a_file_comes_before_a_shipped_suite(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.rename("smoke.toml")
    assert _run(capsys, "plan", "smoke.toml")[1].startswith("smoke: Some cases.\n")


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "schema")
    assert (code, json.loads(out)) == (FINE, json_schema())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["plan", "smoek"],
            'suite "smoek" is neither a file nor a shipped suite; did you mean "smoke"?; shipped suites: collecti',
        ),
        (["plan", "folder.toml"], "folder.toml: Is a directory; name a TOML file"),
        (["plan", "./nowhere.toml"], 'suite "./nowhere.toml" is neither a file nor a shipped suite'),
        (
            ["plan", "some.toml", "--set", "case.ddp.ranks=[]"],
            "some.toml: case.ddp.ranks is []; it may be a whole number",
        ),
        (["plan", "some.toml", "--only", "fast"], 'some.toml: no case has the tag "fast"; --only takes extra, all'),
        (["plan", "some.toml", "--budget", "soon"], "'soon' is not a time; use for example 90s, 45m, 2h or 1h30m"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    code, out, error = _run(capsys, *words)
    assert (code, out) == (MISUSE, "")
    assert said in error
    assert len(error.splitlines()) == 1


def test_the_shell_completes_shipped_suites() -> None:
    completer = ShellComplete(main.observatory, {}, PROGRAM, COMPLETION_VARIABLE)
    found = [item.value for item in completer.get_completions(["suite", "plan"], "s")]
    assert found == ["scaling", "single_node", "smoke"]
