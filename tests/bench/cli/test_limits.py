"""What a command says where the system gives it too little: files, threads, folders for temporary files."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

NOBODY = "65534"
_NO_THREADS = (
    "observatory: no more processes or threads can be started; end other processes of this user, or raise the limit"
)


def _said(words: list[str], folder: Path, *, limit: Callable[[], None], prefix: Sequence[str] = ()) -> tuple[int, str]:
    """Run the command in a process of its own, under the limit; return its exit code and its last line."""
    done = subprocess.run(
        [*prefix, sys.executable, "-P", "-m", "bench", *words],
        cwd=folder,
        env={**os.environ, "XDG_DATA_HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr.strip().splitlines()[-1]


def _files_of(limit_bytes: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def _processes_of(limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


@pytest.mark.parametrize("limit_bytes", [8192])
def test_a_store_that_may_not_grow_names_the_limit(limit_bytes: int, tmp_path: Path) -> None:
    words = ["run", "single", "--device", "cpu", "--port", "0", "--store", f"sqlite:///{tmp_path / 'history.sqlite'}"]
    code, line = _said(words, tmp_path, limit=_files_of(limit_bytes))
    assert code == 4
    assert f"this process may write files of up to {limit_bytes:,} bytes; raise the limit (`ulimit -f`)" in line


def test_no_temporary_file_is_no_bug_of_ours(tmp_path: Path) -> None:
    code, line = _said(["doctor"], tmp_path, limit=_files_of(0))
    assert (code, line.partition(";")[0]) == (4, "observatory: no temporary file can be written in TMPDIR or /tmp")


# Root has no limit of processes. Of its rights this user keeps that to read the checkout, wherever it is.
AS_NOBODY = (
    *("setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a user that has no other process")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs util-linux's setpriv, to be another user")
@pytest.mark.parametrize(
    "words", [["run", "single", "--device", "cpu", "--port", "0"], ["serve", "--port", "0", "--results", "none"]]
)
def test_a_process_without_threads_is_not_taken_for_interrupted(words: list[str], tmp_path: Path) -> None:
    code, line = _said(words, tmp_path, limit=_processes_of(1), prefix=AS_NOBODY)
    assert code == 4
    assert line.startswith(_NO_THREADS)
