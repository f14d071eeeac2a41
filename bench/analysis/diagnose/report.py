"""Prints the diagnosis of a run as a page of 80 columns, JSON or CSV."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console

from bench.analysis.diagnose.levers import ENGINE
from bench.analysis.diagnose.observed import CostFinding, Diagnosis, Remedy, StepShare
from bench.analysis.diagnose.rule import FAILED, likely_limit, title_of
from bench.report.format import on_one_line
from bench.report.table import Table, whole, write

WIDTH = 80
MOST_EXPLAINED = 4
"""Limit of findings with evidence on the page: the limit and the largest others."""
EXPLAINED_RATIO = 0.05
"""A finding with a smaller share of the step appears only in the table."""
COLUMNS = (
    *("run", "kind", "is_limit", "is_sure", "share", "low", "high", "expected"),
    *("subject", "why_not_expected", "evidence", "try", "doubt"),
)


def print_diagnosis(diagnosis: Diagnosis, format_name: str, console: Console | None = None) -> None:
    """Print the limit of the run, each finding with its evidence and prediction, and the next command."""
    # A limit that is not among the findings comes first.
    findings = diagnosis.findings
    if diagnosis.limit not in findings:
        findings = (diagnosis.limit, *findings)
    write(
        format_name,
        (block if isinstance(block, Table) else whole(block) for block in _page(diagnosis, findings)),
        lambda: {"likely_limit": likely_limit(diagnosis), **asdict(diagnosis)},
        (_row(diagnosis, finding) for finding in findings),
        COLUMNS,
        console,
    )


def _page(diagnosis: Diagnosis, findings: tuple[CostFinding, ...]) -> Iterator[Table | str]:
    yield from _wrapped(f"{diagnosis.run}: {diagnosis.title}, {diagnosis.outcome.replace('_', ' ')}")
    if diagnosis.outcome in FAILED:
        yield from _wrapped(f"failed: {diagnosis.root_cause[0] if diagnosis.root_cause else 'the cause is unknown'}")
    elif diagnosis.limit.kind == "unknown":
        yield "limit: unknown"
    else:
        yield from _wrapped(f"limit: {likely_limit(diagnosis)}")
    yield from _wrapped(("sure: " if diagnosis.is_sure else "unsure: ") + diagnosis.reason)
    for line in diagnosis.root_cause[1:]:
        yield from _wrapped(line, "    ")
    for line in diagnosis.facts:
        yield from _wrapped(line)
    if rows := [_table_row(finding, finding.share) for finding in diagnosis.findings if finding.share is not None]:
        yield ""
        yield Table(("takes time", "of the step", "predicted", "beyond it"), rows, folds="always")
    if unsure := [
        each for each in diagnosis.findings if _is_large(each) and each.share is not None and each.share.is_unsure
    ]:
        names = ", ".join(_title(each) for each in unsure)
        yield from _wrapped(f"unsure: {names}: the interval is wider than the share itself; use more --trials")
    explained = [finding for finding in findings if _is_explained(finding, diagnosis)]
    for finding in explained[:MOST_EXPLAINED]:
        yield ""
        yield title_of(finding)
        for line in finding.evidence:
            if line not in diagnosis.root_cause:
                yield from _wrapped(line, "  ")
        # The doubt of the limit, and of a suspect that leaves the limit unknown, is at the top.
        if finding.doubt is not None and finding is not diagnosis.limit and finding.doubt not in diagnosis.reason:
            yield from _wrapped(f"unsure: {finding.doubt}", "  ")
        if (why := finding.why_not_expected) is not None:
            reason = "see missing" if any(why in line for line in diagnosis.missing) else why
            yield from _wrapped(f"no prediction: {reason}", "  ")
        for lever in finding.levers:
            yield from _wrapped(f"try {_lever_words(lever)}", "  ")
    if diagnosis.missing:
        yield ""
        yield "missing"
        for line in diagnosis.missing:
            yield from _wrapped(line, "  ")
    yield ""
    yield from _command(diagnosis.command)
    tries = (lever.words for finding in diagnosis.findings for lever in finding.levers)
    if any(ENGINE in words for words in (diagnosis.command, *tries)):
        yield f"{ENGINE} is the engine of that run: slurm, ray, or local where all nodes were one machine"


def _table_row(finding: CostFinding, share: StepShare) -> tuple[str, ...]:
    """Return the finding as a row: its title, its share of the step, the predicted one, and the difference."""
    title = _title(finding)
    # An imbalance is certain even if its source is not; a straggler in doubt may be chance.
    if finding.kind == "straggler" and finding.doubt is not None:
        title += ", likely"
    ends = "" if share.low is None or share.high is None else f" [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    predicted, beyond = "-", "-"
    if finding.expected is not None:
        predicted, beyond = f"{100 * finding.expected:.1f} %", f"{100 * (share.value - finding.expected):+.1f} %"
    return title, f"{100 * share.value:.1f} %{ends}", predicted, beyond


def _title(finding: CostFinding) -> str:
    return "unattributed" if finding.kind == "unknown" else title_of(finding)


def _is_large(finding: CostFinding) -> bool:
    return finding.share is None or finding.share.value >= EXPLAINED_RATIO


def _is_explained(finding: CostFinding, diagnosis: Diagnosis) -> bool:
    """Return whether the page shows the finding's evidence: that of the limit and of large findings."""
    is_large = _is_large(finding) or finding == diagnosis.limit
    return is_large and finding.kind != "unknown" and bool(finding.evidence or finding.levers)


def _lever_words(lever: Remedy) -> str:
    settings = " ".join(f"{name}={value}" for name, value in lever.settings.items())
    predicted = "" if lever.expected is None else f" (predicted: {100 * lever.expected:.1f} %)"
    return f"{settings}: {lever.words}{predicted}" if settings else lever.words


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Return the text wrapped to the page, with a hanging indent."""
    return textwrap.wrap(
        on_one_line(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def _command(command: str) -> list[str]:
    """Return the next command for a shell; continuation lines begin with an option."""
    lines, newline = [""], " \\\n      "
    for words in re.split(r" (?=--)", command):
        joined = f"{lines[-1]} {words}".lstrip()
        if lines[-1] and len(joined) > WIDTH - len("next:  \\"):
            lines.append(words)
        else:
            lines[-1] = joined
    return f"next: {newline.join(lines)}".split("\n")


def _row(diagnosis: Diagnosis, finding: CostFinding) -> dict[str, object]:
    share = finding.share
    return {
        **asdict(finding),
        "run": diagnosis.run,
        "is_limit": finding == diagnosis.limit,
        "is_sure": diagnosis.is_sure,
        **({} if share is None else {"share": share.value, "low": share.low, "high": share.high}),
        "evidence": "; ".join(finding.evidence),
        "try": "; ".join(map(_lever_words, finding.levers)),
    }
