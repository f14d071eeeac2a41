"""Every module of the project can be imported, and imports nothing that this release of Python or torch deprecates.

pytest collects it where it is named, as `make test-python` does.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSES = ("bench", "collectors", "dashboards", "workloads")


def _modules(house: str) -> list[str]:
    paths = sorted((ROOT / house).rglob("*.py"))
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return [name.removesuffix(".__init__") for name in names if not name.endswith(".__main__")]


@pytest.mark.parametrize("house", HOUSES)
def test_all_modules_can_be_imported(house: str) -> None:
    code = f"import importlib\nfor name in {_modules(house)!r}:\n    importlib.import_module(name)"
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
