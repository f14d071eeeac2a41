"""The record of a suite run in the history: when it began, its progress, and how its cases ended."""

from __future__ import annotations

from typing import Literal

import msgspec

from bench.errors import Misuse

CaseOutcome = Literal["done", "failed", "timed_out", "interrupted", "skipped", "left_out", "dropped"]
"""interrupted: the suite ended before the case did. skipped: it cannot run on this machine. left_out: by request, for
example by a budget; not a failure. dropped: a race has shown that another case is better.
"""
FAILED: frozenset[CaseOutcome] = frozenset({"failed", "timed_out"})
SuiteOutcome = Literal["running", "done", "failed", "interrupted"]
"""running: nobody has recorded an end; the runner may have died. failed: a case failed, timed out or was skipped."""

SCHEMA_VERSION = 2
"""Version of records with dropped cases, which older versions cannot read; other records are written as version 1."""
CHOICE = "choose"
"""Name of the suite runs that `observatory choose` measures."""


class SuiteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One suite run.

    started_ns, progress_ns, ended_ns: Unix time of its beginning, of the last event of a case, and of its end.
    period_s: how often the suite should run; None if it declares no period. cases: number of cases with each outcome.
    total: number of cases in the suite. running: names of the active cases. left_out: names of the cases that were left
    out by request. failed: names of the cases that failed or timed out; None if an older version wrote the record,
    which only counted them. folder: where its ledger is, on the machine that runs it.
    """

    id: str
    suite: str
    started_ns: int
    progress_ns: int
    ended_ns: int | None = None
    outcome: SuiteOutcome = "running"
    period_s: float | None = None
    cases: dict[CaseOutcome, int] = {}  # msgspec gives each its own copy.
    total: int
    running: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] | None = None
    folder: str
    schema_version: int = 1

    def has_failed(self, case: str) -> bool:
        """Whether a case whose run failed or timed out has failed, and is not a fire drill that ended as expected.

        An older record does not name failed cases, so each of them counts as failed if any case has.
        """
        if self.failed is None:
            return any(self.cases.get(outcome) for outcome in FAILED)
        return case in self.failed


def encode(record: SuiteRecord) -> bytes:
    """Return the record as JSON."""
    return msgspec.json.encode(record)


def decode(data: str, source: str) -> SuiteRecord:
    """Decode a record from JSON. source: its origin, for messages.

    Raises:
        Misuse: a newer version wrote it, or it is not a record.
    """
    try:
        record = msgspec.json.decode(data, type=SuiteRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misuse(f"{source}: is not a record of a suite run ({error})") from None
    if record.schema_version > SCHEMA_VERSION:
        raise Misuse(
            f"{source}: written with schema version {record.schema_version}, but this program reads up to"
            f" {SCHEMA_VERSION}"
        )
    return record
