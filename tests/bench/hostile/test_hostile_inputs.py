"""Whatever a command line asks for, what cannot be is refused in one line, and nothing is left behind."""

from __future__ import annotations

import re
import resource
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.cli.main import COMMANDS, run
from bench.errors import LONGEST_LINE, printable
from tests.bench.hostile import (
    analyse_lines,
    check_lines,
    compare_lines,
    dashboards_lines,
    diagnose_lines,
    node_lines,
    planning_lines,
    run_lines,
    show_lines,
    stack_lines,
    suite_lines,
    suite_run_lines,
)
from tests.bench.hostile.files import make_files
from tests.bench.hostile.line import Line

LINES = [
    *show_lines.LINES,
    *run_lines.LINES,
    *analyse_lines.LINES,
    *check_lines.LINES,
    *compare_lines.LINES,
    *node_lines.LINES,
    *planning_lines.LINES,
    *dashboards_lines.LINES,
    *diagnose_lines.LINES,
    *stack_lines.LINES,
    *suite_lines.LINES,
    *suite_run_lines.LINES,
]
SPARE_BYTES = 4 << 30
"""What a line may take more than this process has: who reads a file without end is told so, and not the kernel."""
CLASS_NAME = re.compile(r"\w+(Error|Exception|Warning)\b|\[Errno|PosixPath|Traceback|<\w+ object|our own bug")


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    make_files(folder)
    return folder


@pytest.fixture(autouse=True)
def _as_a_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the folder, with a home of its own, no GPU, and an end to memory; signals are given back."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_DATA_HOME", str(place / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("GRAFANA_TOKEN", "glsa_not-to-be-seen-anywhere")
    monkeypatch.setenv("NO_PROXY", "*")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + SPARE_BYTES, limits[1]))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    resource.setrlimit(resource.RLIMIT_AS, limits)


def _all_files(place: Path) -> dict[str, tuple[int, int | None]]:
    """Size and time of change of each file and folder; SQLite touches a store that it opens."""
    return {
        str(path): (path.lstat().st_size, None if path.suffix == ".sqlite" else path.lstat().st_mtime_ns)
        for path in place.rglob("*")
    }


@pytest.mark.timeout(60)
@pytest.mark.parametrize("line", LINES, ids=lambda line: ascii(line.words)[1:-1][:80])
def test_what_cannot_be_is_refused_in_one_line(line: Line, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _all_files(place)
    code = run(shlex.split(line.words))
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert code == line.code, said.err
    assert said.out == ""
    assert len(lines) == line.before + 1
    assert lines[-1].startswith("observatory: ")
    assert line.says in lines[-1]
    assert len(lines[-1]) <= LONGEST_LINE
    assert CLASS_NAME.search(said.err) is None
    assert printable(said.err) == said.err
    assert _all_files(place) == before


def test_the_tables_have_each_command_and_no_line_twice() -> None:
    words = [line.words for line in LINES]
    assert {word.split()[0] for word in words} >= set(COMMANDS)
    assert len(set(words)) == len(words) >= 200
