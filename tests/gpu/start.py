"""Prepares a machine for the checks and starts them: `make gpu`. Needs a Python with torch, and nothing else.

    python3 -m tests.gpu.start --wheels .gpu-wheels --venv .gpu-venv [words of tests.gpu.first ...]

What is missing is installed from the folder of wheels, without a network, into an environment that sees the system's
packages. Imports nothing of this project, which needs what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

INFRASTRUCTURE = 4
"""The exit code of a machine that lacks something, as of `observatory`."""
ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "tests" / "gpu" / "wheels.txt"
MODULES = {
    "SQLAlchemy": "sqlalchemy",
    "Pygments": "pygments",
    "markdown-it-py": "markdown_it",
    "nvidia-ml-py": "pynvml",
    "pytest-timeout": "pytest_timeout",
}
"""What is imported of a distribution that has another name than its module."""


def main(words: Sequence[str]) -> int:
    """Prepare and start; the exit code."""
    wheels, environment, rest = _told(words)
    if importlib.util.find_spec("torch") is None:
        return _fail(f"{sys.executable} has no torch; choose another by `make gpu PYTHON=...`")
    if "--rehearse" not in rest and "--list" not in rest and not usable_gpus():
        return _fail("no GPU is visible to torch here; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES")
    python = sys.executable
    missing = missing_packages(lambda module: importlib.util.find_spec(module) is not None)
    if missing:
        try:
            python = install(missing, wheels, environment)
        except (OSError, subprocess.CalledProcessError) as error:
            return _fail(f"{', '.join(missing)} cannot be installed from {wheels}: {error}; `make gpu-wheels` fills it")
    return subprocess.run(
        [python, "-P", "-m", "tests.gpu.first", *rest], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    ).returncode


def usable_gpus() -> int:
    """How many torch can use; in a process of its own, for a driver may take its time and memory."""
    text = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1:]
    return int(last[0]) if done.returncode == 0 and last and last[0].isdigit() else 0


def packages() -> list[str]:
    """The distributions that are needed beside torch."""
    lines = (line.partition("#")[0].strip() for line in WHEELS.read_text().splitlines())
    return [line for line in lines if line]


def missing_packages(is_there: Callable[[str], bool]) -> list[str]:
    """Those of the distributions whose module is not there."""
    return [name for name in packages() if not is_there(MODULES.get(name, name.replace("-", "_")))]


def install(missing: Sequence[str], wheels: Path, environment: Path) -> str:
    """Install the distributions into the environment, which is made where there is none; its interpreter.

    Raises:
        OSError: the environment cannot be made.
        subprocess.CalledProcessError: a wheel is not in the folder, or does not fit.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, system_site_packages=True, with_pip=True)
    words = ["install", "--quiet", "--no-index", "--no-deps", "--find-links", str(wheels), *missing]
    subprocess.run([str(python), "-m", "pip", *words], check=True)
    return str(python)


def _told(words: Sequence[str]) -> tuple[Path, Path, list[str]]:
    """The folders of wheels and of the environment, and the words for the checks."""
    folders = {"--wheels": ROOT / ".gpu-wheels", "--venv": ROOT / ".gpu-venv"}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        if word in folders:
            folders[word] = Path(next(left)).absolute()
        else:
            rest.append(word)
    return folders["--wheels"], folders["--venv"], rest


def _fail(text: str) -> int:
    print(f"gpu: {text}", file=sys.stderr)
    return INFRASTRUCTURE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
