"""The folder of a suite run, RUNS/suites/ID: create it with the resolved suite, find it, and protect it from others."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.errors import InfrastructureFailed, Misuse
from bench.store.files import read_small
from bench.suite.file import Suite
from bench.suite.ledger import LEDGER, Begun, LedgerWriter, SuiteState, fold, read_ledger
from bench.suite.plan import chosen
from collectors.files import (
    NotOurs,
    in_words,
    is_open_to_others,
    is_ours,
    make_folder,
    replace_file,
    sync_folder,
    user_name,
)

SCHEMA_VERSION = 1
SUITE_RUNS = "suites"
"""Folder within the folder of runs that has a folder for each suite run."""
SUITE = "suite.json"
CANDIDATES_SHOWN = 6


def suite_run_folders(runs: Path, *, of_all_users: bool = False) -> Iterator[Path]:
    """Yield the folders of this user's suite runs that have a ledger, newest first.

    of_all_users: include readable ones of other users.
    """
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        for folder in sorted((runs / SUITE_RUNS).iterdir(), reverse=True):
            with suppress(PermissionError):  # Another user's.
                is_wanted = is_ours(folder) or (of_all_users and not folder.is_symlink())
                if is_wanted and (folder / LEDGER).is_file():
                    yield folder


def begin(suite: Suite, runs: Path, tags: Sequence[str] = ()) -> LedgerWriter:
    """Create the folder of a new suite run; return its ledger, whose first record says that it began.

    runs: the folder of runs. tags: those of --only.

    Raises:
        InfrastructureFailed: the folder cannot be written.
    """
    now_ns = time.time_ns()
    name = f"{datetime.fromtimestamp(now_ns / 1e9, tz=UTC):%Y%m%d-%H%M%S}-{suite.name}-{secrets.token_hex(3)}"
    folder = (runs / SUITE_RUNS / name).absolute()
    try:
        _make_place(folder.parent)
        make_folder(folder, exist_ok=False)
        document = {"schema_version": SCHEMA_VERSION, **_as_document(suite)}
        content = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
        replace_file(folder / SUITE, content)
        for written in (folder.parent, folder.parent.parent):  # The folder itself is synced with its ledger.
            sync_folder(written)
    except OSError as error:
        raise InfrastructureFailed(
            f"suite run {folder} cannot be written: {error.strerror}; choose another place with --runs"
        ) from None
    ledger = LedgerWriter(folder)
    ledger.write(Begun(suite=suite.name, suite_run=name, digest=suite.digest, time_ns=now_ns, tags=tuple(tags)))
    return ledger


def _make_place(suites: Path) -> None:
    """Create the folder of all suite runs if it is missing: users who may add runs may then also add suite runs.

    Raises:
        NotOurs: the path is a link, or the folder belongs to another user and others may write it.
        OSError: the folder cannot be created.
    """
    make_folder(suites.parent)
    with suppress(FileExistsError):
        suites.mkdir(0o750)
        mode = suites.parent.stat().st_mode
        if mode & stat.S_IWGRP and mode & stat.S_ISVTX:
            suites.chmod(stat.S_IMODE(mode))
    status = suites.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise NotOurs(errno.EPERM, f"{suites} is a link, but must be a folder", str(suites))
    if status.st_uid != os.geteuid() and is_open_to_others(status):
        raise NotOurs(
            errno.EPERM, f"{suites} belongs to {user_name(status.st_uid)}, and others may write it", str(suites)
        )


def resume(suite: Suite, runs: Path, suite_run: str | None) -> LedgerWriter:
    """Return the ledger of a suite run to continue.

    suite_run: see `find_to_resume`.

    Raises:
        Misuse: there is none, it belongs to another suite or has other cases, or another process is writing it.
        InfrastructureFailed: the ledger cannot be written.
    """
    return LedgerWriter(find_to_resume(suite, runs, suite_run))


def find_to_resume(suite: Suite, runs: Path, suite_run: str | None) -> Path:
    """Return the folder of a suite run that can be continued.

    suite_run: its id, or the beginning of its id; None for the suite's newest run that has not ended well.

    Raises:
        Misuse: there is none, or it belongs to another suite or has other cases.
    """
    folder = _newest_to_resume(suite, runs) if suite_run is None else find_suite_run(runs, suite_run)
    begun = fold(read_ledger(folder / LEDGER).records).begun
    if begun is None:
        raise Misuse(f"{folder} holds no suite run: its ledger is empty; leave --resume out to begin one")
    if begun.suite != suite.name:
        raise Misuse(
            f"suite run {folder.name} is of suite {begun.suite}, not of {suite.name}; name that one, or its file"
        )
    if begun.digest != suite.digest:
        raise Misuse(
            f"suite run {folder.name} was begun with another {suite.name}: {_difference(folder / SUITE, suite)}; give"
            " the file and the --set that it was begun with, or leave --resume out"
        )
    return folder


def find_suite_run(runs: Path, suite_run: str) -> Path:
    """Return the folder of the suite run with this id, or with the only id that begins with it.

    Raises:
        Misuse: there is none, or several.
    """
    names = [folder.name for folder in suite_run_folders(runs)]
    matches = [name for name in names if name == suite_run] or [name for name in names if name.startswith(suite_run)]
    if not matches:
        newest = ", ".join(names[:CANDIDATES_SHOWN]) or "none"
        raise Misuse(f'suite run "{suite_run}" is unknown; the newest in {runs / SUITE_RUNS} are: {newest}')
    if len(matches) > 1:
        raise Misuse(
            f'suite run "{suite_run}" may be any of {", ".join(matches[:CANDIDATES_SHOWN])}; give more of its name'
        )
    return runs / SUITE_RUNS / matches[0]


def suite_of(suite_run: str) -> str:
    """Return the suite's name, which each id contains: `20261123-010203-smoke-abc123` belongs to `smoke`."""
    return "-".join(suite_run.split("-")[2:-1])


def _newest_to_resume(suite: Suite, runs: Path) -> Path:
    for folder in suite_run_folders(runs):
        if suite_of(folder.name) == suite.name and _is_left(suite, fold(read_ledger(folder / LEDGER).records)):
            return folder
    raise Misuse(
        f"no run of suite {suite.name} in {runs / SUITE_RUNS} is left to resume; leave --resume out to begin one, or"
        " name one (`observatory suite show` lists them)"
    )


def _is_left(suite: Suite, state: SuiteState) -> bool:
    """Whether the suite run has not ended well, or a case that it should run was left out, for example by a budget.

    If its runner died before it wrote a record, there is nothing to continue.
    """
    if state.begun is None:
        return False
    if state.outcome != "done":
        return True
    if state.begun.digest != suite.digest:
        return False
    return any(state.case(name).outcome == "left_out" for name in chosen(suite, state.begun.tags))


def _as_document(suite: Suite) -> dict[str, Any]:
    """Return everything that would be measured, as a document for a file."""
    return msgspec.json.decode(msgspec.json.encode(suite, enc_hook=str), type=dict[str, Any])


def _difference(path: Path, suite: Suite) -> str:
    """Describe how the suite differs from the suite stored in this file."""
    try:
        before = msgspec.json.decode(read_small(path, follows_link=False), type=dict[str, Any])
        old_cases, new_cases = (
            {case["name"]: case for case in document["cases"]} for document in (before, _as_document(suite))
        )
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        return f"{path} cannot show how ({in_words(error)})"
    differences = [f'case "{name}" is no longer in it' for name in old_cases if name not in new_cases]
    differences += [f'case "{name}" is new in it' for name in new_cases if name not in old_cases]
    differences += [
        f'{key} of case "{name}" was {was}, and is {is_now}'
        for name in old_cases
        if name in new_cases
        for key, was, is_now in _differing(old_cases[name], new_cases[name])
    ]
    more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    return f"{differences[0]}{more}" if differences else "its levers or the order of its cases"


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
    """Yield each key with different values, and both values; nested tables yield their own keys."""
    for key in {**before, **now}:
        was, is_now = before.get(key), now.get(key)
        if isinstance(was, dict) and isinstance(is_now, dict):
            yield from _differing(was, is_now)
        elif was != is_now:
            yield key, was, is_now
