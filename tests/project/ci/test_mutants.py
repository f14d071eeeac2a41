"""`make mutants` breaks the product files of a change, and tests them with the files that import them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.ci import mutants


def test_a_product_file_is_tested_by_the_files_that_import_it() -> None:
    assert "tests/bench/suite/test_ledger.py" in mutants.tests_of(["bench/suite/ledger.py"])
    assert "tests/bench/gate/test_missing.py" in mutants.tests_of(["bench/gate/missing.py"])  # By its package.


def test_a_file_that_no_test_imports_is_tested_by_the_folder_that_mirrors_its_own() -> None:
    assert mutants.tests_of(["bench/gate/figure.py"]) == ["tests/bench/gate"]
    assert mutants.tests_of(["collectors/nowhere.py"]) == ["tests/collectors"]


@pytest.mark.parametrize(
    ("file", "is_so"),
    [("bench/suite/plan.py", True), ("bench/suite/__init__.py", False), ("tests/conftest.py", False)],
)
def test_what_is_broken_is_code_of_the_product(file: str, is_so: bool) -> None:
    assert mutants.is_product(file) == is_so


def test_a_change_is_what_differs_from_its_base_and_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)

    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("kept.py", "changed.py", "removed.py"):
        (tmp_path / name).write_text("before\n")
    git("add", ".")
    git("commit", "-m", "first")
    git("commit", "-m", "second", "--allow-empty")
    assert mutants.changed_files(mutants.usual_base()) == []
    git("checkout", "-b", "branch")
    (tmp_path / "changed.py").write_text("after\n")
    git("commit", "-a", "-m", "third")
    (tmp_path / "removed.py").unlink()
    (tmp_path / "new.py").write_text("new\n")
    assert mutants.changed_files(mutants.usual_base()) == ["changed.py", "new.py"]


def test_sessions_in_one_process_do_not_put_their_temporary_files_into_each_other(tmp_path: Path) -> None:
    """As mutmut runs them; the path of a socket may have only 107 letters."""
    test = "tests/project/ci/test_mutants.py::test_what_is_broken_is_code_of_the_product"
    program = (
        "import os, sys, tempfile, pytest\n"
        "before = tempfile.gettempdir(), os.environ['TMPDIR']\n"
        f"assert pytest.main(['-q', '-p', 'no:cacheprovider', '{test}']) == 0\n"
        "sys.exit((tempfile.gettempdir(), os.environ['TMPDIR']) != before)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], cwd=mutants.ROOT, env=environment, check=True, timeout=120)
