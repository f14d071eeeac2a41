"""`observatory analyse` reads what it is told, writes where it is told, and refuses in one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bench.analysis.traces.analyses import ANALYSES
from bench.cli import main
from bench.cli.analyse import NAMES, command
from bench.errors import InfrastructureFailed, Misuse
from bench.store.run_dir import begin
from tests.bench.made.examples import make_case, make_machine, small_case
from tests.bench.made.fake_engine import FakeEngine
from tests.bench.made.fake_runs import measure_fake
from tests.bench.made.small_traces import MS, write_kineto, write_timelines
from tests.collectors.made_nccl_record import MadeRecord

PAGE = Path(__file__).parents[3] / "docs/guides/traces.md"


def _analyse(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def _refusal(*arguments: object) -> str:
    refused = _analyse(*arguments)
    assert isinstance(refused.exception, Misuse | InfrastructureFailed), refused.output
    assert refused.stdout == ""
    return str(refused.exception)


def _light(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, whose last line on standard error says whether it imported torch."""
    code = (
        "import sys; from bench.cli.analyse import command; command(sys.argv[1:], standalone_mode=False);"
        " print('torch' in sys.modules, file=sys.stderr)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )


def test_help_names_each_analysis_without_torch() -> None:
    ended = _light("--help")
    listed = re.findall(r"^  ([a-z-]+)  ", ended.stdout.split("Commands:")[1], re.MULTILINE)
    assert listed == list(NAMES)
    assert ended.stderr.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", [analysis.name for analysis in ANALYSES])
def test_analysing_needs_no_torch(name: str, tmp_path: Path) -> None:
    path = str(write_kineto(tmp_path / "rank0.json", 0, ranks=1))
    sides = 2 if name == "diff" else 1
    ended = _light(name, *[path] * sides)
    assert ended.stderr.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", NAMES)
def test_the_example_in_each_help_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file, rank in (("rank0", 0), ("rank1", 1), ("before", 0), ("after", 0)):
        write_kineto(tmp_path / f"{file}.json.gz", rank)
    for rank in range(2):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(MadeRecord().collective("nccl:all_reduce").json())
    one = command.get_command(click.Context(command), name)
    assert one is not None
    assert one.help is not None
    (example,) = re.findall(r"^ *(observatory analyse .*)$", one.help, re.MULTILINE)
    answer = _analyse(*shlex.split(example)[2:])
    assert answer.exit_code == 0, answer.output
    assert answer.stdout


def test_the_groups_own_example_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        write_kineto(tmp_path / f"rank{rank}.json.gz", rank)
    assert command.help is not None
    (example,) = re.findall(r"^ *(observatory analyse .*)$", command.help, re.MULTILINE)
    assert _analyse(*shlex.split(example)[2:]).exit_code == 0


@pytest.mark.parametrize("line", re.findall(r"^    (observatory analyse .*)$", PAGE.read_text(), re.MULTILINE))
def test_each_line_of_the_page_works(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (".", "traces", "before", "after"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for rank in range(2):
            write_kineto(tmp_path / folder / f"rank{rank}.json.gz", rank)
    words = shlex.split(line)[2:]
    for run in (word for word in words if "-ddp-" in word):
        begun = begin(make_case("ddp"), make_machine(), tmp_path)
        begun.close()
        write_timelines(begun.folder.rename(tmp_path / run), 0, 1)
        words += ["--runs", str(tmp_path)]
    answer = _analyse(*words)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout


def test_a_folder_is_analysed_whole_and_exactly(tmp_path: Path) -> None:
    write_timelines(tmp_path, 0, 1)
    answer = _analyse("kernels", tmp_path, "--format", "json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    assert [trace["rank"] for trace in document["traces"]] == [0, 1]
    cells = [cell for table in document["tables"] for row in table["rows"] for cell in row]
    assert 16 * MS in cells  # Four products of 4 ms: two steps on two ranks.


def test_a_run_is_analysed_by_its_name(tmp_path: Path) -> None:
    run = begin(make_case("ddp", trace_steps=2), make_machine(), tmp_path)
    write_timelines(run.folder, 0, 1)
    run.close()
    answer = _analyse("summary", run.id, "--runs", tmp_path, "--format", "json")
    assert answer.exit_code == 0, answer.output
    assert [trace["rank"] for trace in json.loads(answer.stdout)["traces"]] == [0, 1]


def test_a_rank_that_is_missing_is_said_and_not_refused(tmp_path: Path) -> None:
    write_timelines(tmp_path, 1)
    answer = _analyse("summary", tmp_path, "--format", "json")
    assert answer.exit_code == 0, answer.output
    assert "1 of 2 ranks have no trace (0)" in answer.stderr
    json.loads(answer.stdout)


def test_csv_is_one_table(tmp_path: Path) -> None:
    write_timelines(tmp_path, 0, 1)
    names = [table["name"] for table in json.loads(_analyse("kernels", tmp_path, "--format", "json").stdout)["tables"]]
    answer = _analyse("kernels", tmp_path, "--format", "csv", "--table", names[0])
    assert answer.exit_code == 0, answer.output
    heading, *rows = csv.reader(io.StringIO(answer.stdout))
    assert rows
    assert {len(row) for row in rows} == {len(heading)}


def test_output_goes_into_a_file_and_nowhere_else(tmp_path: Path) -> None:
    (trace,) = write_timelines(tmp_path, 0)
    path = tmp_path / "found.json"
    answer = _analyse("summary", trace, "--format", "json", "--output", path)
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert json.loads(path.read_text())["analysis"] == "summary"


def test_output_that_is_a_trace_is_left_as_it_is(tmp_path: Path) -> None:
    trace = write_kineto(tmp_path / "rank0.json", 0)
    before = trace.read_bytes()
    assert "is one of the traces; choose another name" in _refusal("summary", trace, "--output", trace)
    assert "is one of the traces" in _refusal("merge", trace, "--output", trace)
    assert trace.read_bytes() == before


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (trace,) = write_timelines(tmp_path, 0)
    line = _refusal("summary", trace, "--output", tmp_path / "no" / "found.txt")
    assert line.endswith("cannot be written: No such file or directory; choose another --output")


def test_an_output_that_cannot_be_looked_for_is_one_line(tmp_path: Path) -> None:
    (trace,) = write_timelines(tmp_path, 0)
    line = _refusal("summary", trace, "--output", tmp_path / ("o" * 300))
    assert line.endswith("cannot be written: File name too long; choose another --output")


def test_a_merged_file_beside_its_traces_is_no_trace(tmp_path: Path) -> None:
    write_timelines(tmp_path, 0, 1)
    merged = tmp_path / "merged.json.gz"
    assert _analyse("merge", tmp_path, "--output", merged).exit_code == 0
    answer = _analyse("summary", tmp_path)
    assert answer.exit_code == 0, answer.output
    assert f"{merged}: skipped: it is a drawing by this program" in answer.stdout
    assert "is a drawing by this program, not a trace" in _refusal("summary", merged)


@pytest.mark.parametrize("table", ["step", "kernels"])
def test_what_was_compared_is_said_beside_each_table(table: str, tmp_path: Path) -> None:
    (trace,) = write_timelines(tmp_path, 0)
    answer = _analyse("diff", trace, trace, "--table", table, "--format", "csv")
    assert answer.exit_code == 0, answer.output
    assert "before: the mean of 2 whole steps of 1 rank" in answer.stderr


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_name_that_standard_output_lacks_letters_for_is_written_with_their_numbers(form: str, tmp_path: Path) -> None:
    path = write_kineto(tmp_path / "rank0.json", 0, ranks=1)
    path.write_text(path.read_text().replace("gemm", "gemm_\\u4e2d"))
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "bench", "analyse", "kernels", path, "--table", "kernels", "--format", form],
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "XDG_DATA_HOME": str(tmp_path)},
    )
    assert ended.returncode == 0, ended.stderr
    assert b"gemm_\\u4e2d" in ended.stdout


def test_an_output_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    (trace,) = write_timelines(tmp_path, 0)
    path = tmp_path / "found.json"
    _refusal("summary", trace, "--table", "nothing", "--output", path)
    assert not path.exists()


@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz"])
def test_merge_writes_a_file_that_viewers_open(name: str, tmp_path: Path) -> None:
    write_timelines(tmp_path, 0, 1)
    path = tmp_path / name
    answer = _analyse("merge", tmp_path, "--output", path)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout == f"{path}\n"
    content = path.read_bytes()
    document = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    assert "gemm" in {event["name"] for event in document["traceEvents"]}


def test_the_stages_of_a_run_are_drawn_beside_its_traces(tmp_path: Path) -> None:
    pipeline = small_case("gpipe", ranks=2, trials=1, trace_steps=1)
    engine = FakeEngine(make_machine(), {"gpipe": [[[0.1, 0.1, 0.1]] * 2]})
    (summary,) = measure_fake(tmp_path, engine, pipeline).summaries
    write_timelines(Path(summary.folder), 0, 1)
    path = tmp_path / "merged.json"
    assert _analyse("merge", summary.folder, "--output", path).exit_code == 0
    rows = [
        event["args"]["name"] for event in json.loads(path.read_text())["traceEvents"] if event["name"] == "thread_name"
    ]
    assert "stage 1, in extra steps" in rows


def test_merge_says_what_it_could_not_know(tmp_path: Path) -> None:
    write_timelines(tmp_path, 0)
    answer = _analyse("merge", tmp_path, "--output", tmp_path / "merged.json")
    assert answer.exit_code == 0, answer.output
    assert "a single rank: its waits for other ranks are unknown" in answer.stderr
    assert "1 of 2 ranks have no trace (1)" in answer.stderr


def test_a_critical_path_is_cut_for_people_and_whole_for_programs(tmp_path: Path) -> None:
    (trace,) = write_timelines(tmp_path, 0)
    shown = _analyse("critical-path", trace, "--table", "path", "--limit", 1).stdout
    (table,) = json.loads(_analyse("critical-path", trace, "--table", "path", "--format", "json").stdout)["tables"]
    assert f"{len(table['rows']) - 1} more rows; --limit {len(table['rows'])} shows them" in shown


def test_merge_wants_an_output(tmp_path: Path) -> None:
    refused = _analyse("merge", *write_timelines(tmp_path, 0))
    assert refused.exit_code == 2
    assert "Missing option '--output'" in refused.output


def test_the_difference_of_a_trace_and_itself_is_nothing(tmp_path: Path) -> None:
    (trace,) = write_timelines(tmp_path, 0)
    answer = _analyse("diff", trace, trace, "--format", "json")
    assert answer.exit_code == 0, answer.output
    assert {trace["side"] for trace in json.loads(answer.stdout)["traces"]} == {"before", "after"}


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text("no trace")
    assert str(path) in _refusal("summary", path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "does not exist; name a trace" in _refusal("summary", tmp_path / "rank0.json")


def test_a_trace_must_be_named() -> None:
    refused = _analyse("summary")
    assert refused.exit_code == 2
    assert "Missing argument 'TRACE...'" in refused.output


def test_an_unknown_analysis_is_refused() -> None:
    refused = _analyse("sumary")
    assert refused.exit_code == 2
    assert "No such command 'sumary'" in refused.output


def test_an_analysis_must_be_named() -> None:
    refused = _analyse()
    assert refused.exit_code == 2
    assert "Missing command." in refused.output


def test_an_answer_kept_beside_its_traces_is_no_trace_of_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_timelines(tmp_path, 0, 1)
    kept = tmp_path / "answer.json"
    words = ["analyse", "summary", str(tmp_path), "--format", "json"]
    assert main.run([*words, "--output", str(kept)]) == 0
    capsys.readouterr()
    assert main.run(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(kept.read_text())
    assert said.err.startswith(f"skipped: {kept}: byte 0: ")
