"""Reads sample logs: whole, or what was appended since the last look, or only what is not old by now."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from collectors.catalogue.memory import ALLOCATED_BYTES
from collectors.sample_log import SCHEMA_VERSION, Record


class NewerSchema(ValueError):
    """A log was written by a newer version of this program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a log holds, and what of it could not be read."""

    records: list[Record]
    left_out: list[str] = field(default_factory=list)


def read(path: Path) -> Contents:
    """All records of a log; lines that cannot be read are left out and named.

    Raises:
        NewerSchema: a newer version wrote the log.
        OSError: the file cannot be read.
    """
    follower = Follower(path)
    records = follower.new()
    if follower.unfinished:
        follower.left_out.append(f"{path.name}: the last line is cut off; {follower.unfinished} bytes left out")
    return Contents(records=records, left_out=follower.left_out)


class Follower:
    """Reads what was appended to a log since the last look. A file that is not there yet is empty."""

    def __init__(self, path: Path) -> None:
        self.left_out: list[str] = []
        self._path = path
        self._decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
        self._position = 0
        self._line = 0
        self._rest = b""

    @property
    def unfinished(self) -> int:
        """Bytes after the last whole line."""
        return len(self._rest)

    def new(self) -> list[Record]:
        """The records of all lines that were finished since the last call.

        Raises:
            NewerSchema: a newer version wrote the log.
        """
        return [record for number, line in self._lines() if (record := self._decode(number, line)) is not None]

    def newest(self) -> list[Record]:
        """As `new`, but of the readings of one mark, and of what was polled, only the last, with the changes since.

        The others are not decoded, which makes it several times cheaper for who wants the present only.

        Raises:
            NewerSchema: a newer version wrote the log.
        """
        lines = self._lines()
        seen: set[tuple[bytes, ...]] = set()
        wanted: list[tuple[int, bytes]] = []
        for number, line in reversed(lines):
            kind = _kind(line)
            if kind in seen or (kind == _CHANGED and _POLLED in seen):
                continue
            if kind not in (None, _CHANGED):
                seen.add(kind)
            wanted.append((number, line))
        return [record for number, line in reversed(wanted) if (record := self._decode(number, line)) is not None]

    def _lines(self) -> list[tuple[int, bytes]]:
        """What was appended since the last call, as whole lines with their numbers."""
        if not self._path.is_file():  # A device, too, which may have no end.
            return []
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._position:
                self.left_out.append(f"{self._path.name}: it became shorter, and is read from its beginning")
                self._position, self._line, self._rest = 0, 0, b""
            file.seek(self._position)
            data = file.read()
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        numbered = list(enumerate(lines, start=self._line + 1))
        self._line += len(lines)
        return numbered

    def _decode(self, number: int, line: bytes) -> Record | None:
        if not line:
            return None
        try:
            record: Record = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._refuse_newer(line)
            self.left_out.append(f"{self._path.name}: line {number} cannot be read and is left out ({error})")
            return None
        self._refuse_newer(line)
        return record

    def _refuse_newer(self, line: bytes) -> None:
        if b'"schema_version"' not in line:
            return
        try:
            version = msgspec.json.decode(line, type=_Versioned).schema_version
        except msgspec.DecodeError:
            return
        if version > SCHEMA_VERSION:
            raise NewerSchema(
                f"{self._path}: written with schema version {version}, this program reads up to {SCHEMA_VERSION};"
                " use the version that wrote it"
            )


class _Versioned(msgspec.Struct):
    schema_version: int


_REPLACED = re.compile(rb'\{"type":"(reading|polled|changed)",(?:"trial":\d+,)?"time_ns":\d+,(?:"mark":"([a-z_]+)",)?')
"""How `SampleLog` begins a line that a later one makes old: of its kind, and changes by `polled`."""
_POLLED = (b"polled", b"")
_CHANGED = (b"changed", b"")
_ACCOUNT = f'"{ALLOCATED_BYTES.name}"'.encode()
"""In a reading that has an account of memory, which not each has: one without it makes none old that has it."""


def _kind(line: bytes) -> tuple[bytes, ...] | None:
    """What a later line must share to make this one old; None for a line that must be decoded."""
    found = _REPLACED.match(line)
    # All end with the list of values; inside of it nothing does, so a line that was cut off is told by its end.
    if found is None or not line.endswith(b"]}"):
        return None
    kind = found.groups(b"")
    return (*kind, _ACCOUNT) if _ACCOUNT in line else kind
