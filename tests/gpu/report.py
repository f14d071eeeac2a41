"""The table of all checks: what was seen, what was expected, and the verdict, as text and as Markdown."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.gpu.check import Check, Verdict
from tests.gpu.runner import Result

HEADINGS = ("check", "what", "seen", "expected", "verdict")
WIDTHS = (16, 34, 36, 38, 9)
"""Of the columns of the text, so that a line has 137 letters."""
ORDER: tuple[Verdict, ...] = ("off", "failed", "timed out", "ok", "seen", "skipped")
REHEARSAL = "A rehearsal on a CPU: no figure here is of a GPU, and no verdict says anything of one."


def table_text(checks: Sequence[Check], results: Mapping[str, Result], about: Mapping[str, str]) -> str:
    """The table for a terminal, with what it was made on above and the counts of verdicts below."""
    lines = [f"{name}: {value}" for name, value in about.items()]
    lines += _remarks(results)
    lines += ["", *_row_lines(HEADINGS), "-" * (sum(WIDTHS) + len(WIDTHS) - 1)]
    for row in _rows(checks, results):
        lines += _row_lines(row)
    return "\n".join([*lines, "", counted(checks, results)]) + "\n"


def table_markdown(checks: Sequence[Check], results: Mapping[str, Result], about: Mapping[str, str]) -> str:
    """The same for `docs/measured`, with the source of each bound."""
    lines = ["# Checks on " + about.get("device", "an unknown device"), ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += [f"- {remark}" for remark in _remarks(results)]
    lines += ["", counted(checks, results), ""]
    lines += ["| check | what | seen | expected | verdict | source |", "|---|---|---|---|---|---|"]
    for check in checks:
        for cells in _cells(check, results.get(check.name)):
            lines.append("| " + " | ".join(_escaped(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def counted(checks: Sequence[Check], results: Mapping[str, Result]) -> str:
    """How many checks have which verdict, the worst first."""
    counts = Counter(results[check.name].verdict for check in checks if check.name in results)
    parts = [f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict]]
    missing = sum(check.name not in results for check in checks)
    return f"{len(checks)} checks: " + ", ".join([*parts, *([f"{missing} not run"] if missing else [])])


def _rows(checks: Iterable[Check], results: Mapping[str, Result]) -> Iterator[tuple[str, ...]]:
    for check in checks:
        for *cells, _ in _cells(check, results.get(check.name)):
            yield tuple(cells)


def _cells(check: Check, result: Result | None) -> Iterator[tuple[str, ...]]:
    """A row for the check as a whole, and one for each finding: the headings' cells and the source."""
    if result is None:
        yield (check.name, check.tells, "", check.expected, "not run", "")
        return
    seen = result.reason or f"{result.elapsed_s:.0f} s"
    yield (check.name, check.tells, seen, check.expected, result.verdict, "")
    for one in result.findings:
        yield ("", one.what, one.seen, one.expected, one.verdict, one.source)


def _remarks(results: Mapping[str, Result]) -> list[str]:
    commits = sorted({result.commit or "unknown" for result in results.values()})
    remarks = [REHEARSAL] if any(result.is_rehearsal for result in results.values()) else []
    if len(commits) > 1:
        remarks.append(f"results are of several commits: {', '.join(commits)}")
    return remarks


def _row_lines(cells: Sequence[str]) -> list[str]:
    """One row, its cells wrapped into their columns."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, WIDTHS, strict=True)]
    height = max(map(len, wrapped))
    return [
        " ".join(
            (lines[line] if line < len(lines) else "").ljust(width)
            for lines, width in zip(wrapped, WIDTHS, strict=True)
        ).rstrip()
        for line in range(height)
    ]


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
