"""Reads TOML from unknown authors: Python's parser behind limits on its input.

Within the limits a file of a megabyte takes up to 3 s of one core and 100 MB, as measured on a virtual machine. Without
them 24,000 dotted keys in deep tables take 8 s and 400 MB, a dotted key of 120 kB takes gigabytes, lists nested a
thousand deep end the parser, and a number of any length cannot be shown.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MOST_BYTES = 1_000_000
MOST_PARTS = 16
"""Parts of a key, as `a.b.c` has three."""
MOST_DEPTH = 16
"""Lists and inline tables within each other."""
MOST_TABLES = 4_000
"""Lines `[table]` and `[[table]]`, and dotted keys, which stand for tables; the parser takes up to 0.4 ms for each."""
_WHOLE = range(-(2**63), 2**63)
"""Whole numbers that each reader of TOML must know."""

_OPENING = re.compile("\"\"\"|'''|[\"'#]")
_ENDS = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"{1,2}+(?!"))*+"{3,5}', re.DOTALL),
    "'''": re.compile("(?:[^']|'{1,2}+(?!'))*+'{3,5}"),
    '"': re.compile(r'(?:[^"\\\n]|\\.)*+"'),
    "'": re.compile("[^'\n]*+'"),
    "#": re.compile("[^\n]*+"),
}
"""What is left of each kind of text, and of a comment, behind its beginning."""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}")
# A bracket, with the beginning of its line where it is the first there, or the last part of a dotted key.
_MARK = re.compile(r"(?P<first>^[ \t]*+)?(?P<bracket>[\[\]{}])|\.[ \t]*+[\w-]++[ \t]*+=", re.MULTILINE)


class BadToml(ValueError):
    """The text is no TOML; the message says why, and where it is known the line."""


class NoText(BadToml):
    """The file is no text in UTF-8."""


class TomlLimit(BadToml):
    """The text may be TOML, and is beyond a limit."""


def read_toml(data: bytes) -> dict[str, Any]:
    """Return the document.

    Raises:
        TomlLimit: it is beyond a limit.
        NoText: it is not text in UTF-8; a byte order mark, which some editors put in front, is left out.
        BadToml: it is against TOML's grammar, or has a value that Python cannot hold.
    """
    if len(data) > MOST_BYTES:
        raise TomlLimit(f"it has more than {MOST_BYTES:,} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NoText("it is no text in UTF-8") from None
    _check(text)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadToml(str(error)) from None
    except ValueError:  # Python reads no number of more than 4,300 digits.
        raise TomlLimit("it has a whole number beyond 64 bits") from None
    _check_numbers(document, ())
    return document


def _check(text: str) -> None:
    """Refuse what the parser could not take, by what is left of the text without its texts and comments."""
    markup = _without_texts(text)
    if (long_key := _LONG_KEY.search(markup)) is not None:
        raise TomlLimit(
            f"a key has more than {MOST_PARTS} parts (at line {markup.count(chr(10), 0, long_key.start()) + 1})"
        )
    depth = tables = 0
    for mark in _MARK.finditer(markup):
        bracket = mark["bracket"]
        # Within a list, a bracket that is the first of its line begins no table.
        tables += bracket is None or (depth == 0 and mark["first"] is not None)
        if bracket is not None:
            depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        if tables > MOST_TABLES or depth > MOST_DEPTH:
            line = markup.count("\n", 0, mark.start()) + 1
            if tables > MOST_TABLES:
                raise TomlLimit(f"it has more than {MOST_TABLES:,} tables and dotted keys (at line {line})")
            raise TomlLimit(f"lists and tables are nested more than {MOST_DEPTH} deep (at line {line})")


def _without_texts(text: str) -> str:
    """Return the document with a letter for each text, which may be a part of a key, and without comments.

    The lines stay, to be counted. At a text without an end it ends, as the parser does.
    """
    parts, place = [], 0
    while (opening := _OPENING.search(text, place)) is not None:
        parts.append(text[place : opening.start()])
        end = _ENDS[opening[0]].match(text, opening.end())
        if end is None:
            return "".join(parts)
        parts.append("" if opening[0] == "#" else "s" + "\n" * end[0].count("\n"))
        place = end.end()
    return "".join((*parts, text[place:]))


def _check_numbers(value: Any, key: tuple[str, ...]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_numbers(item, (*key, name))
    elif isinstance(value, list):
        for item in value:
            _check_numbers(item, key)
    elif isinstance(value, int) and value not in _WHOLE:
        raise TomlLimit(f"{'.'.join(key)} is a whole number beyond 64 bits")
