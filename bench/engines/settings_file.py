"""An engine's own settings, in the TOML file that --engine-file names: read, and refused field by field."""

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

Settings = TypeVar("Settings", bound=msgspec.Struct)
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


def read_settings(path: Path | None, form: type[Settings], of: str) -> Settings:
    """Return the settings of a file; those of an empty one where there is none.

    form: a struct that forbids unknown fields, and so do its tables, which are structs, too. of: whose settings they
    are, as "Slurm", in messages.

    Raises:
        Misuse: the file cannot be read, lacks a field, or has one that is unknown, of another type, or for no process.
    """
    given: dict[str, Any] = {}
    try:
        if path is not None:
            given = read_toml(read_small(path))
        settings = msgspec.convert(given, form)
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}; name a file of {of}'s settings, in TOML") from None
    except NoText:
        raise Misuse(f"{path} is no text in UTF-8; name a file of {of}'s settings, in TOML") from None
    except TomlLimit as error:
        raise Misuse(f"{path}: {error}; a file of {of}'s settings needs no more") from None
    except BadToml as error:
        raise Misuse(f"{path} is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise _refusal(path, given, str(error), form, of) from None
    _check_processes(path, given)
    return settings


def _check_processes(path: Path | None, given: dict[str, Any]) -> None:
    """Refuse what no process can be started with.

    Raises:
        Misuse: a text has a NUL, the interpreter is empty, or a variable has no name of one.
    """
    for field, value in given.items():
        if any("\0" in text for text in _texts(value)):
            raise Misuse(f"{path}: {field} has a NUL character, which no command can have; leave it out")
    if given.get("python") == "":
        raise Misuse(f"{path}: python is empty; name an interpreter that has the package, or leave it out")
    for name in given.get("environment", ()):
        if _VARIABLE.fullmatch(name) is None:
            raise Misuse(
                f'{path}: environment has "{name}", which is no name of a variable: letters, digits and "_", and no'
                " digit first"
            )


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value of TOML."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in [*value, *(value.values() if isinstance(value, dict) else ())]:
            yield from _texts(each)


def _refusal(path: Path | None, given: dict[str, Any], text: str, form: type[msgspec.Struct], of: str) -> Misuse:
    """Return msgspec's refusal in our words: what the field may be, and the nearest of these."""
    if (missing := re.search(r"missing required field `(.*)`", text)) is not None:
        if path is None:
            return Misuse(
                f"{of}'s settings lack {missing[1]}; name a file that has it with --engine-file (docs/clusters.md)"
            )
        return Misuse(f"{path} lacks the field {missing[1]}, which {of} needs (docs/clusters.md)")
    mistaken = re.fullmatch(r"Expected (.*?)(?:, got `\w+`)? - at `\$\.(\w+(?:\.\w+)*)(\[\.\.\.\])?`", text)
    if mistaken is not None:
        expected, field, within = mistaken.groups()
        value: Any = reduce(operator.getitem, field.split("."), given)
        what = "each of its values" if within else "it"
        return Misuse(f"{path}: {field} is {value!r}; {what} may be {re.sub(r'`(.*?)`', _in_words, expected)}")
    unknown = re.search(r"unknown field `(.*?)`(?: - at `\$\.(\w+)`)?", text)
    if unknown is None:
        return Misuse(f"{path}: {text}")
    field, table = unknown.groups()
    known = (form if table is None else get_type_hints(form)[table]).__struct_fields__
    near = near_name(field, known)
    offer = "" if near is None else f'; did you mean "{near}"?'
    where = "" if table is None else f"{table}: "
    return Misuse(f'{path}: {where}the field "{field}" is unknown{offer}; it may be {", ".join(known)}')


def _in_words(types: re.Match[str]) -> str:
    """Return what a value may be; that a field may be left out, nobody asks who gives it."""
    return " or ".join(_KINDS.get(kind, kind) for kind in types[1].split(" | ") if kind != "null")


SETUP_FAILED = "setup failed with code"


def setup_lines(setup: str) -> list[str]:
    """Return lines of a shell that run those of the user, without its input (the key), and end it where these fail."""
    return ["{", ":", setup.rstrip("\n"), "} </dev/null || {", f'  echo "{SETUP_FAILED} $?" >&2', "  exit 1", "}"]


def last_words(printed: Sequence[str]) -> str:
    """Return the last line that a node printed, and the one before where that tells why a setup failed."""
    said = [line.strip() for line in printed if line.strip()]
    if len(said) > 1 and said[-1].startswith(SETUP_FAILED):
        return f"{said[-1]}: {said[-2]}"
    return said[-1] if said else ""


def exporter_words(path: Path | None, exporter: str | None, targets: str | None) -> list[str]:
    """Return the words of an agent's command line for its exporter and the folder of targets.

    path: of the settings, for messages. exporter: HOST:PORT at which each node serves /metrics. targets: the
    folder (file_sd), the same on each node, since each has a file of its own in it.

    Raises:
        Misuse: they have another form, or nobody else would find the exporter.
    """
    if exporter is None:
        if targets is not None:
            raise Misuse(
                f'{path}: targets is "{targets}", and without an exporter no node stands in it; add'
                ' exporter = "0.0.0.0:9464"'
            )
        return []
    try:
        host, _ = address_of(exporter, least_port=0)
    except argparse.ArgumentTypeError as error:
        raise Misuse(f"{path}: exporter: {error}; it may be 0.0.0.0:9464") from None
    if targets is None:
        return ["--exporter", exporter]
    if not targets.startswith("/") or targets.endswith(".json"):
        raise Misuse(
            f'{path}: targets is "{targets}"; give the absolute path of a folder on a file system that the nodes share'
        )
    is_loopback = host == "localhost"
    with suppress(ValueError):
        is_loopback |= ipaddress.ip_address(host).is_loopback
    if is_loopback:
        raise Misuse(
            f'{path}: exporter is "{exporter}", where only its own node reaches it; to be a target, give'
            ' exporter = "0.0.0.0:9464"'
        )
    return ["--exporter", exporter, "--targets", targets]
