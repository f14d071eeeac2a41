"""An engine's settings, in the TOML file that --engine-file names: read and validated field by field."""

from __future__ import annotations

import argparse
import ipaddress
import operator
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from bench.engines.wire.tcp import address_of
from bench.errors import Misuse, near_name
from bench.runs.files import read_small
from collectors.toml import BadToml, NoText, TomlLimit, read_toml

FileSettings = TypeVar("FileSettings", bound=msgspec.Struct)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
"""What msgspec calls the types of TOML."""


def read_settings(path: Path | None, form: type[FileSettings], of: str) -> FileSettings:
    """Return the settings of a file; without a file, the defaults.

    form: a struct that forbids unknown fields, as do its tables, which are also structs. of: the engine's name in
    messages, for example "Slurm".

    Raises:
        Misuse: the file cannot be read, lacks a field, or has a field that is unknown, of another type, or unusable for
        a process.
    """
    document: dict[str, Any] = {}
    try:
        if path is not None:
            document = read_toml(read_small(path))
        settings = msgspec.convert(document, form)
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}; name a file of {of}'s settings, in TOML") from None
    except NoText:
        raise Misuse(f"{path} is not UTF-8 text; name a file of {of}'s settings, in TOML") from None
    except TomlLimit as error:
        raise Misuse(f"{path}: {error}; a file of {of}'s settings needs no more") from None
    except BadToml as error:
        raise Misuse(f"{path} is not valid TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise _refusal(path, document, str(error), form, of) from None
    _check_processes(path, document)
    return settings


def _check_processes(path: Path | None, document: dict[str, Any]) -> None:
    """Refuse values with which no process can be started.

    Raises:
        Misuse: a text has a NUL, the interpreter is empty, or a variable's name is invalid.
    """
    for field, value in document.items():
        if any("\0" in text for text in _texts(value)):
            raise Misuse(f"{path}: {field} has a NUL character, which no command can contain; remove it")
    if document.get("python") == "":
        raise Misuse(f"{path}: python is empty; name an interpreter that has the package, or leave it out")
    for name in document.get("environment", ()):
        if _VARIABLE.fullmatch(name) is None:
            raise Misuse(
                f'{path}: environment has "{name}", which is not the name of a variable; use letters, digits and "_",'
                " not beginning with a digit"
            )


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value of TOML."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from _texts(item)


def _refusal(path: Path | None, document: dict[str, Any], text: str, form: type[msgspec.Struct], of: str) -> Misuse:
    """Return msgspec's refusal in this program's words: the allowed fields or values, and the nearest field."""
    if (missing := re.search(r"missing required field `(.*)`", text)) is not None:
        if path is None:
            return Misuse(
                f"{of}'s settings lack {missing[1]}; set it in a file named by --engine-file (docs/clusters.md)"
            )
        return Misuse(f"{path} lacks the field {missing[1]}, which {of} needs (docs/clusters.md)")
    mistaken = re.fullmatch(r"Expected (.*?)(?:, got `\w+`)? - at `\$\.(\w+(?:\.\w+)*)(\[\.\.\.\])?`", text)
    if mistaken is not None:
        expected, field, within = mistaken.groups()
        value: Any = reduce(operator.getitem, field.split("."), document)
        what = "each of its values" if within else "it"
        return Misuse(f"{path}: {field} is {value!r}; {what} may be {re.sub(r'`(.*?)`', _in_words, expected)}")
    unknown = re.search(r"unknown field `(.*?)`(?: - at `\$\.(\w+)`)?", text)
    if unknown is None:
        return Misuse(f"{path}: {text}")
    field, table = unknown.groups()
    allowed = (form if table is None else get_type_hints(form)[table]).__struct_fields__
    near = near_name(field, allowed)
    offer = "" if near is None else f'; did you mean "{near}"?'
    where = "" if table is None else f"{table}: "
    return Misuse(f'{path}: {where}the field "{field}" is unknown{offer}; it may be {", ".join(allowed)}')


def _in_words(types: re.Match[str]) -> str:
    """Return the allowed types of a value; null is left out, because the user has set the field."""
    return " or ".join(_KINDS.get(kind, kind) for kind in types[1].split(" | ") if kind != "null")


SETUP_FAILED = "setup failed with code"


def setup_lines(setup: str) -> list[str]:
    """Return shell lines that run the user's lines without the shell's input (the key), and exit if these fail."""
    return ["{", ":", setup.rstrip("\n"), "} </dev/null || {", f'  echo "{SETUP_FAILED} $?" >&2', "  exit 1", "}"]


def last_words(printed: Sequence[str]) -> str:
    """Return the last line that a node printed; after a failed setup, also the line before, which shows why."""
    lines = [line.strip() for line in printed if line.strip()]
    if len(lines) > 1 and lines[-1].startswith(SETUP_FAILED):
        return f"{lines[-1]}: {lines[-2]}"
    return lines[-1] if lines else ""


def exporter_words(path: Path | None, exporter: str | None, targets: str | None) -> list[str]:
    """Return the arguments of an agent's command line for its exporter and the target list that contains it.

    path: of the settings, for messages. exporter: HOST:PORT at which each node serves /metrics. targets: the file of
    the list (file_sd), the same on each node, because each node adds itself.

    Raises:
        Misuse: they have another form, or no other node could reach the exporter.
    """
    if exporter is None:
        if targets is not None:
            raise Misuse(
                f'{path}: targets is "{targets}", but without an exporter it lists no node; add'
                ' exporter = "0.0.0.0:9464"'
            )
        return []
    try:
        host, _ = address_of(exporter, least_port=0)
    except argparse.ArgumentTypeError as error:
        raise Misuse(f"{path}: exporter: {error}; for example 0.0.0.0:9464") from None
    if targets is None:
        return ["--exporter", exporter]
    if not targets.startswith("/") or not targets.endswith(".json"):
        raise Misuse(
            f'{path}: targets is "{targets}"; give the absolute path of a .json file on a file system that the nodes'
            " share"
        )
    is_loopback = host == "localhost"
    with suppress(ValueError):
        is_loopback |= ipaddress.ip_address(host).is_loopback
    if is_loopback:
        raise Misuse(
            f'{path}: exporter is "{exporter}", which only its own node can reach; for a list of targets, use'
            ' exporter = "0.0.0.0:9464"'
        )
    return ["--exporter", exporter, "--targets", targets]
