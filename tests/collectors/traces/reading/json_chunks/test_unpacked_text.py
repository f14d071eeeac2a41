"""A compressed text is given as far as its file is whole, by either library that unpacks it."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from types import ModuleType

import pytest

from collectors.traces.reading.json_chunks import PIECE_BYTES, Damaged, Unpacked, fastest_library

# Hardly compressible, so that the file has many pieces.
TEXT = "".join(random.Random(0).choices("0123456789abcdef", k=200_000)).encode()
PACKED = gzip.compress(TEXT)


@pytest.fixture(params=[zlib, fastest_library()], ids=["zlib", "fastest"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    """One that unpacks."""
    chosen: ModuleType = request.param
    return chosen


def _given(packed: bytes, library: ModuleType, *, at_most_bytes: int = 1000) -> tuple[bytes, str | None]:
    """What is given of the text, and why not all of it is."""
    text, unpacked = b"", Unpacked(io.BytesIO(packed), library)
    try:
        while piece := unpacked.read(at_most_bytes):
            assert len(piece) <= at_most_bytes
            text += piece
    except Damaged as error:
        return text, str(error)
    return text, None


@pytest.mark.parametrize("at_most_bytes", [1, 4096, 1 << 20])
def test_a_whole_file_is_given_whole_in_pieces_of_any_size(at_most_bytes: int, library: ModuleType) -> None:
    packed = gzip.compress(TEXT[:20_000])
    assert _given(packed, library, at_most_bytes=at_most_bytes) == (TEXT[:20_000], None)


@pytest.mark.parametrize("cut", [0, 1, 9, 3000, PIECE_BYTES, PIECE_BYTES + 1, len(PACKED) - 9, len(PACKED) - 1])
def test_a_file_that_is_cut_gives_all_that_can_be_unpacked_of_it(cut: int, library: ModuleType) -> None:
    prefix = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(PACKED[:cut])
    text, why = _given(PACKED[:cut], library, at_most_bytes=1 << 20)
    assert why == "its compression is cut short"
    # The libraries wait for some bits behind a letter before they give it.
    assert TEXT.startswith(text)
    assert len(prefix) - 4 <= len(text) <= len(prefix)


def test_a_file_that_is_broken_gives_all_but_the_piece_in_which_it_breaks(library: ModuleType) -> None:
    at = len(PACKED) // 2
    text, why = _given(PACKED[:at] + b"\xff" * 4000 + PACKED[at + 4000 :], library)
    assert why is not None
    assert why.startswith("its compression is broken (")
    unpacked = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(PACKED[: at - PIECE_BYTES])
    assert text.startswith(unpacked)


def test_a_text_that_is_not_what_was_compressed_is_told(library: ModuleType) -> None:
    text, why = _given(PACKED[:-8] + bytes(4) + PACKED[-4:], library)
    assert TEXT.startswith(text)
    assert why is not None
    assert "broken" in why


def test_members_with_zeros_between_them_are_one_text(library: ModuleType) -> None:
    packed = gzip.compress(TEXT[:5000]) + bytes(PIECE_BYTES + 5) + gzip.compress(TEXT[5000:]) + bytes(3)
    assert _given(packed, library) == (TEXT, None)


def test_what_stands_behind_the_last_member_and_is_none_is_told(library: ModuleType) -> None:
    text, why = _given(PACKED + b"not compressed", library)
    assert text == TEXT
    assert why is not None
