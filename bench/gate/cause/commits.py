"""The range of commits between two runs of this program, and their number if the repository is available."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

from bench.gate.cause.changes import Reading

SOURCE = Path(__file__).parents[3]
"""The source tree that this program runs from."""
SHORT = 12
"""Hexadecimal digits of a commit that are shown to people."""
_TIMEOUT_S = 10.0


def tree_words(good: Reading, bad: Reading, source: Path = SOURCE) -> str | None:
    """Return how this program's tree differs between two runs: `commit 0a1b..3d4e (4 commits)`; None if it does not.

    source: a folder that may be a working tree of the repository.
    """
    changes = bad.machine is not None and bad.machine.is_dirty
    uncommitted = "uncommitted changes" if changes else ""
    if good.commit is None or bad.commit is None or good.commit == bad.commit:
        was_dirty = good.machine is not None and good.machine.is_dirty
        return f"the same commit with {uncommitted}" if changes and not was_dirty else None
    words = f"commit {good.commit[:SHORT]}..{bad.commit[:SHORT]} ({_counted(good.commit, bad.commit, source)})"
    return f"{words} with {uncommitted}" if changes else words


@lru_cache(maxsize=64)
def _counted(before: str, now: str, source: Path) -> str:
    """Return how many commits lie between `before` and `now`, or why that is unknown."""
    if not (source / ".git").exists():
        return "not counted: no repository here"
    try:
        for which, commit in (("first", before), ("last", now)):
            if _git(source, "cat-file", "-e", f"{commit}^{{commit}}") is None:
                return f"the {which} is gone from the repository"
        forward, back = (_git(source, "rev-list", "--count", ends) for ends in (f"{before}..{now}", f"{now}..{before}"))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not counted: git: {error}"
    if forward is None or back is None:
        return "not counted: the repository here lacks commits between them"
    if forward == "0":
        return f"{_commits(back)} back"
    return _commits(forward) + ("" if back == "0" else f", on another branch: {back} back")


def _commits(count: str) -> str:
    return "1 commit" if count == "1" else f"{count} commits"


def _git(source: Path, *words: str) -> str | None:
    """Return the output of git; None if git fails."""
    command = ["git", "--no-optional-locks", "-C", str(source), *words]
    process = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return process.stdout.strip() if process.returncode == 0 else None
