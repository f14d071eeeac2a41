"""What differs between JSON that is sent to a server and what the server has of it.

A server adds keys of its own, and fills in others. So only what is sent is compared, at every depth.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

MOST_LINES = 40
"""How much of a difference is shown: more is read by nobody in a terminal."""
_MOST_LETTERS = 160


def covers(present: Any, wanted: Any) -> bool:
    """Return whether what is present has all that is wanted; it may have further keys. None may also be absent."""
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
    """Return the lines that would go and those that would come, of sorted JSON, without keys that only the server has.

    Beyond `MOST_LINES` the rest is counted.
    """
    before, after = (
        json.dumps(value, indent=1, sort_keys=True).splitlines() for value in (_as_sent(present, wanted), wanted)
    )
    changed = list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]  # Without the names of two files.
    lines = [f"{line[:_MOST_LETTERS]}..." if len(line) > _MOST_LETTERS else line for line in changed[:MOST_LINES]]
    if len(changed) > MOST_LINES:
        lines.append(f"... and {len(changed) - MOST_LINES} lines more")
    return tuple(lines)


def _as_sent(present: Any, wanted: Any) -> Any:
    """Return what is present without keys that are not wanted; elements of lists are matched by their place."""
    if isinstance(present, dict) and isinstance(wanted, dict):
        return {key: _as_sent(value, wanted[key]) for key, value in present.items() if key in wanted}
    if isinstance(present, list) and isinstance(wanted, list):
        pairs = zip(present, wanted, strict=False)
        return [*(_as_sent(*pair) for pair in pairs), *present[len(wanted) :]]
    return present
