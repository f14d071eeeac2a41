"""The text of a compressed file, as far as it can be unpacked: all that stands before a cut or a break is given first.

Readers such as `gzip.open` throw away what they unpacked when they come upon a cut.
"""

from __future__ import annotations

import io
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
