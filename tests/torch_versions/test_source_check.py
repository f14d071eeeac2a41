"""The source compiles without warnings by the Python that runs this, and a newer Python's check finds what breaks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.torch_versions import source_check
from tests.torch_versions.environments import NotToBeHad, find_interpreter


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import os\nos.getpid()\n", None),
        ("import xml.dom as dom\ndom.minidom\n", None),
        ("def f(:\n", "SyntaxError"),
        ("x = '\\d'\n", "invalid escape sequence"),
        ("import ast\nast.Ham()\n", "this Python has no ast.Ham"),
        ("from os import path, gone\n", "this Python has no os.gone"),
        ("import numpy\nnumpy.gone\n", None),
    ],
)
def test_what_a_python_refuses_or_lacks_is_a_line(text: str, problem: str | None, tmp_path: Path) -> None:
    file = tmp_path / "package" / "file.py"
    file.parent.mkdir()
    file.write_text(text)
    lines = list(source_check.problems(source_check.sources(tmp_path)))
    assert len(lines) == (problem is not None)
    assert all(line.startswith(f"{file}: ") and problem is not None and problem in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("version", [None, "3.14"])
def test_the_source_compiles_and_finds_its_names(version: str | None) -> None:
    try:
        interpreter = find_interpreter(version)
    except NotToBeHad as error:
        pytest.skip(str(error))
    words = [str(interpreter), "-P", source_check.__file__]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
