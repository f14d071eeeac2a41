"""Where runs and their history are kept unless told otherwise: the platform's folder for a user's data."""

from __future__ import annotations

from pathlib import Path

import click
import platformdirs

APPLICATION = "parallel-observatory"


def data_folder() -> Path:
    """The folder of everything that we keep."""
    return Path(platformdirs.user_data_dir(APPLICATION))


RUNS = click.option(
    "--runs",
    "runs_folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=lambda: data_folder() / "runs",
    show_default="the user's data folder",
    help="Folder of the run folders.",
)
STORE = click.option(
    "--store",
    "store_url",
    metavar="URL",
    show_default="SQLite in the user's data folder",
    help="History: an SQLAlchemy URL, such as sqlite:////data/history.sqlite or postgresql://host/name.",
)
