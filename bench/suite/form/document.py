"""The document of a suite file: its TOML, in which values of the command line override those of the file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.errors import Misuse
from collectors.settings_file import nearest, read_document, read_toml, shown

_TABLES = ("defaults", "case", "lever")


SHIPPED = Path(__file__).parents[1] / "shipped"
"""Folder of the suites that come with this program."""


def shipped_suites() -> dict[str, Path]:
    """Return the files of the suites that come with this program, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def find_suite(name: str) -> Path:
    """Return the file at this path, or else the file of the shipped suite with this name.

    Raises:
        Misuse: there is neither.
    """
    shipped, path = shipped_suites(), Path(name)
    shipped_path = shipped.get(name.removesuffix(".toml"))
    if path.is_file() or (shipped_path is None and os.path.lexists(path)):
        return path
    if shipped_path is None:
        raise Misuse(
            f'suite "{name}" is neither a file nor a shipped suite{nearest(name, shipped)};'
            f" shipped suites: {', '.join(shipped)}"
        )
    return shipped_path


def read_suite_document(path: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the TOML document of a suite file, after setting these `KEY=VALUE` texts in it.

    Raises:
        BadSettings: the file cannot be read, or is not TOML.
        Misuse: the file is empty, or a text sets nothing.
    """
    document = read_document(path)
    if not document:
        raise Misuse(
            f"{path} is empty; a suite has a line schema_version = 1 and a table for each case, for example [case.ddp]"
        )
    keys = [_set_value(document, text, path) for text in settings]
    for key in keys:
        if keys.count(key) > 1:
            raise Misuse(f"--set {key} is given twice; give it once")
    return document


def _set_value(document: dict[str, Any], text: str, path: Path) -> str:
    """Set the value of a `KEY=VALUE` text in the document; return the key.

    The value is TOML, or a plain text if it is not TOML, so that `case.ddp.precision=bf16` needs no quotes.

    Raises:
        Misuse: the text has another form, or names no table of the document.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise Misuse(f"--set {shown(text)} is not KEY=VALUE, for example defaults.trials=5 or case.ddp.ranks=[1,2]")
    words = key.split(".")
    is_of_table = words[0] in _TABLES
    if not all(words) or len(words) > 5 or (not is_of_table and len(words) > 1) or (is_of_table and len(words) < 2):
        raise Misuse(
            f"--set {key} names no key of a suite; use for example nightly, defaults.trials or"
            " case.ddp.options.bucket_mb"
        )
    table: Any = document
    for depth, word in enumerate(words[:-1]):
        if depth == 1 and words[0] != "defaults" and word not in table:
            raise Misuse(f"--set {key}: {path} has no [{words[0]}.{word}]{nearest(word, table)}")
        table = table.setdefault(word, {})
        if not isinstance(table, dict):
            raise Misuse(
                f"--set {key}: {'.'.join(words[: depth + 1])} is {shown(table)}, not a table; set the key itself"
            )
    if len(words) == 2 and words[0] != "defaults":
        raise Misuse(f"--set {key} is a whole table; name one of its keys, for example {key}.trials")
    for toml in (value, json.dumps(value)):
        with suppress(ValueError):  # Not TOML, or an argument that is not text.
            parsed = read_toml(f"value = {toml}".encode())
            if list(parsed) == ["value"]:
                table[words[-1]] = parsed["value"]
                return key
    raise Misuse(f"--set {key}: {shown(value)} has a character that cannot be printed")
