"""Prepares a machine for the checks and starts them: `make gpu`. Needs a Python with torch, and nothing else.

    python3 -m tests.gpu.start --wheels .gpu-wheels --venv .gpu-venv [words for pytest and tests.gpu.results ...]

What is missing is installed from the folder of wheels, without a network, into an environment that sees the system's
packages. Imports nothing at first that may be missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

FINE, MISUSE, CASE_FAILED, INFRASTRUCTURE, OWN_BUG, INTERRUPTED = 0, 2, 3, 4, 70, 130
CODES = {0: FINE, 1: CASE_FAILED, 2: INTERRUPTED, 3: OWN_BUG, 4: MISUSE, 5: MISUSE}
"""Our exit code for each of pytest's; 5 is that no check has the name that was asked for."""
ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "tests" / "gpu" / "wheels.txt"
FILES = ("first", "speed", "steps", "several")
"""Files of checks, the most telling first; the order in a file is that of running, too."""
CHECK_S = 60.0
"""The limit of each check."""
REHEARSED_LIMITS = 6.0
"""Times the limit of a check in a rehearsal: a laptop has few cores, and they are busy."""
SPARE_S = 3.0
"""In addition to a check's limit: to end what it leaves."""
START_S = 20.0
"""Until the first check begins: torch is loaded and the checks are collected."""
MODULES = {
    "SQLAlchemy": "sqlalchemy",
    "Pygments": "pygments",
    "markdown-it-py": "markdown_it",
    "nvidia-ml-py": "pynvml",
    "pytest-timeout": "pytest_timeout",
}
"""The module of a distribution whose module has another name."""


def main(words: Sequence[str]) -> int:
    """Prepare the machine and run the checks; the exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--wheels", type=Path, default=ROOT / ".gpu-wheels")
    parser.add_argument("--venv", type=Path, default=ROOT / ".gpu-venv")
    folders, rest = parser.parse_known_args(words)
    if (refusal := why_too_short(rest)) is not None:
        _fail(refusal)
        return MISUSE
    if importlib.util.find_spec("torch") is None:
        return _fail(f"{sys.executable} has no torch; choose another Python by `make gpu PYTHON=...`")
    if not {"--rehearse", "--collect-only", "--help"} & set(rest) and not usable_gpus():
        return _fail("no GPU is visible to torch here; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES")
    missing = missing_packages(lambda module: importlib.util.find_spec(module) is not None)
    if missing:
        try:
            python = install(missing, folders.wheels.absolute(), folders.venv.absolute())
        except (OSError, subprocess.CalledProcessError) as error:
            names = ", ".join(missing)
            return _fail(f"{names} cannot be installed from {folders.wheels}: {error}; `make gpu-wheels` fills it")
        os.execv(python, [python, "-m", "tests.gpu.start", *words])
    import pytest

    os.environ["PYTHONPATH"] = str(ROOT)
    files = [str(ROOT / "tests" / "gpu" / f"test_{name}.py") for name in FILES]
    settings = ["-p", "tests.gpu.results", "-p", "no:cacheprovider", "-p", "no:junitxml", "-W", "default"]
    return CODES[int(pytest.main([*settings, "--rootdir", str(ROOT), *rest, *files]))]


def why_too_short(words: Sequence[str]) -> str | None:
    """Return why no check would fit into the budget among pytest's words; None if the budget suffices for one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--budget", default="")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--collect-only", action="store_true")
    options, _ = parser.parse_known_args(words)
    try:
        budget_s = float(options.budget)
    except ValueError:  # None is given, or pytest refuses it.
        return None
    limit_s = CHECK_S * (REHEARSED_LIMITS if options.rehearse else 1)
    least_s = START_S + limit_s + SPARE_S
    if options.collect_only or not 0 < budget_s < least_s:
        return None
    where = " of a rehearsal" if options.rehearse else ""
    return (
        f"a budget of {budget_s:g} s fits no check{where}, which may take {limit_s:g} s; give at least {least_s:g} s"
        f" (BUDGET={least_s:g})"
    )


def usable_gpus() -> int:
    """Return how many GPUs torch can use, asked in another process: a driver may take its time and memory."""
    text = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1:]
    return int(last[0]) if done.returncode == 0 and last and last[0].isdigit() else 0


def packages() -> list[str]:
    """Return the distributions that the checks need besides torch."""
    lines = (line.partition("#")[0].strip() for line in WHEELS.read_text().splitlines())
    return [line for line in lines if line]


def missing_packages(is_installed: Callable[[str], bool]) -> list[str]:
    """Return the distributions whose module is not installed."""
    return [name for name in packages() if not is_installed(MODULES.get(name, name.replace("-", "_")))]


def install(missing: Sequence[str], wheels: Path, environment: Path) -> str:
    """Install the distributions into the environment, which is made where there is none; return its interpreter.

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


def _fail(text: str) -> int:
    print(f"gpu: {text}", file=sys.stderr)
    return INFRASTRUCTURE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
