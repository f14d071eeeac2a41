"""Verdicts of the gate for CI: JUnit XML, Markdown for a pull request, and PyTorch's benchmark records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from bench.gate.check import SuiteCheck
from bench.gate.report import (
    QUIET,
    cause_words,
    change_words,
    changed_words,
    check_lines,
    exit_words,
    figure_name,
    reason_of,
    since_words,
    verdict_words,
)
from bench.gate.verdicts import BAD, Verdict
from bench.report.format import grouped
from bench.report.table import Table, markdown, markdown_text
from collectors.metrics.registry import METRICS

# Characters that XML 1.0 cannot represent, even escaped.
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
_UNITS = {metric.name: metric.unit for metric in METRICS}


def junit_xml(checks: Sequence[SuiteCheck]) -> str:
    """Return the checks as JUnit XML: one test suite per suite, one test per figure and per missing thing.

    A worse figure is a failure, a missing thing an error; what cannot be judged is skipped.
    """
    root = ElementTree.Element("testsuites", name="observatory check")
    for check in checks:
        tests = list(_tests(check))
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_xml(check.suite),
            tests=str(len(tests)),
            failures=str(sum(kind == "failure" for _, _, kind, _ in tests)),
            errors=str(sum(kind == "error" for _, _, kind, _ in tests)),
            skipped=str(sum(kind == "skipped" for _, _, kind, _ in tests)),
        )
        for case, name, kind, message in tests:
            test = ElementTree.SubElement(suite, "testcase", classname=_xml(f"{check.suite}.{case}"), name=_xml(name))
            if kind is not None:
                ElementTree.SubElement(test, kind, message=_xml(message))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _tests(check: SuiteCheck) -> Iterator[tuple[str, str, str | None, str]]:
    """Yield each test's case, name, kind of problem (None if the test passed) and message."""
    for verdict in check.verdicts:
        kind, reason = None, reason_of(verdict)
        sentence = f"{verdict_words(verdict)}: {change_words(verdict)}{': ' if reason else ''}{reason}"
        if verdict.outcome in BAD:
            kind = "failure"
            if (cause := _cause(check, verdict)) is not None:
                sentence += f"; cause: {cause}"
        elif verdict.outcome in ("insufficient_data", "late"):
            kind = "skipped"
        yield verdict.key.case, figure_name(verdict), kind, sentence
    for missing in check.missing:
        if missing.is_alert:
            yield missing.what, missing.kind.replace("_", " "), "error", missing.reason


def _cause(check: SuiteCheck, verdict: Verdict) -> str | None:
    """Return the likely cause and the next command, and everything that changed if no change is blamed."""
    if (words := cause_words(verdict)) is None:
        return None
    blamed = next((cause for cause in check.causes if verdict.key in {figure.key for figure in cause.figures}), None)
    if blamed is None or blamed.is_likely or not blamed.changes:
        return words
    return f"{words}; changed: {changed_words(blamed.changes)}"


def _xml(text: str) -> str:
    return _NO_XML.sub("?", text)


def comment(checks: Sequence[SuiteCheck]) -> str:
    """Return the checks as a comment for a pull request: a table of changed figures, then further notes."""
    heading = "no regression"
    if any(check.is_regression for check in checks):
        heading = "regression"
    elif any(check.is_missing for check in checks):
        heading = "something is missing"
    elif not any(check.counts.keys() - {"insufficient_data"} for check in checks):
        heading = "nothing could be judged"
    lines = [f"## Observatory: {heading}"]
    for check in checks:
        rows = [
            (each.key.case, figure_name(each), change_words(each), since_words(each), verdict_words(each))
            for each in check.verdicts
            if each.shown not in QUIET
        ]
        if rows:
            table = Table(("case", "figure", "change", "since", "verdict"), rows, words=(0, 1, 3, 4))
            lines += ["", *markdown(table)]
        if notes := [*check_lines(check), *_causes(check)]:
            lines += ["", *(f"- {markdown_text(note)}" for note in notes)]
    return "\n".join([*lines, "", *map(markdown_text, exit_words(checks))]) + "\n"


def _causes(check: SuiteCheck) -> list[str]:
    """Return the unique causes of a suite's worse figures, each with its cases."""
    causes = grouped((_cause(check, each), each.key.case) for each in check.verdicts if each.outcome in BAD)
    return [f"cause of {', '.join(cases)}: {words}" for words, cases in causes.items() if words is not None]


def benchmark_records(checks: Sequence[SuiteCheck]) -> str:
    """Return the figures in the format of PyTorch's OSS benchmark database: a list of records, schema v3.

    Repository, workflow and job are left out, because the database's uploader adds them.
    Source: github.com/pytorch/pytorch/wiki/How-to-integrate-with-PyTorch-OSS-benchmark-database
    """
    return json.dumps([_record(check, verdict) for check in checks for verdict in check.verdicts], indent=2) + "\n"


def _record(check: SuiteCheck, verdict: Verdict) -> dict[str, Any]:
    return {
        "timestamp": verdict.started_ns // 10**9,
        "schema_version": "v3",
        "name": check.suite,
        **({} if verdict.commit is None else {"head_sha": verdict.commit}),
        "benchmark": {
            "name": f"parallel-observatory {check.suite}",
            "mode": "training" if verdict.shape else "probe",
            "extra_info": {
                "suite_run": verdict.suite_run,
                "series": verdict.key.series,
                "hosts": " ".join(verdict.hosts),
            },
        },
        "model": {
            "name": verdict.key.case,
            "type": verdict.shape or "probe",
            "backend": verdict.strategy,
            "extra_info": {"ranks": str(verdict.ranks)},
        },
        "metric": {
            "name": " ".join([verdict.key.metric, *verdict.labels.values()]),
            "benchmark_values": list(verdict.trial_values),
            "target_value": verdict.expected,
            "extra_info": {
                "unit": _UNITS.get(verdict.key.metric, ""),
                "verdict": verdict.shown,
                "change": change_words(verdict),
            },
        },
    }
