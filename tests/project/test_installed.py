"""What an installed wheel does where there is no checkout: it prints runbooks, and renders only where it is told."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the wheel, as pip unpacks it; without a compiler on the path it takes less time."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
        env={**os.environ, "PATH": str(folder)},
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def _observatory(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = "import bench, sys; assert bench.__path__[0].startswith(sys.argv.pop(1))"
    return subprocess.run(
        [sys.executable, "-P", "-c", f"{own}; from bench.cli.main import main; main()", str(site), *words],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_each_runbook_is_in_the_wheel(site: Path) -> None:
    packed = {path.name: path.read_text() for path in (site / "dashboards" / "runbooks").iterdir()}
    assert packed == {path.name: path.read_text() for path in RUNBOOKS.iterdir()}


def test_a_runbook_is_printed_without_a_checkout(site: Path) -> None:
    ended = _observatory(site, "runbook", "GpuLost")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (RUNBOOKS / "gpu-lost.md").read_text()


def test_rendering_without_a_checkout_writes_nothing_and_asks_for_a_folder(site: Path, tmp_path: Path) -> None:
    before = sorted(path for path in site.rglob("*") if "__pycache__" not in path.parts)
    for words in (("render",), ("render", "--check")):
        ended = _observatory(site, "dashboards", *words)
        assert ended.returncode == 2
        (line,) = ended.stderr.splitlines()
        assert "name a folder with --into" in line
    assert sorted(path for path in site.rglob("*") if "__pycache__" not in path.parts) == before
    assert _observatory(site, "dashboards", "render", "--into", str(tmp_path)).returncode == 0
    assert (tmp_path / "dashboards" / "rendered" / "rules.yaml").is_file()
