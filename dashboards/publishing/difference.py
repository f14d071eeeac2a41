"""Compares JSON that is sent to a server with the server's version.

A server adds keys, and fills in others, so only keys that are sent are compared, at every depth.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

MOST_LINES = 40
"""How many lines of a difference are shown; nobody reads more in a terminal."""
_MOST_LETTERS = 160


def covers(present: Any, wanted: Any) -> bool:
    """Return whether `present` has all that is wanted, and possibly further keys. A wanted None may also be absent."""
    if isinstance(wanted, dict):
        return isinstance(present, dict) and all(covers(present.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(present, list)
            and len(present) == len(wanted)
            and all(covers(*pair) for pair in zip(present, wanted, strict=True))
        )
    return bool(present == wanted) and isinstance(present, bool) == isinstance(wanted, bool)


def difference(present: Any, wanted: Any) -> tuple[str, ...]:
    """Return the lines of sorted JSON that would be removed and added, without keys that only the server has.

    Beyond `MOST_LINES`, the other lines are only counted.
    """
    before, after = (
        json.dumps(value, indent=1, sort_keys=True).splitlines() for value in (_as_sent(present, wanted), wanted)
    )
    changed = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]  # Without the file names.
    lines = [f"{line[:_MOST_LETTERS]}..." if len(line) > _MOST_LETTERS else line for line in changed[:MOST_LINES]]
    if len(changed) > MOST_LINES:
        lines.append(f"... and {len(changed) - MOST_LINES} lines more")
    return tuple(lines)


def _as_sent(present: Any, wanted: Any) -> Any:
    """Return `present` without keys that are not wanted; elements of lists are matched by position."""
    if isinstance(present, dict) and isinstance(wanted, dict):
        return {key: _as_sent(value, wanted[key]) for key, value in present.items() if key in wanted}
    if isinstance(present, list) and isinstance(wanted, list):
        pairs = zip(present, wanted, strict=False)
        return [*(_as_sent(*pair) for pair in pairs), *present[len(wanted) :]]
    return present
