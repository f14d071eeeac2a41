"""What failed runs again where an accident may be the cause, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.ci.second_run import MOST, ROOT, listed_as_flaky, touched_files, why_no_second_run

_CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.project.ci.second_run import keep_exit_code
def pytest_sessionfinish(session, exitstatus):
    keep_exit_code(session.config, exitstatus)
"""
_FLAKY = """
from pathlib import Path
def test_a():
    seen = Path("seen")
    before, _ = seen.exists(), seen.touch()
    assert before
def test_b():
    pass
"""
_BROKEN = "def test_a():\n    assert False\n"
_INTERRUPTED = "def test_a():\n    assert False\ndef test_b():\n    raise KeyboardInterrupt\n"


def _tried_twice(folder: Path, text: str, base: str) -> tuple[int, str]:
    """The second run's exit code and words, after pytest has run a file with this text."""
    (folder / "conftest.py").write_text(_CONFTEST.format(root=str(ROOT)))
    (folder / "test_it.py").write_text(text)
    pytest_command = [sys.executable, "-m", "pytest", "-q", "--rootdir=.", "-c", "/dev/null"]
    subprocess.run([*pytest_command, "-o", "cache_dir=.pytest_cache", "."], cwd=folder, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.project.ci.second_run"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "BASE": base, "PYTEST_ADDOPTS": "--rootdir=. -c /dev/null"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (_FLAKY, 0, "flaky: test_it.py::test_a\n"),
        (_BROKEN, 1, "second run, alone, of 1 failed tests"),
        (_INTERRUPTED, 1, "no second run: the run broke off"),
        ("def test_b():\n    pass\n", 1, "no second run: the run broke off, or no test failed"),
    ],
    ids=["flaky", "broken", "interrupted", "sound"],
)
def test_what_passes_alone_is_called_flaky(tmp_path: Path, text: str, code: int, says: str) -> None:
    found, said = _tried_twice(tmp_path, text, "HEAD")
    assert (found, says in said) == (code, True), said
    assert ("flaky: " in said) == (code == 0)


@pytest.mark.parametrize(
    ("failed", "says"),
    [
        (["tests/a.py::test_x[1]"], None),
        (["tests/a.py::test_x", "tests/touched.py::test_y[a/b]"], "tests/touched.py::test_y[a/b] is in a file that"),
        (["tests/a.py::test_listed[2]"], "tests/a.py::test_listed[2] is on the list of flaky tests"),
        (["tests/a.py"], "tests/a.py could not be loaded"),
        ([f"tests/a.py::test_{number}" for number in range(MOST + 1)], f"{MOST + 1} tests failed"),
        ([], "no test failed"),
    ],
)
def test_what_no_accident_explains_runs_once(failed: list[str], says: str | None) -> None:
    listed = listed_as_flaky("Flaky:\n\n- `tests/a.py::test_listed`: waits 1 s for a server.\n")
    reason = why_no_second_run(failed, {"tests/touched.py"}, listed)
    assert reason is None if says is None else says in (reason or "")


def test_the_change_is_what_was_committed_since_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, date in enumerate(("2026-01-01T00:00:00", "2026-01-02T12:00:00", "2026-01-03T00:00:00")):
        (tmp_path / f"{number}.py").touch()
        for command in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "x"],
        ):
            environment = {**os.environ, "GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date}
            subprocess.run(["git", *command], cwd=tmp_path, env=environment, check=True)
    monkeypatch.delenv("BASE", raising=False)
    assert touched_files(tmp_path) == {"1.py", "2.py"}
    monkeypatch.setenv("BASE", "HEAD~1")
    assert touched_files(tmp_path) == {"2.py"}


def test_the_list_of_flaky_tests_names_tests_that_exist() -> None:
    for name in listed_as_flaky((ROOT / "docs/maintaining/testing.md").read_text()):
        path, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text()
