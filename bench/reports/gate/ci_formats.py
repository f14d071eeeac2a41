"""Verdicts of the gate for CI: JUnit XML, Markdown for a pull request, and PyTorch's benchmark records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from bench.errors import CONTROL
from bench.reports.gate.cause import changed_words
from bench.reports.gate.check import (
    QUIET,
    cause_words,
    change_words,
    check_lines,
    exit_words,
    figure_name,
    reason_of,
    since_words,
    verdict_words,
)
from bench.suites.gate.check import SuiteCheck
from bench.suites.gate.verdicts import BAD, Verdict
from collectors.metrics.registry import METRICS

# What XML 1.0 has no form for, even escaped.
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")
_UNITS = {metric.name: metric.unit for metric in METRICS}


def junit_xml(checks: Sequence[SuiteCheck]) -> str:
    """Return the checks as JUnit's XML: a test suite each, a test for each figure and each thing that is missing.

    A figure that is worse is a failure; what is missing an error; what cannot be judged is skipped.
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
        for of, name, kind, message in tests:
            test = ElementTree.SubElement(suite, "testcase", classname=_xml(f"{check.suite}.{of}"), name=_xml(name))
            if kind is not None:
                ElementTree.SubElement(test, kind, message=_xml(message))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _tests(check: SuiteCheck) -> Iterator[tuple[str, str, str | None, str]]:
    """Yield the case, the name, what it is (None of a test that passed) and the message of each test."""
    for one in check.verdicts:
        kind = None
        if one.outcome in BAD:
            kind = "failure"
        elif one.outcome in ("insufficient_data", "late"):
            kind = "skipped"
        yield one.key.case, figure_name(one), kind, _sentence(check, one)
    for missing in check.missing:
        if missing.is_alert:
            yield missing.what, missing.kind.replace("_", " "), "error", missing.reason


def _sentence(check: SuiteCheck, one: Verdict) -> str:
    reason = reason_of(one)
    cause = _cause(check, one) if one.outcome in BAD else None
    said = f"{verdict_words(one)}: {change_words(one)}{': ' if reason else ''}{reason}"
    return said if cause is None else f"{said}; cause: {cause}"


def _cause(check: SuiteCheck, one: Verdict) -> str | None:
    """Return the likely cause and the next command, and all that changed where no change is blamed."""
    if (words := cause_words(one)) is None:
        return None
    found = next((cause for cause in check.causes if one.key in {figure.key for figure in cause.figures}), None)
    if found is None or found.is_likely or not found.changes:
        return words
    return f"{words}; changed: {changed_words(found.changes)}"


def _xml(text: str) -> str:
    return _NO_XML.sub("?", text)


def markdown(checks: Sequence[SuiteCheck]) -> str:
    """Return the checks for a comment on a pull request: a table of what changed, then what else there is to say."""
    said = "no regression"
    if any(check.is_regression for check in checks):
        said = "regression"
    elif any(check.is_missing for check in checks):
        said = "something is missing"
    elif not any(check.counts.keys() - {"insufficient_data"} for check in checks):
        said = "nothing could be judged"
    lines = [f"## Observatory: {said}"]
    for check in checks:
        changed = [one for one in check.verdicts if one.shown not in QUIET]
        if changed:
            lines += ["", "| case | figure | change | since | verdict |", "|---|---|--:|---|---|"]
            for one in changed:
                cells = (one.key.case, figure_name(one), change_words(one), since_words(one), verdict_words(one))
                lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        if notes := [*check_lines(check), *_causes(check)]:
            lines += ["", *(f"- {_cell(note)}" for note in notes)]
    return "\n".join([*lines, "", *map(_cell, exit_words(checks))]) + "\n"


def _causes(check: SuiteCheck) -> list[str]:
    """Return the causes of a suite's worse figures, each once, with the cases that have it."""
    cases: dict[str, list[str]] = {}
    for one in check.verdicts:
        if one.outcome in BAD and (words := _cause(check, one)) is not None:
            cases.setdefault(words, []).append(one.key.case)
    return [f"cause of {', '.join(dict.fromkeys(of))}: {words}" for words, of in cases.items()]


def _cell(text: str) -> str:
    """Return the text so that Markdown shows it as it is."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", CONTROL.sub("?", " ".join(text.split())))


def benchmark_records(checks: Sequence[SuiteCheck]) -> str:
    """Return the figures in the form that PyTorch's OSS benchmark database takes: a list of records, schema v3.

    What its uploader knows (repository, workflow, job) is left to it.
    Source: github.com/pytorch/pytorch/wiki/How-to-integrate-with-PyTorch-OSS-benchmark-database
    """
    return json.dumps([_record(check, one) for check in checks for one in check.verdicts], indent=2) + "\n"


def _record(check: SuiteCheck, one: Verdict) -> dict[str, Any]:
    return {
        "timestamp": one.started_ns // 10**9,
        "schema_version": "v3",
        "name": check.suite,
        **({} if one.commit is None else {"head_sha": one.commit}),
        "benchmark": {
            "name": f"parallel-observatory {check.suite}",
            "mode": "training" if one.shape else "probe",
            "extra_info": {"suite_run": one.suite_run, "series": one.key.series, "hosts": " ".join(one.hosts)},
        },
        "model": {
            "name": one.key.case,
            "type": one.shape or "probe",
            "backend": one.strategy,
            "extra_info": {"ranks": str(one.ranks)},
        },
        "metric": {
            "name": " ".join([one.key.metric, *one.labels.values()]),
            "benchmark_values": list(one.trial_values),
            "target_value": one.expected,
            "extra_info": {
                "unit": _UNITS.get(one.key.metric, ""),
                "verdict": one.shown,
                "change": change_words(one),
            },
        },
    }
