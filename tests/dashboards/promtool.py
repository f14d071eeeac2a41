"""Prometheus' own tool, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.servers import absent_server


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end; the test skips where there is none."""
    program = shutil.which("promtool")
    if program is None:
        absent_server("promtool is not installed (apt-get install prometheus)")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=240, check=False)
