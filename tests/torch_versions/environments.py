"""Environments of their own for other releases of torch and Python, each in a folder of the repository.

The index has torch as a CUDA build, whose GPU libraries are several times as large as torch itself. An environment has
the two of them that a rank on a CPU calls, CUDA's runtime and CUPTI, and stand-ins for the others. All other packages
are those of `constraints.txt`. An environment that stands is used again until something that it is made of changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.torch_versions import stand_ins

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
MADE_OF = (
    Path(__file__),
    Path(stand_ins.__file__),
    CONSTRAINTS,
    ROOT / "pyproject.toml",
    ROOT / "hatch_build.py",
    ROOT / "collectors" / "traces" / "reading" / "scanner",
)
STAMP = "made-of"

RELEASES = {"2.11": "2.11.0", "2.12": "2.12.1", "2.13": "2.13.0", "2.14": "2.14.1", "2.15": "2.15.0"}
"""What is tested of each version of torch that pyproject.toml allows: its last release."""

NEWEST = re.compile(r"^torch \((\d+\.\d+\.\d+)", re.MULTILINE)
"""The line of `pip index versions torch` that has the newest release."""

SETUPTOOLS = "setuptools>=77.0.3,<82"
"""torch asks for it, and Python brings none since 3.12; the bounds are those of torch 2.13 to 2.15 and of 2.11."""

NOT_FOR_TESTS = re.compile(
    r"torch|mypy|mypy_extensions|ast_serialize|librt|ruff|import-linter|scipy-stubs|optype|numpy-typing-compat|types-.*"
)
"""Packages of constraints.txt that check the source; torch has a line of its own."""


class NotToBeHad(RuntimeError):
    """Why there is no such environment here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """torch: its version, as 2.11, or a release that is not in `RELEASES`, as 2.16.0.

    python: that of the interpreter, as 3.12; None for the one that runs this.
    """

    torch: str
    python: str | None = None

    @property
    def release(self) -> str:
        """The release of torch that it has."""
        return RELEASES.get(self.torch, self.torch)

    @property
    def title(self) -> str:
        """Its versions, for people."""
        python = self.python or ".".join(map(str, sys.version_info[:2]))
        return f"torch {self.release}, Python {python}"

    @property
    def folder(self) -> Path:
        """Where it lies; git is told to ignore it."""
        return ROOT / f".venv-torch-{self.torch}{f'-python-{self.python}' if self.python else ''}"

    @property
    def executable(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def stands(self) -> bool:
        """Whether it was made of what the repository has now."""
        stamp = self.folder / STAMP
        return stamp.exists() and stamp.read_text() == self._made_of()

    def make(self) -> None:
        """Make it anew.

        Raises:
            NotToBeHad: there is no such interpreter, the registry has no such package, or no compiler is there.
        """
        interpreter = find_interpreter(self.python)
        shutil.rmtree(self.folder, ignore_errors=True)
        _run([str(interpreter), "-m", "venv", str(self.folder)])
        # Without its dependencies, here and below: they are what would bring the GPU libraries.
        self._install("--no-deps", f"torch==={self.release}")
        libraries = self._site_packages() / "torch" / "lib"
        if toolkit := self._cuda_toolkit():
            self._install(f"cuda-toolkit[cudart,cupti,crt]=={toolkit}")
            try:
                stand_ins.stand_in_for_missing(libraries / "libtorch_python.so")
            except stand_ins.CannotStandIn as error:
                raise NotToBeHad(f"torch's GPU libraries cannot be stood in for: {error}") from error
        self._install("--no-deps", *_packages(), SETUPTOOLS)
        self._install("--no-deps", "--editable", str(ROOT))
        check = f"import torch; assert torch.__version__.split('+')[0] == '{self.release}', torch.__version__"
        _run([str(self.executable), "-c", check])
        (self.folder / STAMP).write_text(self._made_of())

    def size_bytes(self) -> int:
        """Of all its files on the disk."""
        return sum(path.lstat().st_blocks * 512 for path in self.folder.rglob("*"))

    def _install(self, *what: str) -> None:
        _run([str(self.executable), "-m", "pip", "install", "--no-compile", *what])

    def _site_packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def _cuda_toolkit(self) -> str | None:
        """The release of CUDA's toolkit that this build of torch asks for; None where it is built without CUDA."""
        (metadata,) = self._site_packages().glob("torch-*.dist-info/METADATA")
        asked = re.search(r"^Requires-Dist: cuda-toolkit\[.*\]==([\d.]+)", metadata.read_text(), re.MULTILINE)
        return asked[1] if asked else None

    def _made_of(self) -> str:
        digest = hashlib.sha256(self.title.encode())
        for path in MADE_OF:
            for file in sorted(path.rglob("*.*")) if path.is_dir() else [path]:
                digest.update(file.read_bytes())
        return digest.hexdigest()


def newest_torch() -> str:
    """Return the version for `Environment.torch` of the newest release in the index that pip uses here.

    Raises:
        NotToBeHad: pip reads no such release there.
    """
    answer = _run([sys.executable, "-m", "pip", "index", "versions", "torch"])
    match = NEWEST.search(answer)
    if match is None:
        raise NotToBeHad("pip names no release of torch")
    return next((version for version, release in RELEASES.items() if release == match[1]), match[1])


def find_interpreter(version: str | None) -> Path:
    """An interpreter of this version of Python, among those on the PATH and those that pyenv keeps.

    Raises:
        NotToBeHad: there is none.
    """
    if version is None:
        return Path(sys.executable)
    for path in _interpreters(version):
        ended = subprocess.run([path, "-c", "import ensurepip"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if ended.returncode == 0:
            return path
    raise NotToBeHad(f"no interpreter of Python {version} was found on the PATH, nor among pyenv's")


def _interpreters(version: str) -> Iterator[Path]:
    if found := shutil.which(f"python{version}"):  # It may be a shim of pyenv's that leads nowhere.
        yield Path(found)
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    yield from sorted(kept.glob(f"{version}.*/bin/python{version}"))


def _packages() -> list[str]:
    """The lines of constraints.txt that tests need."""
    lines = CONSTRAINTS.read_text().splitlines()
    return [line for line in lines if line and line[0] != "#" and not NOT_FOR_TESTS.fullmatch(line.split("==")[0])]


def _run(command: list[str]) -> str:
    """Run the command and return what it printed."""
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        # pip says what failed, by which constraint of the user's, and hints thereafter that this was not its own fault.
        lines = [line.strip() for line in ended.stdout.splitlines()]
        said = [line for line in lines if "rror" in line or "(constraint)" in line] or lines[-1:]
        raise NotToBeHad(f"`{' '.join(command[1:])[:120]}` ended with {ended.returncode}: {' '.join(said[:2])}")
    return ended.stdout
