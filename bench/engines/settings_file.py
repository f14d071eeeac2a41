"""An engine's settings, in the TOML file that --engine-file names: read and validated field by field."""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from bench.engines.wire.tcp import address_of
from bench.errors import Misuse
from collectors.settings_file import BadSettings, check, read_document

Settings = TypeVar("Settings", bound=msgspec.Struct)
_VARIABLE = Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)", title="a name of letters, digits and _, no digit first")
Environment = dict[Annotated[str, _VARIABLE], str]
"""Variables of the agents and their ranks."""
Interpreter = Annotated[str, Meta(min_length=1, title="the path of an interpreter that has the package")]


def read_settings(path: Path | None, form: type[Settings]) -> Settings:
    """Return the settings of a file; without a file, those of an empty one.

    form: a struct that forbids unknown fields, as do its tables.

    Raises:
        Misuse: the file cannot be read, lacks a field, or has one that is unknown or not allowed.
    """
    try:
        if path is None:
            return check({}, form, "no --engine-file is given")
        return check(read_document(path), form, str(path))
    except BadSettings as error:
        raise Misuse(str(error)) from None


SETUP_FAILED = "setup failed with code"


def setup_lines(setup: str) -> list[str]:
    """Return shell lines that run the user's lines, withhold the shell's input (the key), and exit if they fail."""
    return ["{", ":", setup.rstrip("\n"), "} </dev/null || {", f'  echo "{SETUP_FAILED} $?" >&2', "  exit 1", "}"]


def last_words(printed: Sequence[str]) -> str:
    """Return the last line that a node printed; after a failed setup, also the line before, which shows why."""
    lines = [line.strip() for line in printed if line.strip()]
    if len(lines) > 1 and lines[-1].startswith(SETUP_FAILED):
        return f"{lines[-1]}: {lines[-2]}"
    return lines[-1] if lines else ""


def exporter_words(path: Path | None, exporter: str | None, targets: str | None) -> list[str]:
    """Return an agent's command-line arguments for its exporter and the folder of targets.

    path: the settings file, for messages. exporter: HOST:PORT at which each node serves /metrics. targets: the folder
    for Prometheus's file_sd, shared by all nodes, each of which writes its own file there.

    Raises:
        Misuse: an argument is malformed, or no other node could reach the exporter.
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
