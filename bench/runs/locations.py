"""Default places of runs and of their history, for when the command line names none."""

from __future__ import annotations

from pathlib import Path

import platformdirs

APPLICATION = "parallel-observatory"
RUNS_VARIABLE = "OBSERVATORY_RUNS"
STORE_VARIABLE = "OBSERVATORY_STORE"
"""Environment variables in place of --runs and --store: unlike a command line, other users cannot read them."""


def data_folder() -> Path:
    """Return the folder of everything that we keep."""
    return Path(platformdirs.user_data_dir(APPLICATION))
