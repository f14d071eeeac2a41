"""Which trace files are drawings of ours, told by their first bytes."""

from __future__ import annotations

from pathlib import Path

from collectors.traces.reading.trace_text import open_text
from collectors.traces.reading.unpacked_text import Damaged

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
