"""The text of a trace's file, plain or compressed, through a window that moves over it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from collectors.traces.reading.unpacked_text import Damaged, Unpacked, fastest_library

GZIP = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """The file's text, unpacked where its first bytes tell that it is compressed."""
    with path.open("rb") as file:
        is_compressed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        yield cast(BinaryIO, Unpacked(file, fastest_library())) if is_compressed else file


class Window:
    """What of the text is in memory: `text[start:end]`, of which the first byte is the text's byte `at`.

    The byte before `start` is free to be written to. is_last: the text ends where the window does.
    damage: why the text could not be read to its end; None where it could.
    """

    def __init__(self, file: BinaryIO, *, size_bytes: int) -> None:
        self.text = bytearray(size_bytes)
        self.start = self.end = 1
        self.is_last = False
        self.damage: str | None = None
        self._file = file
        self._left_behind = -1
        self.fill()
        if self.text.startswith(BYTE_ORDER_MARK, self.start):
            self.start += len(BYTE_ORDER_MARK)

    @property
    def at(self) -> int:
        """The place of the window's first byte in the text."""
        return self.place(self.start)

    def place(self, index: int) -> int:
        """The place in the text of a byte of the window."""
        return self._left_behind + index

    def fill(self) -> None:
        """Move what is not used up to the front, and read as much as there is room for; grow where there is none."""
        rest = self.text[self.start : self.end]
        if len(rest) + 1 >= len(self.text):
            self.text = bytearray(2 * len(self.text))
        self._left_behind += self.start - 1
        self.text[1 : 1 + len(rest)] = rest
        self.start, self.end = 1, 1 + len(rest)
        with memoryview(self.text) as view:
            while self.end < len(view) and not self.is_last:
                read_bytes = self._read_into(view[self.end :])
                self.end += read_bytes
                self.is_last = not read_bytes

    def _read_into(self, room: memoryview) -> int:
        try:
            return cast(io.RawIOBase, self._file).readinto(room) or 0
        except Damaged as error:
            self.damage = str(error)
            return 0
