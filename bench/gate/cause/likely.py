"""The likely cause in one line: the one rare change that fits, or where the time went.

A change is named as likely only if it is the only rare change between the last good and the first bad run, and no other
change has an unknown frequency. The only evidence is that it came with the slower nights; nothing was tried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.errors import printable
from bench.gate.cause.changes import Change, topics_of
from bench.gate.cause.where import StepChange, in_words, unit_of
from bench.gate.missing import day_of

LIKELY = "likely "
"""Beginning of a line that names a change."""
LONGEST = 160
"""Most letters of the line, not counting how this program's tree differs."""
_LONGEST_VALUE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Likely:
    """line: at most `LONGEST` letters, plus the commits. change: the change that is named as likely, if any."""

    line: str
    change: Change | None


def likely(
    changes: Sequence[Change], time: StepChange | str | None, onset_ns: int | None, tree: str | None = None
) -> Likely:
    """Return the likely cause.

    time: where the time went, or why that is unknown; None if the figure is not the time of a step. onset_ns: Unix time
    of the first night of the change. tree: how this program's tree differs, which the line always contains.
    """
    rare = topics_of(change for change in changes if change.is_rare)
    candidates = [change for change in changes if change.may_be_rare]
    topics = topics_of(candidates)
    where = None if time is None else time_words(time)
    if len(topics) == 1 and rare:
        change = next(change for change in changes if change.is_rare)
        is_tree = change.field == "commit" and tree is not None
        when = ""
        if change.began_ns is not None:
            when = " on the first bad night" if change.began_ns == onset_ns else f" on {day_of(change.began_ns)}"
        words = [f"{LIKELY}{tree if is_tree else change_words(change)}{when}"]
        line = "; ".join([*words, *([] if where is None else [where])])
        return Likely(line=cut(line) if is_tree else with_tree(line, tree), change=change)
    if not changes:
        why = "nothing that is recorded changed"
    elif not topics:
        known = "known to be " if any(change.changed_on is None for change in changes) else ""
        why = f"{_count(len(changes))}, none of them {known}rare"
    elif len(topics) == 1:
        why = f"how often this changes is unknown: {change_words(candidates[0])}"
    else:
        kind = "rare changes" if len(rare) == len(topics) else "changes that are or may be rare"
        why = f"{len(topics)} {kind} at once, none is blamed"
    return Likely(line=with_tree("; ".join([*([] if where is None else [where]), why]), tree), change=None)


def redefinition(words: str, changes: Sequence[Change], time: StepChange | str | None, tree: str | None) -> Likely:
    """Return the likely cause if the definition of the case changed. words: what changed in it."""
    others = topics_of(change for change in changes if change.may_be_rare)
    first = f"{words} and {_count(len(others))} more at once, none is blamed" if others else f"{LIKELY}{words}"
    return Likely(line=with_tree("; ".join([first, *([] if time is None else [time_words(time)])]), tree), change=None)


def with_tree(line: str, tree: str | None) -> str:
    """Return the line, followed by how this program's tree differs."""
    return cut(line) if tree is None else f"{cut(line)}; {tree}"


def time_words(time: StepChange | str) -> str:
    """Return where the time went: `exposed communication +4.1 ms of +4.4 ms [3.9, 4.9]`."""
    if isinstance(time, str):
        return f"where the time went is unknown: {time}"
    unit = unit_of(time.step.change_s)
    of_step = in_words(time.step, unit)
    if (main := time.main) is not None:
        return f"{main.name} {in_words(main, unit, has_interval=False)} of {of_step}"
    if "idle" in time.absent:
        return f"step {of_step}, of unknown parts, as no step was traced"
    return f"step {of_step}, no part stands out"


def change_words(change: Change) -> str:
    """Return a change in a few words: `driver 550.54 -> 560.28`, `commit 0a1b2c..3d4e5f`."""
    if change.field == "commit":
        return f"commit {change.before}..{change.now}"
    where = f" on {', '.join(change.hosts[:3])}{', ...' if len(change.hosts) > 3 else ''}" if change.hosts else ""
    before, now = (cut(value, _LONGEST_VALUE) for value in (change.before, change.now))
    return f"{printable(change.field)} {before} -> {now}{printable(where)}"


def cut(text: str, most: int = LONGEST) -> str:
    """Return the text on one printable line of at most `most` letters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _count(changes: int) -> str:
    return "1 change" if changes == 1 else f"{changes} changes"
