"""The scanner of traces, whichever Python's headers it is built with, serves the Python that runs this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hatch_build import MODULE, OPTIONS, SOURCE
from tests.torch_versions.environments import NotToBeHad, find_interpreter

ROOT = Path(__file__).parents[2]
ASK = "import sysconfig; print(sysconfig.get_path('include'))"
SCAN = (
    "import sys; sys.path.insert(0, sys.argv[1]); import _scanner; print(_scanner.scan(b'[]', (), (), 'X') is not None)"
)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_a_scanner_built_for_one_python_serves_another(version: str, tmp_path: Path) -> None:
    try:
        other = find_interpreter(version)
    except NotToBeHad as error:
        pytest.skip(str(error))
    include = subprocess.run([other, "-c", ASK], check=True, capture_output=True, text=True).stdout.strip()
    if not Path(include, "Python.h").exists():
        pytest.skip(f"Python {version} has no headers in {include}")
    source, built = ROOT / SOURCE, tmp_path / MODULE.name
    subprocess.run(["cc", "-shared", *OPTIONS, f"-I{include}", source, "-o", built], check=True)
    ended = subprocess.run([sys.executable, "-c", SCAN, str(tmp_path)], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("True\n", "")
