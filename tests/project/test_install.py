"""`make demo` says what it installs before it downloads, and hints can be pasted into a shell."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("bench", "collectors", "dashboards", "workloads", "docs", "README.md", "Makefile")
_EXTRAS = re.compile(r"pip install[^\n`\"]*\[[a-z,]+\]'?")


def _said(venv: Path, devices: str) -> str:
    """What `make install` says. The Python that would make the environment fails, so that nothing is downloaded."""
    done = subprocess.run(
        ["make", "--no-print-directory", "install", f"VENV={venv}", "PYTHON=false", f"GPU_DEVICES={devices}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert not venv.exists() or not (venv / ".installed").exists()
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only torch for Linux comes with CUDA's libraries")
def test_without_a_gpu_the_download_is_named_and_the_command_for_the_cpu_build(tmp_path: Path) -> None:
    lines = _said(tmp_path / "venv", "").splitlines()
    assert "this takes 1 to 6 minutes, and pip shows how far it is" in lines[0]
    assert "CUDA's libraries: 2.8 GB" in lines[1]
    pin = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    command = shlex.split(lines[3])
    assert command[:4] == ["false", "-m", "venv", str(tmp_path / "venv")]
    assert command[4:10] == ["&&", f"{tmp_path}/venv/bin/python", "-m", "pip", "install", pin]
    assert lines[4] == f"false -m venv {tmp_path / 'venv'}"


def test_with_a_gpu_or_with_torch_there_is_no_word_of_the_cpu_build(tmp_path: Path) -> None:
    assert "CUDA" not in _said(tmp_path / "venv", "/dev/nvidiactl")
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "torch").mkdir(parents=True)
    assert "CUDA" not in _said(tmp_path / "venv", "")


def test_pip_is_never_silent_where_it_downloads() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\n$(VENV)/.installed:")[2]
    assert "--editable" in recipe
    assert "--quiet" not in recipe


def test_extras_in_hints_are_quoted_for_the_shell() -> None:
    files = [path for name in OURS for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])]
    found = {
        f"{path.relative_to(ROOT)}: {hint[0]}"
        for path in files
        if path.suffix in (".py", ".md") or path.name == "Makefile"
        for hint in _EXTRAS.finditer(path.read_text())
    }
    assert found
    assert {hint for hint in found if not re.search(r"'[^' ]*\[[a-z,]+\]'", hint)} == set()
