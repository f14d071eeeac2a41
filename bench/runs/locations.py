"""Where runs and their history are kept unless a command line says otherwise."""

from __future__ import annotations

from pathlib import Path

import platformdirs

APPLICATION = "parallel-observatory"
RUNS_VARIABLE = "OBSERVATORY_RUNS"
STORE_VARIABLE = "OBSERVATORY_STORE"
"""Environment variables in place of --runs and --store; others see the command line of a process, and not these."""


def data_folder() -> Path:
    """The folder of everything that we keep."""
    return Path(platformdirs.user_data_dir(APPLICATION))
