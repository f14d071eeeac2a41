"""The `observatory` command as pyproject.toml names it, and the old files that it reads; no module of ours is named."""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import pkgutil
import sys
import tarfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import click

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WRITTEN_AT = "/srv/observatory"
"""Where the old files lay when they were written."""
SINGLE, DDP, GPIPE, COLLECTIVES, FAILED = RUNS = (
    "20261122-181158-single-39747b",
    "20261122-181206-ddp-5aa1d4",
    "20261122-181217-gpipe-a4539a",
    "20261122-181231-collectives-5657cf",
    "20261122-181240-ddp-b4525a",
)
"""Oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command answered."""

    code: object
    out: str
    err: str


def entry_point() -> str:
    """The installed command's function, as `module:function`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    (name,) = scripts.values()
    assert isinstance(name, str)
    return name


def command_group() -> click.Group:
    """The click group with all commands."""
    module = pkgutil.resolve_name(entry_point().partition(":")[0])
    (group,) = (value for value in vars(module).values() if isinstance(value, click.Group))
    return group


def observatory(*words: str | Path) -> Said:
    """Run a command line in this process."""
    main: Callable[[], object] = pkgutil.resolve_name(entry_point())
    out, err = io.StringIO(), io.StringIO()
    code: object = "main returned, and ends no process"
    with (
        patch.object(sys, "argv", ["observatory", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return Said(code=code, out=out.getvalue(), err=err.getvalue())


def answer(*words: str | Path) -> str:
    """What a command that must succeed prints."""
    said = observatory(*words)
    assert said.code == 0, said.err
    return said.out


def words_of_serve(*words: str | Path) -> list[str]:
    """The command line of a process of its own that serves."""
    module, _, function = entry_point().partition(":")
    code = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); from {module} import {function}; {function}()"
    return [sys.executable, "-P", "-c", code, "serve", *map(str, words)]


def unpack_runs(folder: Path) -> Path:
    """Put the old run folders into this folder; the folder that holds them."""
    with tarfile.open(HERE / "runs.tar.xz") as packed:
        # The filter came with Python 3.11.4; the files are ours.
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(folder)
    return folder / "runs"


def unpack_history(folder: Path) -> Path:
    """Put the old SQLite history into this folder; its file."""
    path = folder / "history.sqlite"
    path.write_bytes(lzma.decompress((HERE / "history.sqlite.xz").read_bytes()))
    return path


def postgresql_dump() -> str:
    """The old PostgreSQL history as SQL."""
    return lzma.decompress((HERE / "history.postgresql.sql.xz").read_bytes()).decode()
