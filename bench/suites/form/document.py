"""The document of a suite file: its TOML, with values of the command line in place of the file's."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.errors import Misuse, printable
from bench.suites.form.key_types import nearest, shown
from collectors.regular_files import open_regular
from collectors.toml import MOST_BYTES, BadToml, NoText, TomlLimit, read_toml

_WHERE = re.compile(r"(.*) \(at (?:(line \d+)(?:, column \d+)?|(end of document))\)", re.DOTALL)
"""How Python's messages of TOML's grammar end."""
_TWICE = re.compile(r"Cannot declare \((.*)\) twice")
_TABLES = ("defaults", "case", "lever")


SHIPPED = Path(__file__).parents[1] / "shipped"
"""The folder of the suites that come with this program."""


def shipped_suites() -> dict[str, Path]:
    """Return the files of the suites that come with this program, by their names."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def find_suite(name: str) -> Path:
    """Return the file of this path, or else that of the suite of this name that comes with this program.

    Raises:
        Misuse: there is neither.
    """
    shipped, path = shipped_suites(), Path(name)
    found = shipped.get(name.removesuffix(".toml"))
    if path.is_file() or (found is None and os.path.lexists(path)):
        return path
    if found is None:
        raise Misuse(
            f'suite "{name}" is neither a file nor shipped{nearest(name, shipped)}; shipped are: {", ".join(shipped)}'
        )
    return found


def read_document(path: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the TOML document of a file, with these `KEY=VALUE` texts set in it.

    Raises:
        Misuse: there is no such file, it is none, too long or no TOML, or a text sets nothing.
    """
    try:
        with open_regular(path) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}; name a suite file, which is TOML") from None
    if len(data) > MOST_BYTES:
        raise Misuse(f"{path} has more than {MOST_BYTES:,} bytes; a suite file has fewer")
    try:
        document = read_toml(data)
    except NoText:
        raise Misuse(f"{path} is no text in UTF-8; name a suite file, which is TOML") from None
    except TomlLimit as error:
        raise Misuse(f"{path}: {printable(str(error))}; a suite file needs no more") from None
    except BadToml as error:
        raise Misuse(f"{path}: {_wrong_toml(str(error))}") from None
    if not document:
        raise Misuse(f"{path} is empty; a suite has a line schema_version = 1 and a table for each case, as [case.ddp]")
    done: set[str] = set()
    for text in settings:
        key = _set_value(document, text, path)
        if key in done:
            raise Misuse(f"--set {key} is given twice; give it once")
        done.add(key)
    return document


def _wrong_toml(text: str) -> str:
    """Return Python's message with its line first, and in the words of suites for a table that is there twice.

    "Cannot declare ('case', 'ddp') twice (at line 9, column 10)" becomes "line 9: [case.ddp] is there twice; ...".
    """
    found = _WHERE.fullmatch(text)
    what, where = (text, "") if found is None else (found[1], f"{found[2] or found[3]}: ")
    twice = _TWICE.fullmatch(what)
    if twice is not None:
        table = ".".join(re.findall(r"'([^']*)'", twice[1]))
        what = f"[{table}] is there twice; give one of both another name (the strategy is a key of its own)"
    elif what == "Cannot overwrite a value":
        what = "a key is there twice; give it once"
    else:
        what = f"{what}; this is no TOML"
    return printable(where + " ".join(what.split()))


def _set_value(document: dict[str, Any], text: str, path: Path) -> str:
    """Set what `KEY=VALUE` says in the document; return the key.

    The value is TOML, or a text where it is none, so that `case.ddp.precision=bf16` needs no quotes.

    Raises:
        Misuse: it has another form, or names no table of the document.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (key and equals and value):
        raise Misuse(f"--set {shown(text)} is not KEY=VALUE, such as defaults.trials=5 or case.ddp.ranks=[1,2]")
    words = key.split(".")
    is_of_table = words[0] in _TABLES
    if not all(words) or len(words) > 5 or (not is_of_table and len(words) > 1) or (is_of_table and len(words) < 2):
        raise Misuse(
            f"--set {key} names no key of a suite; it may be such as nightly, defaults.trials or"
            " case.ddp.options.bucket_mb"
        )
    table: Any = document
    for depth, word in enumerate(words[:-1]):
        if depth == 1 and words[0] != "defaults" and word not in table:
            raise Misuse(f"--set {key}: {path} has no [{words[0]}.{word}]{nearest(word, table)}")
        table = table.setdefault(word, {})
        if not isinstance(table, dict):
            raise Misuse(f"--set {key}: {'.'.join(words[: depth + 1])} is {shown(table)} and no table; set it itself")
    if len(words) == 2 and words[0] != "defaults":
        raise Misuse(f"--set {key} is a whole table; name a key of it, such as {key}.trials")
    try:
        parsed = read_toml(f"value = {value}".encode())
    except ValueError:  # No TOML, or an argument that is no text.
        parsed = {}
    table[words[-1]] = parsed["value"] if list(parsed) == ["value"] else value
    return key
