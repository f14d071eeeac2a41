"""The markers gpu, gpu2 and gpu8: which tests are skipped and why, and that pytest collects them without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.programs import ROOT
from tests.gpu.test_first import marked_files
from tests.support.markers import GPUS, why_numbered_otherwise, why_skipped

_MARK = re.compile(r"^(?:@|pytestmark = .*)pytest\.mark\.(gpu\d?)\b", re.MULTILINE)
_PARAMETERS = re.compile(r"marks=.*pytest\.mark\.(gpu\d?)\b")


def _marked_files() -> dict[str, set[str]]:
    """Return the test files with such markers, by path, with their markers."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    marked = {path: {*_MARK.findall(text), *_PARAMETERS.findall(text)} for path, text in texts.items()}
    return {path: markers for path, markers in marked.items() if markers}


@pytest.mark.parametrize(
    ("markers", "gpus", "reason"),
    [
        ((), 0, None),
        (("slow",), 0, None),
        (("gpu",), 1, None),
        (("gpu",), 0, "needs an NVIDIA GPU, and torch can use none"),
        (("gpu2",), 1, "needs 2 NVIDIA GPUs, and torch can use 1"),
        (("gpu2", "gpu"), 2, None),
        (("gpu", "gpu8"), 7, "needs 8 NVIDIA GPUs, and torch can use 7"),
        (("gpu8",), 8, None),
    ],
)
def test_a_test_is_skipped_where_there_are_fewer_gpus_than_it_needs(
    markers: tuple[str, ...], gpus: int, reason: str | None
) -> None:
    assert why_skipped(markers, gpus) == reason


@pytest.fixture(scope="module")
def collected() -> str:
    """Marked tests that pytest collects in a new interpreter; an import error fails it."""
    files = [str(ROOT / path) for path in _marked_files()]
    words = ["-m", " or ".join(GPUS), "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *files],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_every_file_with_a_gpu_test_is_collected_without_a_gpu(collected: str) -> None:
    collected_files = {line.partition("::")[0] for line in collected.splitlines() if "::" in line}
    assert collected_files == set(_marked_files())


@pytest.mark.parametrize("marker", GPUS)
def test_there_are_tests_of_each_marker(marker: str) -> None:
    assert any(marker in markers for markers in _marked_files().values())


def test_the_check_of_marked_tests_runs_every_file_that_has_some() -> None:
    others = {str(ROOT / path) for path in _marked_files() if not path.startswith(("tests/gpu/", "tests/support/"))}
    assert {*marked_files("collectors"), *marked_files("workloads")} == others


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("systemd (1, #threads: 1)\n---\n", None),
        ("bash (48123, #threads: 1)\n---\n", "the driver numbers processes differently from this container"),
        (None, "does not show how processes are numbered: No such file or directory"),
    ],
)
def test_a_kernel_that_does_not_tell_its_numbers_is_a_reason_to_skip(
    text: str | None, said: str | None, tmp_path: Path
) -> None:
    sched = tmp_path / "sched"
    if text is not None:
        sched.write_text(text)
    reason = why_numbered_otherwise(sched)
    assert reason is None if said is None else reason is not None and said in reason
