"""Reads what programs of a check printed: runs with their figures, tables of analyses, scripts' JSON, nvidia-smi."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from bench.runs.summary import Summary
from collectors.metrics.metric import Metric, Sample
from collectors.sample_log import Mark, NodeState, Reading, read
from tests.gpu.check import NotHere
from tests.gpu.session import Commands, Completed, Program

LAST_LINES = 6
NO_PROGRAM = 127


class Unreadable(Exception):
    """A program failed, or did not print what is looked for; the message says which and what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of `observatory run` that ended well."""

    summary: Summary
    elapsed_s: float

    @property
    def folder(self) -> Path:
        """The run's."""
        return Path(self.summary.folder)

    def value(self, metric: Metric, **labels: str) -> float:
        """The median of the one estimate of the metric that has these labels, among others.

        Raises:
            Unreadable: there is none, or there are several.
        """
        found = self.values(metric, **labels)
        if len(found) != 1:
            raise Unreadable(
                f"{self.summary.run}: {metric.name}{labels or ''} is there {len(found)} times; notes of the run:"
                f" {'; '.join(self.summary.notes) or 'none'}"
            )
        return next(iter(found.values()))

    def values(self, metric: Metric, **labels: str) -> dict[tuple[str, ...], float]:
        """Medians of the metric by the values of all its labels, of those estimates that have these labels."""
        return {
            tuple(one.labels[name] for name in metric.labels): one.median
            for one in self.summary.estimates
            if one.metric == metric.name and labels.items() <= one.labels.items()
        }

    def readings(self, mark: Mark, rank: int = 0) -> list[list[Sample]]:
        """The samples of each step of that mark, in order, from the rank's log."""
        records = read(self.folder / f"rank{rank}.jsonl").records
        return [record.samples for record in records if isinstance(record, Reading) and record.mark == mark]

    def node_beats(self) -> list[tuple[int, list[Sample]]]:
        """What the node's collectors gave at each beat of the run, with its Unix time in nanoseconds."""
        state, beats = NodeState(), []
        for record in read(self.folder / "node0.jsonl").records:
            if state.take(record) and state.time_ns is not None:
                beats.append((state.time_ns, list(state.samples)))
        return beats


def ran(completed: Completed) -> Ran:
    """The run of a program of `Session.observed`.

    Raises:
        Unreadable: it did not end well.
    """
    summary = summary_of(completed)
    if completed.code != 0 or summary.outcome != "done":
        why = summary.cause.text if summary.cause is not None else last_lines(completed)
        raise Unreadable(f"{_name(completed)} ended with code {completed.code}, {summary.outcome}: {why}")
    return Ran(summary=summary, elapsed_s=completed.elapsed_s)


def summary_of(completed: Completed) -> Summary:
    """What the run is known by, however it ended.

    Raises:
        Unreadable: nothing was printed that says so.
    """
    try:
        return msgspec.json.decode(completed.out, type=list[Summary])[-1]
    except (msgspec.DecodeError, IndexError):
        raise Unreadable(f"{_name(completed)} ended with code {completed.code}: {last_lines(completed)}") from None


def told(completed: Completed) -> dict[str, Any]:
    """The JSON object that is the last line of what a script, or the whole of what a command, printed.

    Raises:
        Unreadable: it failed, or printed none.
    """
    if completed.code != 0:
        raise Unreadable(f"{_name(completed)} ended with code {completed.code}: {last_lines(completed)}")
    for text in (completed.out, *completed.out.strip().splitlines()[-1:]):
        try:
            found = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(found, dict):
            return found
    raise Unreadable(f"{_name(completed)} printed no JSON object: {last_lines(completed)}")


def rows(document: Mapping[str, Any], table: str) -> list[dict[str, Any]]:
    """The rows of a table of `observatory analyse`, by the names of its columns.

    Raises:
        Unreadable: there is no such table.
    """
    for one in document["tables"]:
        if one["name"] == table:
            names = [column["name"] for column in one["columns"]]
            return [dict(zip(names, row, strict=True)) for row in one["rows"]]
    raise Unreadable(f"analyse gave no table {table}; it gave {', '.join(one['name'] for one in document['tables'])}")


def sample(samples: Sequence[Sample], metric: Metric, **labels: str) -> float:
    """The value of the one sample of the metric that has these labels, among others.

    Raises:
        Unreadable: there is none, or there are several.
    """
    found = [one.value for one in samples if one.metric == metric.name and labels.items() <= one.labels.items()]
    if len(found) != 1:
        raise Unreadable(f"{metric.name}{labels or ''} is there {len(found)} times among {len(samples)} samples")
    return found[0]


def scraped(page: str, metric: Metric) -> list[tuple[dict[str, str], float]]:
    """The series of a metric on a page of /metrics: labels and value."""
    found = []
    for line in page.splitlines():
        match = re.fullmatch(rf"{re.escape(metric.name)}(?:\{{(.*)\}})? (\S+)(?: \d+)?", line)
        if match:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[1] or ""))
            found.append((labels, float(match[2])))
    return found


def nvidia_smi(commands: Commands, *words: str) -> str:
    """What nvidia-smi printed.

    Raises:
        NotHere: there is none.
        Unreadable: it failed.
    """
    (completed,) = commands.run(Program(("nvidia-smi", *words)))
    if completed.code == NO_PROGRAM:
        raise NotHere("there is no nvidia-smi here")
    if completed.code != 0:
        raise Unreadable(f"nvidia-smi {' '.join(words)} ended with code {completed.code}: {last_lines(completed)}")
    return completed.out


def smi_numbers(text: str) -> list[list[float | None]]:
    """The rows of `nvidia-smi --query-... --format=csv,noheader,nounits`; None for what is no number."""
    return [[_number(cell) for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def smi_tree(text: str) -> Iterator[ElementTree.Element]:
    """The element of each GPU in what `nvidia-smi -q -x` prints.

    Raises:
        Unreadable: it is no XML.
    """
    try:
        tree = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise Unreadable(f"nvidia-smi -q -x gave no XML: {error}") from None
    yield from tree.findall("gpu")


def last_lines(completed: Completed) -> str:
    """The end of what a program said to people, else of what it printed."""
    text = completed.err.strip() or completed.out.strip()
    return " | ".join(text.splitlines()[-LAST_LINES:]) or "it said nothing"


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _name(completed: Completed) -> str:
    return " ".join(completed.program.words[:3])
