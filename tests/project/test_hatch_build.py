"""A package carries the commit that it is built from; a wheel the scanner in C where there is a compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from bench.machine.machine import Machine, read
from hatch_build import MODULE, compile_into
from tests.support.servers import absent_server

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compiler() -> None:
    """The compiler that the hook calls, without which a test skips; in CI it fails."""
    if shutil.which("gcc") is None:
        absent_server("gcc is not installed")


def _wheel(folder: Path, source: Path = ROOT, *targets: str, **environment: str) -> Path:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            *(targets or ["--wheel"]),
            "--no-isolation",
            "--outdir",
            str(folder),
            str(source),
        ],
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


# The commit


def _git(tree: Path, *arguments: str) -> str:
    name = ["-c", "user.name=tester", "-c", "user.email=tester@example.org"]
    ended = subprocess.run(["git", *name, "-C", str(tree), *arguments], check=True, capture_output=True, text=True)
    return ended.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A git tree of its own, with this program as it is now in one commit."""
    tree = tmp_path / "tree"
    for name in ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE"):
        tree.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree)
    for name in ("bench", "collectors", "dashboards", "workloads"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copytree(ROOT / "docs" / "runbooks", tree / "docs" / "runbooks")
    _git(tree, "init", "--quiet")
    _git(tree, "add", "--all")
    _git(tree, "commit", "--quiet", "--message", "first")
    return tree


def _machine_of(wheel: Path, folder: Path) -> Machine:
    """The machine as the program reports it that is installed from the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return read(source=folder)


@pytest.mark.parametrize("is_dirty", [False, True])
def test_a_wheel_carries_the_commit_and_whether_the_tree_was_changed(
    tmp_path: Path, tree: Path, is_dirty: bool
) -> None:
    if is_dirty:
        (tree / "README.md").write_text("changed")
    machine = _machine_of(_wheel(tmp_path / "dist", tree), tmp_path / "site")
    assert (machine.commit, machine.is_dirty) == (_git(tree, "rev-parse", "HEAD"), is_dirty)
    assert "commit" not in machine.absent


def test_a_wheel_made_of_a_source_distribution_carries_the_commit(tmp_path: Path, tree: Path) -> None:
    _wheel(tmp_path / "dist", tree, "--sdist", "--wheel")
    (packed,) = (tmp_path / "dist").glob("*.tar.gz")
    filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Not in Python before 3.11.4.
    shutil.unpack_archive(packed, tmp_path / "unpacked", **filtered)  # type: ignore[arg-type]
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    machine = _machine_of(_wheel(tmp_path / "again", unpacked), tmp_path / "site")
    assert (machine.commit, machine.is_dirty) == (_git(tree, "rev-parse", "HEAD"), False)


def test_a_wheel_of_no_git_tree_says_why_it_has_no_commit(tmp_path: Path, tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    machine = _machine_of(_wheel(tmp_path / "dist", tree), tmp_path / "site")
    assert machine.commit is None
    assert machine.absent["commit"].endswith("is not a git tree, and was not built from one")


def test_an_editable_installation_asks_git_again(tree: Path) -> None:
    first = read(source=tree).commit
    _git(tree, "commit", "--quiet", "--allow-empty", "--message", "second")
    assert read(source=tree).commit == _git(tree, "rev-parse", "HEAD") != first
