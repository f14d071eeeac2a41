"""A probe runs through the whole house: asked for, measured by real ranks, judged, kept, shown and exchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import FINE, MISUSE
from bench.report.nccl_tests.reader import read

SWEEP = ["--ranks", "2", "--trials", "1", "--steps", "2", "--warm-up", "1", "--port", "0"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints; it ends well."""
    capsys.readouterr()
    assert main.run(arguments) == FINE
    return capsys.readouterr().out


def test_collectives_are_measured_kept_exported_and_compared(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--option", "max_bytes=65536", "--option", "collectives=all_reduce,broadcast"]
    table = shown(capsys, "run", "collectives", *SWEEP, *options)
    sizes = ("1024", "4096", "16384", "65536")
    assert [line.split()[:2] for line in table.splitlines() if line.startswith(("all_reduce ", "broadcast "))] == [
        [name, size] for name in ("all_reduce", "broadcast") for size in sizes
    ]
    (run,) = json.loads(shown(capsys, "show", "--format", "json"))
    assert run["outcome"] == "done"
    files = shown(capsys, "show", run["run"], "--export", str(tmp_path / "theirs")).split()
    assert [Path(file).name for file in files] == ["all_reduce_perf.json", "broadcast_perf.json"]
    imported = read(Path(files[0]))
    assert (imported.ranks, [row.size_bytes for row in imported.rows]) == (2, [int(size) for size in sizes])
    beside = json.loads(shown(capsys, "show", "--import", files[0], "--format", "json"))
    assert [row["own_time_ratio"] for row in beside["rows"]] == pytest.approx([1.0] * 4, rel=0.01)


@pytest.mark.slow
def test_algorithms_count_what_their_law_expects(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, "run", "all_reduce", *SWEEP, "--option", "max_bytes=1024")
    assert "predicted:" not in table  # A count that differs has the predicted one behind it.
    rows = {line.split()[0]: line.split() for line in table.splitlines() if " 1024 " in line}
    assert list(rows) == [
        "library",
        "sequential",
        "ring",
        "all_to_all",
        "recursive_doubling",
        "recursive_halving",
        "parameter_server",
    ]
    assert rows["ring"][-4:-1] == ["2", "512", "2,048"]  # One trial: no figure has an interval.


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "run collectives --shape 1b --batch 4",
            "observatory: collectives is a probe and trains no model: --shape, --batch cannot be set;"
            " `observatory list collectives` shows what it takes",
        ),
        ("run matmul --with-baseline weak", "matmul is a probe and trains no model: --with-baseline cannot be set"),
        ("run all_reduce --ranks 3 --option algorithms=recursive_doubling", "needs a power of two of ranks"),
        ("run collectives --option max_bytes=1000000000000", "collectives: buffers of 2 ranks take"),
        ("run single --shape 70b", "single: parameters, gradients and optimizer state of 1 rank take 1,128.9 GB"),
        ("show --export folder", "--export needs a run"),
        ("show --import nowhere.json", "nowhere.json"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: str, line: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments.split()) == MISUSE
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said
