"""The diagnosis of a run as one page of 80 columns, JSON or CSV."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console

from bench.analysis.diagnosis.levers import ENGINE
from bench.analysis.diagnosis.observed import CostFinding, Diagnosis, Remedy, StepShare
from bench.analysis.diagnosis.rule import FAILED, likely_limit, title_of
from bench.reports.format import on_one_line, open_console, print_csv, print_json, table_of

WIDTH = 80
MOST_EXPLAINED = 4
"""Findings whose evidence stands on the page: the limit and the largest others."""
EXPLAINED_RATIO = 0.05
"""Share of the step below which a finding stands in the table alone."""
COLUMNS = (
    *("run", "kind", "is_limit", "is_sure", "share", "low", "high", "expected"),
    *("subject", "why_not_expected", "evidence", "try", "doubt"),
)


def print_diagnosis(found: Diagnosis, format_name: str, console: Console | None = None) -> None:
    """Print what limits the run, each finding with its evidence and its law, and the next command."""
    if format_name == "json":
        print_json({"likely_limit": likely_limit(found), **asdict(found)})
        return
    if format_name == "csv":
        print_csv([_row(found, one) for one in _every(found)], COLUMNS)
        return
    console = console or open_console()
    for line in _page(found, console):
        console.print(line, soft_wrap=True)


def _every(found: Diagnosis) -> tuple[CostFinding, ...]:
    """Return the findings, with a limit that is none of them first."""
    return found.findings if found.limit in found.findings else (found.limit, *found.findings)


def _page(found: Diagnosis, console: Console) -> Iterator[str]:
    yield from _wrapped(f"{found.run}: {found.title}, {found.outcome.replace('_', ' ')}")
    if found.outcome in FAILED:
        yield from _wrapped(f"failed: {found.root_cause[0] if found.root_cause else 'its cause is not known'}")
    elif found.limit.kind == "unknown":
        yield "limit: unknown"
    else:
        yield from _wrapped(f"limit: {likely_limit(found)}")
    yield from _wrapped(("sure: " if found.is_sure else "unsure: ") + found.reason)
    for line in found.root_cause[1:]:
        yield from _wrapped(line, "    ")
    for line in found.facts:
        yield from _wrapped(line)
    if any(one.share is not None for one in found.findings):
        yield ""
        rows = [
            (_row_title(one), _percent(one.share), _law(one), _beyond(one))
            for one in found.findings
            if one.share is not None
        ]
        table = table_of(("takes time", "of the step", "law expects", "beyond it"), rows)
        with console.capture() as captured:
            console.print(table)
        yield from (line.rstrip() for line in captured.get().splitlines())
    for one in [one for one in _every(found) if _is_explained(one, found)][:MOST_EXPLAINED]:
        yield ""
        yield title_of(one)
        for line in one.evidence:
            if line not in found.root_cause:
                yield from _wrapped(line, "  ")
        if one.doubt is not None and one is not found.limit:  # The limit's stands at the top.
            yield from _wrapped(f"unsure: {one.doubt}", "  ")
        if (why := one.why_not_expected) is not None:
            is_told = any(why in line for line in found.missing)
            yield from _wrapped(f"the law's expectation is absent: {'see missing' if is_told else why}", "  ")
        for lever in one.levers:
            yield from _wrapped(f"try {_lever_words(lever)}", "  ")
    if found.missing:
        yield ""
        yield "missing"
        for line in found.missing:
            yield from _wrapped(line, "  ")
    yield ""
    yield from _command(found.command)
    tries = (lever.words for one in found.findings for lever in one.levers)
    if any(ENGINE in words for words in (found.command, *tries)):
        yield f"{ENGINE} is the one that ran it: slurm or ray, or local where its nodes were one machine"


def _row_title(one: CostFinding) -> str:
    if one.kind == "unknown":
        return "not told"
    # Who is uneven may be open where the waiting itself is certain; a straggler in doubt may be none.
    return f"{title_of(one)}, likely" if one.kind == "straggler" and one.doubt is not None else title_of(one)


def _is_explained(one: CostFinding, found: Diagnosis) -> bool:
    """Return whether the finding's evidence stands on the page: of the limit, and of what is not small."""
    is_large = one.share is None or one.share.value >= EXPLAINED_RATIO or one == found.limit
    return is_large and one.kind != "unknown" and bool(one.evidence or one.levers)


def _percent(share: StepShare | None) -> str:
    if share is None:
        return "-"
    ends = "" if share.low is None or share.high is None else f" [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    return f"{100 * share.value:.1f} %{ends}"


def _law(finding: CostFinding) -> str:
    return "-" if finding.expected is None else f"{100 * finding.expected:.1f} %"


def _beyond(finding: CostFinding) -> str:
    if finding.expected is None or finding.share is None:
        return "-"
    return f"{100 * (finding.share.value - finding.expected):+.1f} %"


def _lever_words(lever: Remedy) -> str:
    settings = " ".join(f"{name}={value}" for name, value in lever.settings.items())
    law = "" if lever.expected is None else f" (law: {100 * lever.expected:.1f} %)"
    return f"{settings}: {lever.words}{law}" if settings else lever.words


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Return the text in lines of the page, all but the first indented further."""
    return textwrap.wrap(
        on_one_line(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def _command(command: str) -> list[str]:
    """Return the next command as a shell takes it; each further line of a long one begins with an option."""
    lines = [""]
    for words in re.split(r" (?=--)", command):
        joined = f"{lines[-1]} {words}".lstrip()
        if lines[-1] and len(joined) > WIDTH - len("next:  \\"):
            lines.append(words)
        else:
            lines[-1] = joined
    ends = [" \\"] * (len(lines) - 1) + [""]
    return [
        f"{'      ' if number else 'next: '}{line}{end}"
        for number, (line, end) in enumerate(zip(lines, ends, strict=True))
    ]


def _row(found: Diagnosis, one: CostFinding) -> dict[str, object]:
    share = one.share
    return {
        "run": found.run,
        "kind": one.kind,
        "is_limit": one is found.limit or one == found.limit,
        "is_sure": found.is_sure,
        "share": None if share is None else share.value,
        "low": None if share is None else share.low,
        "high": None if share is None else share.high,
        "expected": one.expected,
        "subject": one.subject,
        "why_not_expected": one.why_not_expected,
        "evidence": "; ".join(one.evidence),
        "try": "; ".join(map(_lever_words, one.levers)),
        "doubt": one.doubt,
    }
