"""Reads the text of a trace file, plain or gzip, through a moving window, and repairs its numbers.

If a file is cut or broken, all text before that is still returned; readers such as `gzip.open` discard it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol

# inf and nan: kineto writes them for undefined numbers, for example the bandwidth of a copy that took no time. They are
# not JSON, so a single one would make a whole chunk unreadable.

_NOT_A_NUMBER = rb":\s*[+-]?(?:inf(?:inity)?|nan)\b"
_VALUE = re.compile(_NOT_A_NUMBER, re.IGNORECASE)
_STRING_OR_VALUE = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")|' + _NOT_A_NUMBER, re.IGNORECASE)


def null_for_inf_and_nan(text: bytes) -> bytes:
    """Replace each value that is inf or nan by null; strings with the same letters stay."""
    mended, end = [], 0
    for match in _VALUE.finditer(text):
        if match.start() < end:
            continue  # The line is already mended.
        # Split only this line into strings and values, which is slow; a JSON string ends within its line.
        begin = max(end, text.rfind(b"\n", end, match.start()) + 1)
        mended.append(text[end:begin])
        end = text.find(b"\n", match.end())
        end = len(text) if end < 0 else end
        mended.append(_STRING_OR_VALUE.sub(lambda match: match[1] or b": null", text[begin:end]))
    return b"".join((*mended, text[end:]))


PIECE_BYTES = 1 << 12
"""Size of the pieces in which a file is unpacked; nothing is returned from a piece in which the file breaks."""

GZIP_ALONE = 16 + zlib.MAX_WBITS
"""zlib's wbits for a gzip header."""


class Damaged(ValueError):
    """The file is cut or broken here; all text before it has been returned."""


class Text(Protocol):
    """A text that can be read once, for example an open file."""

    def read(self, at_most_bytes: int, /) -> bytes:
        """Return the next bytes, and none at the end."""


class Unpacked:
    """The text of a gzip file, which can be read once; there may be zeros between its members."""

    def __init__(self, file: Text, library: Any) -> None:
        """library: zlib, or a module with its interface."""
        self._file = file
        self._library = library
        self._member = library.decompressobj(GZIP_ALONE)
        self._rest = b""
        self._is_over = False

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes of the text, and none at its end.

        Raises:
            Damaged: the file continues but cannot be unpacked.
        """
        while not self._is_over:
            packed = self._rest or self._file.read(PIECE_BYTES)
            try:
                text: bytes = self._member.decompress(packed, at_most_bytes)
            except self._library.error as error:
                raise Damaged(f"its compression is broken ({error})") from None
            self._rest = self._member.unconsumed_tail
            if self._member.eof:
                # Continue with the next member, after the zeros.
                rest = self._member.unused_data.lstrip(b"\0")
                while not rest and (piece := self._file.read(PIECE_BYTES)):
                    rest = piece.lstrip(b"\0")
                self._rest, self._is_over = rest, not rest
                self._member = self._library.decompressobj(GZIP_ALONE)
            if text:
                return text
            if not packed and not self._is_over:
                raise Damaged("its compression is cut short")
        return b""


def fastest_library() -> Any:
    """Return isal's zlib if it is installed, which is three times as fast; else zlib."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


GZIP = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


STANDARD_INPUT = Path("/dev/stdin")


@contextmanager
def open_text(path: Path) -> Iterator[Text]:
    """Open the file's text, unpacked if it starts like gzip. The file may be a pipe, which can be read only once."""
    is_piped = path == STANDARD_INPUT and not path.is_file()
    with open(0, "rb", closefd=False) if is_piped else path.open("rb") as file:
        begun = _Begun(file.read(len(GZIP)), file)
        yield Unpacked(begun, fastest_library()) if begun.beginning == GZIP else begun


class _Begun:
    """A file whose start was already read; returns the start again first, since a pipe cannot seek."""

    def __init__(self, beginning: bytes, file: BinaryIO) -> None:
        self.beginning, self._unread, self._file = beginning, beginning, file

    def read(self, at_most_bytes: int) -> bytes:
        """Return the next bytes, and none at the end."""
        piece, self._unread = self._unread[:at_most_bytes], self._unread[at_most_bytes:]
        return piece + self._file.read(at_most_bytes - len(piece))


class TextWindow:
    """The part of a file's text that is in memory; `text[start:]` is unread.

    is_last: the text ends with the window. damage: why the text could not be read to its end; None if it could.
    """

    def __init__(self, file: Text, *, size_bytes: int) -> None:
        self.text = b""
        self.start = 0
        self.is_last = False
        self.damage: str | None = None
        self._file = file
        self._size_bytes = size_bytes
        self._text_at = 0  # The place of the window's first byte in the whole text.
        self.fill()
        if self.text.startswith(BYTE_ORDER_MARK):
            self.start = len(BYTE_ORDER_MARK)

    @property
    def offset(self) -> int:
        """The place of the first unread byte in the whole text."""
        return self._text_at + self.start

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that are unread."""
        return len(self.text) - self.start

    def fill(self) -> None:
        """Drop the read part and fill the window to its size; if the unread part already has this size, double it."""
        if self.unread_bytes >= self._size_bytes:
            self._size_bytes *= 2
        self._text_at += self.start
        pieces, missing_bytes = [self.text[self.start :]], self._size_bytes - self.unread_bytes
        while missing_bytes and not self.is_last:
            try:
                pieces.append(self._file.read(missing_bytes))
            except Damaged as error:
                self.damage = str(error)
                pieces.append(b"")
            missing_bytes -= len(pieces[-1])
            self.is_last = not pieces[-1]
        self.text, self.start = b"".join(pieces), 0


# Drawings: trace files that the observatory itself writes for a viewer.

_BEGINNINGS = tuple(
    b'{"displayTimeUnit":"ns","otherData":{"%b"' % first for first in (b"begins_ns", b"clock_offset_ns")
)
"""Starts of drawings. No profiler writes these keys, and torch's puts spaces around its own."""


def is_own_drawing(path: Path) -> bool:
    """Return whether the file is a drawing of merged ranks, stages or memory, and not the trace of a rank.

    Raises:
        OSError: it cannot be opened.
    """
    with open_text(path) as file:
        try:
            beginning = file.read(max(map(len, _BEGINNINGS)))
        except Damaged:
            return False
    return beginning.startswith(_BEGINNINGS)
