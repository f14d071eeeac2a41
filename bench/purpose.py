"""Why a run is made, and which runs are kept as ad hoc: in the history like all, and no series' newest result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from bench.case import SEED, USUAL, Case
from bench.errors import Misuse

Origin = Literal["run", "nightly"]
"""Who says that a case is measured: a person by one run, or something that repeats it. A declared suite is one more."""

LONGEST_NOTE = 200


class Purpose(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is for. note: a person's words, which make a run ad hoc."""

    origin: Origin = "run"
    note: str | None = None


ONE_RUN = Purpose()


def check_purpose(purpose: Purpose) -> Purpose:
    """The purpose itself, if it is one.

    Raises:
        Misuse: the note is empty, too long or cannot be printed, or the run is to be nightly and ad hoc.
    """
    note = purpose.note
    if note is None:
        return purpose
    if not note.strip():
        raise Misuse("note is empty; say what the run is for, or leave --note out")
    if len(note) > LONGEST_NOTE:
        raise Misuse(f"note has {len(note)} letters; it may have {LONGEST_NOTE}")
    if not note.isprintable():
        raise Misuse("note has a letter that cannot be printed, as a new line or an escape; take plain text")
    if purpose.origin != "run":
        raise Misuse(f"--note keeps a run as ad hoc, and --{purpose.origin} does not; leave one of them out")
    return purpose


def why_ad_hoc(case: Case, purpose: Purpose) -> tuple[str, ...]:
    """What makes the run ad hoc; empty where it is a result of its series.

    Options that are part of the case's key make another series, and say nothing here. Those that are not, and that
    figures depend on, do: a run that measures less than usual, or other weights and data. One that measures more does
    not, for it is as good a result.
    """
    return () if purpose.origin != "run" else tuple(_reasons(case, purpose))


def _reasons(case: Case, purpose: Purpose) -> Iterator[str]:
    if purpose.note is not None:
        yield "it has a note"
    for name, usual in USUAL.items():
        if name == "trace_steps" and case.model is None:
            continue  # Probes trace nothing.
        if (value := getattr(case, name)) < usual:
            yield f"{name.replace('_', '-')} {value}, usual are {usual}"
    if case.seed != SEED:
        yield f"seed {case.seed}, usual is {SEED}"
