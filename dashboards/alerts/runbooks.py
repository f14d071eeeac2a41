"""The runbooks: a page for each alert, which says what it means, what to look at and what to do.

In a checkout they are docs/runbooks; a wheel carries them beside this package. Knows no alert.
"""

from __future__ import annotations

from pathlib import Path

_DASHBOARDS = Path(__file__).parents[1]
INSTALLED = _DASHBOARDS / "runbooks"
"""Where a wheel has them; pyproject.toml puts them there."""


def runbooks() -> dict[str, str]:
    """Return the text of each runbook by the name of its alert, which is its heading."""
    folder = INSTALLED if INSTALLED.is_dir() else _DASHBOARDS.parent / "docs" / "runbooks"
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))]
    return {text.partition("\n")[0].removeprefix("# "): text for text in texts}


def meaning(text: str) -> str:
    """Return the first sentence of what an alert means."""
    words = " ".join(text.partition("## What it means")[2].partition("\n## ")[0].split())
    return words.partition(". ")[0].rstrip(".") + "."
