"""Reads the text of a trace file, plain or gzip, through a window that moves over it.

If a file is cut or broken, all text before that is still given; readers such as `gzip.open` throw away what they
unpacked when they meet a cut.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


# inf and nan: kineto writes them where a number is undefined, such as the bandwidth of a copy that took no time.
# They are not JSON, so a single one would make a whole chunk unreadable.

_NO_NUMBER = re.compile(rb'":([ \t]*[+-]?(?:[Ii]nf(?:inity)?|nan|NaN))(?=[\s,}])')
_NULL = b"null"


def write_null(text: bytearray, start: int, end: int) -> bool:
    """Overwrite each inf and nan in `text[start:end]` with null; return False if there was none, or one is left.

    The text keeps its length, by spaces, and its strings stay as they are. start: outside of a string.
    Not possible where null does not fit, as for three letters without a space before them, or where two backslashes
    stand together, since a string may then end behind them.
    """
    if text.find(b"\\\\", start, end) >= 0:
        return False
    counted_to, is_inside, is_changed = start, False, False
    # A match lies inside a string if an odd number of unescaped quotation marks precedes its value.
    for match in list(_NO_NUMBER.finditer(text, start, end)):
        begin, behind = match.span(1)
        quotes = text.count(b'"', counted_to, begin) - text.count(b'\\"', counted_to, begin)
        counted_to, is_inside = begin, is_inside != bool(quotes % 2)
        if is_inside:
            continue
        if behind - begin < len(_NULL):
            return False
        text[begin:behind] = _NULL.ljust(behind - begin)
        is_changed = True
    return is_changed


PIECE_BYTES = 1 << 12
"""This much of the file is unpacked at once; from a piece in which the file breaks nothing is given."""

GZIP_ALONE = 16 + zlib.MAX_WBITS
"""zlib's wbits for a gzip header."""


class Damaged(ValueError):
    """The file is cut or broken here; all text before was given."""


class Unpacked(io.RawIOBase):
    """The text of a gzip file, to be read once; its members may have zeros between them."""

    def __init__(self, file: BinaryIO, library: Any) -> None:
        """library: zlib, or a module with its interface."""
        self._file = file
        self._library = library
        self._member = library.decompressobj(GZIP_ALONE)
        self._rest = b""
        self._is_over = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, room: WriteableBuffer) -> int:
        """Fill the room with text and return the number of bytes; 0 at the end.

        Raises:
            Damaged: the file goes on but cannot be unpacked.
        """
        with memoryview(room) as view:
            text = self._some(view.nbytes)
            view[: len(text)] = text
        return len(text)

    def _some(self, at_most_bytes: int) -> bytes:
        while not self._is_over:
            packed = self._rest or self._file.read(PIECE_BYTES)
            try:
                text: bytes = self._member.decompress(packed, at_most_bytes)
            except self._library.error as error:
                raise Damaged(f"its compression is broken ({error})") from None
            self._rest = self._member.unconsumed_tail
            if self._member.eof:
                self._go_to_next_member()
            if text:
                return text
            if not packed and not self._is_over:
                raise Damaged("its compression is cut short")
        return b""

    def _go_to_next_member(self) -> None:
        rest = self._member.unused_data.lstrip(b"\0")
        while not rest and (piece := self._file.read(PIECE_BYTES)):
            rest = piece.lstrip(b"\0")
        self._rest, self._is_over = rest, not rest
        self._member = self._library.decompressobj(GZIP_ALONE)


def fastest_library() -> Any:
    """Return isal's zlib, which is three times as fast, if it is installed; else zlib."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


GZIP = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open the file's text; unpack it if its first bytes are those of gzip."""
    with path.open("rb") as file:
        is_compressed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        yield cast(BinaryIO, Unpacked(file, fastest_library())) if is_compressed else file


class Window:
    """The part of a file's text that is in memory: `text[start:end]`, which begins at byte `at` of the whole text.

    The byte before `start` may be overwritten. is_last: the text ends where the window does.
    damage: why the text could not be read to its end; None if it could.
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
        """The place of the window's first byte in the whole text."""
        return self.place(self.start)

    def place(self, index: int) -> int:
        """Return the place in the whole text of a byte of the buffer."""
        return self._left_behind + index

    def fill(self) -> None:
        """Move the unread part to the front and fill the rest of the buffer; double the buffer if it is full."""
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


# Drawings: trace files that the observatory itself wrote for a viewer.

_BEGINNINGS = tuple(
    b'{"displayTimeUnit":"ns","otherData":{"%b"' % first for first in (b"begins_ns", b"clock_offset_ns")
)
"""How a drawing begins. No profiler writes these keys; torch's puts spaces between its own."""


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
