"""A wheel carries the scanner in C where there is a compiler, and is pure Python where there is none."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from hatch_build import MODULE, compile_into
from tests.support.servers import absent_server

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compiler() -> None:
    """The compiler that the hook calls, without which a test skips; in CI it fails."""
    if shutil.which("gcc") is None:
        absent_server("gcc is not installed")


def _wheel(folder: Path, **environment: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.usefixtures("compiler")
def test_with_a_compiler_the_wheel_is_of_its_platform_and_its_scanner_reads(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path)
    assert wheel.name.endswith(f"-cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    told = "s.__file__, s.IS_BUILT, s.decode_by_scanner(b'[]') is not None"
    reads = f"from collectors.traces.reading import decoders as s; print({told})"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", reads],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )
    assert ended.stdout.split() == [str(tmp_path / "site/collectors/traces/reading/decoders.py"), "True", "True"]


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    wheel = _wheel(tmp_path, PATH=str(nothing))
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert MODULE.as_posix() not in archive.namelist()


def test_what_does_not_compile_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    why_not = compile_into(tmp_path / MODULE.name, tmp_path)
    assert why_not is not None
    assert not (tmp_path / MODULE.name).exists()
