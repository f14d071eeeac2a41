"""Reads what programs of a check printed: runs with their figures, tables of analyses, scripts' JSON, nvidia-smi."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.store.summary import Summary
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.results import RUN_LOSS, RUN_PAYLOAD_BYTES
from collectors.sample_log import Mark, NodeState, Reading, read
from tests.gpu.programs import NO_PROGRAM, Completed
from tests.gpu.session import Session


class Unreadable(Exception):
    """A program failed, or did not print what a check needs; the message says which and what it said last."""


class RunReader:
    """Reads one run of `observatory run`, however it ended.

    Raises:
        Unreadable: the command printed no summary.
    """

    def __init__(self, completed: Completed) -> None:
        self.completed = completed
        try:
            self.summary = msgspec.json.decode(completed.out, type=list[Summary])[-1]
        except (msgspec.DecodeError, IndexError):
            raise Unreadable(str(completed)) from None
        self.folder = Path(self.summary.folder)

    @property
    def is_done(self) -> bool:
        """Whether it ended well."""
        return self.completed.code == 0 and self.summary.outcome == "done"

    def __str__(self) -> str:
        """Return how it ended."""
        cause = self.summary.cause
        return f"code {self.completed.code}, {self.summary.outcome}" + (
            f": {cause.kind}, rank {cause.rank}: {cause.text}" if cause else ""
        )

    def value(self, metric: Metric, **labels: str) -> float:
        """Return the median of the metric's only estimate with these labels, among others.

        Raises:
            Unreadable: there is none, or there are several.
        """
        values = list(self.values(metric, **labels).values())
        if len(values) != 1:
            notes = "; ".join(self.summary.notes) or "none"
            raise Unreadable(f"the run has {len(values)} estimates of {metric.name}{labels or ''}; its notes: {notes}")
        return values[0]

    def values(self, metric: Metric, **labels: str) -> dict[tuple[str, ...], float]:
        """Return medians of the metric by the values of all its labels, of the estimates that have these labels."""
        return {
            tuple(estimate.labels[name] for name in metric.labels): estimate.median
            for estimate in self.summary.estimates
            if estimate.metric == metric.name and labels.items() <= estimate.labels.items()
        }

    def readings(self, *marks: Mark) -> list[Reading]:
        """Return the steps of these marks, in order, from the log of rank 0."""
        records = read(self.folder / "rank0.jsonl").records
        return [record for record in records if isinstance(record, Reading) and record.mark in marks]

    def node_samples(self) -> list[Sample]:
        """Return all that the node's collectors read during the run."""
        state, samples = NodeState(), []
        for record in read(self.folder / "node0.jsonl").records:
            if state.take(record):
                samples += state.samples
        return samples


def run(session: Session, strategy: str, *words: str) -> RunReader:
    """Run a strategy that must end well.

    Raises:
        Unreadable: it did not.
    """
    (completed,) = session.programs.run(session.observed(strategy, *words))
    reader = RunReader(completed)
    if not reader.is_done:
        raise Unreadable(f"{strategy}: {reader}")
    return reader


def run_together(session: Session, programs: Mapping[str, tuple[str, ...]]) -> None:
    """Run strategies at the same time; each must end well and count what its law expects."""
    for name, completed in zip(programs, session.programs.run(*programs.values()), strict=True):
        reader = RunReader(completed)
        session.holds(name, reader.is_done, seen=str(reader), expected="done", source="exit code 0")
        check_traffic(session, name, reader)
        for loss in reader.values(RUN_LOSS).values():
            session.figure(f"{name}: loss", loss)


def check_traffic(session: Session, what: str, reader: RunReader) -> None:
    """Judge a run's counted bytes by collective and axis; a collective that has no law is named and not judged."""
    accounts: dict[tuple[str, str], dict[str, float]] = {}
    for (collective, axis, account), total in reader.values(RUN_PAYLOAD_BYTES).items():
        accounts.setdefault((collective, axis), {})[account] = total
    differing = [
        f"{collective} over {axis}: {of.get('counted', 'no')} bytes for {of['expected']}"
        for (collective, axis), of in sorted(accounts.items())
        if "expected" in of and of.get("counted") != of["expected"]
    ]
    lawless = sorted(f"{name} over {axis}" for (name, axis), of in accounts.items() if "expected" not in of)
    session.holds(
        f"{what}: traffic",
        not differing,
        seen="; ".join(differing) or f"as expected; without a law: {', '.join(lawless) or 'none'}",
        expected="counted == expected",
        source="the strategy's law, workloads/cost_models",
    )


def script(session: Session, name: str, *words: str) -> dict[str, Any]:
    """Run a script, and return what it printed."""
    (completed,) = session.programs.run(session.script(name, *words))
    return json_of(completed)


def json_of(completed: Completed) -> dict[str, Any]:
    """Return the JSON object that a command printed, or a script in its last line.

    Raises:
        Unreadable: it failed, or printed none.
    """
    for text in (completed.out, *completed.out.strip().splitlines()[-1:]) if completed.code == 0 else ():
        try:
            document: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError:
            continue
        return document
    raise Unreadable(str(completed))


def rows(completed: Completed, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table of `observatory analyse`, by the names of its columns."""
    (chosen,) = [candidate for candidate in json_of(completed)["tables"] if candidate["name"] == table]
    names = [column["name"] for column in chosen["columns"]]
    return [dict(zip(names, row, strict=True)) for row in chosen["rows"]]


def sample(samples: Sequence[Sample], metric: Metric) -> float:
    """Return the value of the metric's only sample."""
    (value,) = [sample.value for sample in samples if sample.metric == metric.name]
    return value


def scraped(page: str, metric: Metric) -> list[tuple[dict[str, str], float]]:
    """Return the series of a metric on a page of /metrics: labels and value."""
    return series_on(page, metric.name)


def series_on(page: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the series of that name on a page of /metrics: labels and value."""
    matches = re.finditer(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)(?: \d+)?$", page, re.MULTILINE)
    return [(dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[1] or "")), float(match[2])) for match in matches]


def nvidia_smi(session: Session, *words: str) -> str:
    """Return what nvidia-smi printed; skip the check where there is none.

    Raises:
        Unreadable: it failed.
    """
    (completed,) = session.programs.run(("nvidia-smi", *words))
    if completed.code == NO_PROGRAM:
        pytest.skip("there is no nvidia-smi here")
    if completed.code != 0:
        raise Unreadable(str(completed))
    return completed.out


def smi_numbers(session: Session, query: str) -> list[list[float | None]]:
    """Return what `nvidia-smi --query-gpu` says of each GPU; None for what is no number."""
    text = nvidia_smi(session, f"--query-gpu={query}", "--format=csv,noheader,nounits")
    cells = [line.split(",") for line in text.splitlines() if line.strip()]
    return [[float(cell) if re.fullmatch(r"\s*[\d.]+\s*", cell) else None for cell in row] for row in cells]
