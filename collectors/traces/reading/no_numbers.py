"""What kineto writes where a number should be and none is, such as the bandwidth of a copy that took no time.

C++ prints it as `inf` or `nan`, which is no JSON: one of them would spoil all that stands around it.
"""

from __future__ import annotations

import re

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
