"""Traces of other programs: ranks that only names tell, pipes, and what else lies in a folder."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.analysis.traces.inputs import TraceSet, find_files, read_sides
from bench.errors import Misuse
from tests.collectors.traces.made.foreign_traces import good_steps, written

ODD = Path(__file__).parents[3] / "../shared/data/odd"


def _read(*names: Path, ranks: tuple[int, ...] = ()) -> TraceSet:
    (side,) = read_sides({"trace": list(map(str, names))}, ranks=ranks, runs_folder=Path("none"), store_url=None)
    return side


def _ranks(side: TraceSet) -> dict[str, int]:
    return {trace.path.name: trace.timeline.rank for trace in side.traces}


def _unranked(folder: Path, *names: str) -> Path:
    for name in names:
        written(folder / name, good_steps(), rank=None)
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ("1760000000-TP-0-DP-0.trace.json", "1760000000-TP-1-DP-0.trace.json"),
        ("1760000000-TP-3-PP-0.trace.json", "1760000000-TP-3-PP-1.trace.json"),
        ("1760000000-TP-0-DP-0.trace.json", "1760000000-TP-1-DP-0.trace.json", "1760000000-TP-2-DP-1.trace.json"),
        ("run_dp0_tp0.json", "run_dp0_tp1.json"),
        ("dp0_pp0_tp0_rank0.1760.pt.trace.json", "dp0_pp0_tp1_rank1.1760.pt.trace.json"),
        ("node0_local_rank0_rank0.json", "node1_local_rank0_rank1.json"),
        ("traceRank0.json", "traceRank1.json"),
        ("RANK-0.json", "RANK-1.json"),
        ("tp_rank0.json", "tp_rank1.json"),
        ("run_local_rank0.json", "run_local_rank1.json"),
    ],
)
def test_ranks_are_read_from_the_names_of_files(tmp_path: Path, names: tuple[str, ...]) -> None:
    side = _read(_unranked(tmp_path, *names))
    assert _ranks(side) == {name: rank for rank, name in enumerate(names)}
    assert not any("its rank" in line for line in side.notices)


@pytest.mark.parametrize(
    "names",
    [
        ("libkineto_trace_380.json", "libkineto_trace_381.json"),
        ("gpu1-a.example_12340.171811.pt.trace.json", "gpu2-a.example_12341.171811.pt.trace.json"),
        ("TP-0-PP-1.json", "TP-1-PP-0.json"),
        ("TP-0-PP-0.json", "TP-0-PP-1.json", "TP-1-PP-0.json", "TP-1-PP-1.json"),
        ("step1.json", "step2.json"),
        ("frank2024_a.json", "frank2024_b.json"),
        ("frank0.json", "frank1.json"),
        ("node0_local_rank0.json", "node1_local_rank0.json"),
        ("dp_rank0_tp_rank1.json", "dp_rank1_tp_rank0.json"),
    ],
)
def test_where_names_tell_no_rank_each_may_be_given(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = _unranked(tmp_path, *names)
    with pytest.raises(Misuse, match=rf"^{len(names)} traces contain no rank.*--rank 0 --rank 1") as refused:
        _read(folder)
    assert "rename" not in str(refused.value)
    side = _read(folder, ranks=tuple(range(5, 5 + len(names))))
    assert _ranks(side) == {name: 5 + number for number, name in enumerate(names)}
    assert not any("its rank" in line for line in side.notices)


@pytest.mark.parametrize("tool", ["dynolog", "host", "sglang"])
def test_the_names_that_three_tools_give_can_be_read(tool: str) -> None:
    if not ODD.exists():
        pytest.skip(f"{ODD} is not there")
    folder = ODD / f"c10_names_{tool}"
    side = _read(folder) if tool == "sglang" else _read(folder, ranks=(0, 1))
    assert list(_ranks(side).values()) == [0, 1]


def test_a_local_rank_is_said_to_be_no_rank(tmp_path: Path) -> None:
    folder = _unranked(tmp_path, "node0_local_rank0.json", "node1_local_rank0.json")
    with pytest.raises(Misuse, match=r"nor do their file names \(a local rank occurs on each node\); give"):
        _read(folder)


def test_a_rank_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="--rank 3 is given twice"):
        _read(_unranked(tmp_path, "a.json", "b.json"), ranks=(3, 3))


@pytest.mark.parametrize(
    "text", ["{}", "[]", "{", "", '{"traceEvents": []}', '[{"ph": "X", "cat": "toplevel", "name": "x", "ts": 1}]']
)
@pytest.mark.parametrize("name", ["package.json", "case.json", "a.json"])
def test_one_foreign_file_does_not_refuse_a_folder(tmp_path: Path, name: str, text: str) -> None:
    written(tmp_path / "rank0.json", good_steps(), rank=0)
    written(tmp_path / "rank1.json", good_steps(), rank=1)
    (tmp_path / name).write_text(text)
    side = _read(tmp_path)
    assert _ranks(side) == {"rank0.json": 0, "rank1.json": 1}
    (line,) = (line for line in side.notices if line.startswith("skipped: "))
    assert name in line


def test_a_pipe_in_a_folder_is_no_trace(tmp_path: Path) -> None:
    written(tmp_path / "rank0.json", good_steps(), rank=0)
    os.mkfifo(tmp_path / "rank1.json")
    os.mkfifo(tmp_path / "case.json")
    assert _ranks(_read(tmp_path)) == {"rank0.json": 0}


# Pipes, in a process and a shell of their own.

SUMMARY = f"'{sys.executable}' -c 'from bench.cli.main import main; main()' analyse"


def _shell(script: str, folder: Path, *, stdin: int = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, stdin=stdin, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A folder with two packed traces."""
    for rank in (0, 1):
        text = written(tmp_path / "text.json", good_steps(), rank=rank).read_bytes()
        (tmp_path / f"rank{rank}.json.gz").write_bytes(gzip.compress(text))
    return tmp_path


@pytest.mark.parametrize(
    "script",
    [
        f"cat rank1.json.gz | {SUMMARY} summary - --format json",
        f"{SUMMARY} summary - --format json < rank1.json.gz",
        f"{SUMMARY} summary <(zcat rank1.json.gz) --format json",
    ],
)
def test_a_trace_may_come_through_a_pipe(packed: Path, script: str) -> None:
    read = _shell(script, packed)
    assert read.returncode == 0, read.stderr
    (trace,) = json.loads(read.stdout)["traces"]
    assert trace["rank"] == 1


def test_two_ranks_and_two_sides_may_come_through_pipes(packed: Path) -> None:
    two = _shell(f"{SUMMARY} summary <(zcat rank0.json.gz) <(zcat rank1.json.gz) --format json", packed)
    assert [trace["rank"] for trace in json.loads(two.stdout)["traces"]] == [0, 1]
    sides = _shell(f"zcat rank0.json.gz | {SUMMARY} diff - <(zcat rank1.json.gz) --format json", packed)
    assert [trace["rank"] for trace in json.loads(sides.stdout)["traces"]] == [0, 1]


def test_a_pipe_that_is_named_twice_is_refused(packed: Path) -> None:
    refused = _shell(f"zcat rank0.json.gz | {SUMMARY} diff - -", packed)
    assert refused.returncode == 2
    assert "can be read only once, but is named twice" in refused.stderr


def test_a_pipe_without_a_trace_is_refused(packed: Path) -> None:
    refused = _shell(f"echo no trace | {SUMMARY} summary -", packed)
    assert refused.returncode == 2
    assert "/dev/stdin: byte 4: it is not JSON" in refused.stderr


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(Misuse, match=r"rank0\.json is a named pipe and may have no writer"):
        find_files([str(tmp_path / "rank0.json")], tmp_path, None)


def test_a_terminal_is_refused_as_standard_input(tmp_path: Path) -> None:
    ours, its = os.openpty()
    try:
        refused = _shell(f"{SUMMARY} summary -", tmp_path, stdin=its)
    finally:
        os.close(ours)
        os.close(its)
    assert refused.returncode == 2
    assert "standard input is a terminal" in refused.stderr
