"""The summary of a finished run: the content of its summary.json, which the history also stores."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from bench.case import ONE_RUN, Case, Purpose, settings_of
from bench.errors import Misuse
from bench.rank.messages import FailureCause, TrialOutcome
from bench.results.efficiency import ScalingEfficiency
from bench.results.estimate import Estimate
from bench.results.mfu import Peak
from bench.results.watched.details import WatchedDetails
from collectors.files import schema_version_of
from workloads.options import check_of


def series_of(case: Case, hardware: str) -> str:
    """Return the short name of a series of comparable runs, for places where a whole case key is too long.

    It is the first 12 hex digits of the SHA-256 of the case's key and the hardware, as named by `Machine.hardware`.
    """
    return hashlib.sha256(f"{case.key()}\n{hardware}".encode()).hexdigest()[:12]


SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPrediction:
    """The cost models' prediction of a run before its first trial, from the history at that time.

    model_version: see `bench.store.prediction.MODEL_VERSION`. predicted_ns: Unix time.
    calibrations: the probe runs that gave its rates and links, and the newest run that gave the host's time.
    step_low_s, step_high_s: its range; in model version 1, its 80 % interval.
    step_basis, interval_basis: the basis of both, in words.
    compute_s, communication_s, exposed_s, bubble_s, host_s: as in `workloads.cost_models.step_time.StepTime`; computing
        is without the host's time.
    memory_bytes: of the rank that needs most, by part as in RUN_MEMORY_ACCOUNT_BYTES; `total` is the peak of a step.
    absent: the reason for each field that is None, and for the parts of memory that are missing, by name.
    """

    model_version: int
    predicted_ns: int
    calibrations: tuple[str, ...] = ()
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    exposed_s: float | None = None
    bubble_s: float | None = None
    optimizer_s: float | None = None
    host_s: float | None = None
    memory_bytes: dict[str, int] = field(default_factory=dict)
    step_basis: str = ""
    interval_basis: str = ""
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run and its results.

    hardware: its hardware, in the words that comparable runs share (`Machine.hardware`).
    commit: this program's, if it ran from a source tree. torch_version: torch's.
    started_ns, ended_ns: Unix time.
    trials_done: trials that all ranks completed; only these count.
    effective_batch: total in sequences = local x data_ranks x parts, where parts are the microbatches of a data rank's
        batch; empty for a probe.
    peak: the denominator of the run's MFU; None if unknown.
    step_spread_ratio: the largest of `step_spreads`; None if nothing was measured.
    step_spreads: `bench.results.estimate.spread` of the steps of each trial, in the order of the estimates' trials;
        empty for a probe, and if an older version wrote it.
    hosts: names of the machines that its ranks ran on, in order; empty if an older version wrote it.
    notes: what is absent, and why.
    purpose: what the run was for; see `bench.case.why_ad_hoc`.
    in_turn_with: ids of the runs whose trials took turns with this one's, so that trial i of each was measured next to
        trial i of the others; empty for a run that was continued after an interruption, and from older versions.
    drill: the injected fault, as in `--inject`; None without one, and from older versions.
    prediction: made before the first trial; None for a probe, under torchrun, and from older versions.
    watched: for a watched run: its program, its ranks and the late rank; None for all other runs.
    """

    run: str
    case: Case
    hardware: str
    commit: str | None
    torch_version: str | None
    started_ns: int
    ended_ns: int
    outcome: TrialOutcome
    cause: FailureCause | None
    trials_done: int
    estimates: tuple[Estimate, ...]
    scaling: tuple[ScalingEfficiency, ...]
    effective_batch: dict[str, int]
    step_spread_ratio: float | None
    notes: tuple[str, ...]
    folder: str
    peak: Peak | None = None
    purpose: Purpose = ONE_RUN
    step_spreads: tuple[float, ...] = ()
    hosts: tuple[str, ...] = ()
    in_turn_with: tuple[str, ...] = ()
    drill: str | None = None
    prediction: StoredPrediction | None = None
    watched: WatchedDetails | None = None
    schema_version: int = SCHEMA_VERSION


def outcome_of(summary: Summary) -> TrialOutcome | Literal["active"]:
    """Return how the run ended, or of a watched run whose command still runs that it is active."""
    return "active" if summary.watched is not None and summary.watched.is_active else summary.outcome


def steps_of_a_trial(summary: Summary) -> int:
    """Return the measured steps of a trial; for a watched run, those of one of the stretches that represent trials."""
    if summary.watched is None:
        return summary.case.steps
    return max(1, summary.case.steps // max(1, len(summary.step_spreads)))


def settings_words(summary: Summary) -> tuple[str, ...]:
    """Return what distinguishes the run from one with all defaults, as words: its settings, check, drill and suite."""
    if summary.watched is not None:
        return (f"name={summary.watched.name}", *settings_of(summary.case))
    words = [] if summary.drill is None else [f"drill={summary.drill}"]
    if (check := check_of(summary.case)) is not None:
        words += ["check", *(f"cause={mistake}" for mistake in check.mistakes)]
    words += settings_of(summary.case)
    if (member := summary.purpose.member) is not None:
        words += [f"suite={member.suite}", *(["rerun"] if member.is_rerun else [])]
    return tuple(words)


def encode(summary: Summary) -> bytes:
    """Return the summary as JSON, with its schema version."""
    return msgspec.json.encode(summary)


def decode(data: bytes, source: str = "summary") -> Summary:
    """Decode a summary from JSON. source: its origin, for messages.

    Raises:
        Misuse: a newer version wrote it, or it is not a summary.
    """
    try:
        version = schema_version_of(data)
        if version > SCHEMA_VERSION:
            raise Misuse(
                f"{source}: written with schema version {version}, but this program reads up to {SCHEMA_VERSION};"
                " use the version that wrote it"
            )
        summary = msgspec.json.decode(data, type=Summary)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(
            f"{source}: is not a summary ({error}); delete it, and the run is read again from its logs"
        ) from None
    if len(summary.scaling) > 1:  # Older runs have one twice where both scalings have the same baseline.
        summary = replace(summary, scaling=tuple(dict.fromkeys(summary.scaling)))
    return summary
