"""A window moves over the text of a file, and knows where in it it is."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

from collectors.traces.reading.json_chunks import TextWindow, open_text


def _all(window: TextWindow, step_bytes: int) -> bytes:
    """The text, used up so many bytes at a time."""
    text = b""
    while window.unread_bytes:
        assert window.offset == len(text)
        end = min(len(window.text), window.start + step_bytes)
        text += window.text[window.start : end]
        window.start = end
        window.fill()
    return text


def test_the_window_gives_all_of_the_text_once() -> None:
    text = bytes(range(256)) * 4
    for size_bytes, step_bytes in ((8, 3), (100, 7), (4096, 1000)):
        assert _all(TextWindow(io.BytesIO(text), size_bytes=size_bytes), step_bytes) == text


def test_a_window_that_nothing_was_used_of_grows() -> None:
    window = TextWindow(io.BytesIO(b"a" * 100), size_bytes=8)
    assert window.unread_bytes == 8
    window.fill()
    window.fill()
    assert window.unread_bytes == 32
    assert not window.is_last


def test_a_compressed_text_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(b"text"))
    with open_text(path) as file:
        assert file.read(9) == b"text"
    path.write_bytes(b"text")
    with open_text(path) as file:
        assert file.read(9) == b"text"


def test_a_compressed_text_that_is_cut_ends_there_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    text = bytes(range(256)) * 40
    path.write_bytes(gzip.compress(text)[:-8])
    with open_text(path) as file:
        window = TextWindow(file, size_bytes=1 << 20)
    assert window.text == text
    assert window.is_last
    assert window.damage == "its compression is cut short"
