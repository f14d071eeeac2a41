"""HolisticTraceAnalysis 0.5.0, which we compare with, in an environment of its own.

It wants pandas below 3, and brings Jupyter: nothing of it belongs into ours. The environment is made once, in `.hta`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".hta"
SCRIPT = Path(__file__).with_name("hta_script.py")
REQUIREMENTS = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
KEEPS_NANOSECONDS = "HTA_DISABLE_NS_ROUNDING"
"""Its own switch: set to 1, it does not round times to microseconds."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What it says of one rank.

    overlap_percent: of the time in communication, rounded to two decimals by it; None where there is none.
    """

    rank: int
    idle_us: float
    compute_us: float
    non_compute_us: float
    kernel_us: float
    overlap_percent: float | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What it says of traces, and what that took from the first byte read on; its imports are left out.

    peak_bytes: of its own process, without those that it forks to read several traces.
    """

    ranks: list[Figures]
    wall_s: float
    cpu_s: float
    peak_bytes: int


def interpreter() -> Path:
    """The Python of its environment, which is made first where it is not there.

    Raises:
        subprocess.CalledProcessError: the packages cannot be installed.
    """
    python, made = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    if not made.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        # As newer Pythons do of themselves: neither git nor ruff looks into it.
        (ENVIRONMENT / ".gitignore").write_text("*\n")
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        made.touch()
    return python


def command(traces: Sequence[Path]) -> list[str]:
    """What runs it on the traces of ranks 0, 1, ..."""
    # Without -P it would import this file in the library's stead.
    return [str(interpreter()), "-P", str(SCRIPT), *(str(trace) for trace in traces)]


def ask(traces: Sequence[Path], *, keeps_nanoseconds: bool = False) -> Answer:
    """Run it on the traces of ranks 0, 1, ...

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    environment = {**os.environ, KEEPS_NANOSECONDS: str(int(keeps_nanoseconds))}
    ended = subprocess.run(command(traces), stdout=subprocess.PIPE, env=environment, check=True)
    return msgspec.json.decode(ended.stdout, type=Answer)
