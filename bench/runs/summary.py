"""What is known of a run when it is over: the content of its summary.json, and of its place in the history."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from bench.analysis.estimate import Estimate
from bench.analysis.mfu import Peak
from bench.analysis.scaling import ScalingEfficiency
from bench.case import ONE_RUN, Case, Purpose
from bench.errors import Misuse
from bench.rank.messages import Cause, Outcome

# The short name of what a run is comparable with, for places where a whole case key is too long.


def series_of(case: Case, hardware: str) -> str:
    """The first 12 hex digits of the SHA-256 of the case's key and of what it ran on, as `Machine.hardware` says it."""
    return hashlib.sha256(f"{case.key()}\n{hardware}".encode()).hexdigest()[:12]


SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run, judged.

    hardware: what it ran on, in the words that comparable runs share (`Machine.hardware`).
    commit, torch_version: of this program where it ran from a source tree, and of torch.
    started_ns, ended_ns: Unix time.
    trials_done: trials that were completed by all ranks; the only ones that count.
    effective_batch: local, data_ranks, accumulate and total, in sequences; empty for a probe.
    peak: what the run's MFU is a share of; None where it is unknown.
    step_spread_ratio: see `bench.analysis.estimate.spread`; None where nothing was measured.
    notes: what is absent, and why.
    purpose: what the run was for; see `bench.case.why_ad_hoc`.
    """

    run: str
    case: Case
    hardware: str
    commit: str | None
    torch_version: str | None
    started_ns: int
    ended_ns: int
    outcome: Outcome
    cause: Cause | None
    trials_done: int
    estimates: tuple[Estimate, ...]
    scaling: tuple[ScalingEfficiency, ...]
    effective_batch: dict[str, int]
    step_spread_ratio: float | None
    notes: tuple[str, ...]
    folder: str
    peak: Peak | None = None
    purpose: Purpose = ONE_RUN
    schema_version: int = SCHEMA_VERSION


class _Versioned(msgspec.Struct):
    schema_version: int


def encode(summary: Summary) -> bytes:
    """The summary as JSON, its schema version included."""
    return msgspec.json.encode(summary)


def decode(data: bytes, source: str = "summary") -> Summary:
    """The summary that the JSON holds. source: its place, for messages.

    Raises:
        Misuse: a newer version wrote it, or it is no summary.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version  # A newer form may not decode otherwise.
        if version > SCHEMA_VERSION:
            raise Misuse(
                f"{source}: written with schema version {version}, this program reads up to {SCHEMA_VERSION};"
                " use the version that wrote it"
            )
        return msgspec.json.decode(data, type=Summary)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"{source}: is no summary ({error}); delete it, and the run is read anew from its logs") from None
