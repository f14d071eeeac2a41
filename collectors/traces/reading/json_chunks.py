"""The text of a compressed file, as far as it can be unpacked: all that stands before a cut or a break is given first.

Readers such as `gzip.open` throw away what they unpacked when they come upon a cut.
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


# What kineto writes where a number should be and none is, such as the bandwidth of a copy that took no time.
#
# C++ prints it as `inf` or `nan`, which is no JSON: one of them would spoil all that stands around it.

_NO_NUMBER = re.compile(rb'":([ \t]*[+-]?(?:[Ii]nf(?:inity)?|nan|NaN))(?=[\s,}])')
_NULL = b"null"


def write_null(text: bytearray, start: int, end: int) -> bool:
    """Write null, and spaces, over each of them in `text[start:end]`; false where none was, or not all could be.

    The text keeps its length and its strings. start: outside a string. Not all can be where there is no room, as for
    three letters without a space before them, or where a string ends with a backslash, which hides where it ends.
    """
    if text.find(b"\\\\", start, end) >= 0:
        return False
    counted_to, is_inside, is_changed = start, False, False
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
"""So much of the file is unpacked at once; of a piece in which it breaks, nothing is given."""

GZIP_ALONE = 16 + zlib.MAX_WBITS


class Damaged(ValueError):
    """The file is cut or broken, and all that stands before that was given."""


class Unpacked(io.RawIOBase):
    """A text to be read once, of a file with one member of gzip or several, between which zeros may stand."""

    def __init__(self, file: BinaryIO, library: Any) -> None:
        """library: zlib, or what is like it."""
        self._file = file
        self._library = library
        self._member = library.decompressobj(GZIP_ALONE)
        self._rest = b""
        self._is_over = False

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, room: WriteableBuffer) -> int:
        """How many bytes of the text were put into the room; 0 at its end.

        Raises:
            Damaged: it goes on where it cannot be unpacked.
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
    """What is like zlib and three times as fast, where it is installed; zlib elsewhere."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


# The text of a trace's file, plain or compressed, through a window that moves over it.

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


# Which trace files are drawings of ours, told by their first bytes.

_BEGINNINGS = tuple(
    b'{"displayTimeUnit":"ns","otherData":{"%b"' % first for first in (b"begins_ns", b"clock_offset_ns")
)
"""No profiler writes these keys; torch's puts blanks between its own."""


def is_own_drawing(path: Path) -> bool:
    """Whether the file was drawn for a viewer by us: merged ranks, stages or memory, of which no rank has a trace.

    Raises:
        OSError: it cannot be opened.
    """
    with open_text(path) as file:
        try:
            beginning = file.read(max(map(len, _BEGINNINGS)))
        except Damaged:
            return False
    return beginning.startswith(_BEGINNINGS)
