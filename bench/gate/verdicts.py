"""Verdicts of the gate and the states of its series: their structs, and how the history stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Table, bindparam, delete, func, insert, select

from bench.errors import InfrastructureFailed
from bench.gate.cause.attribution import Attribution
from bench.gate.detector.placements import PlacementOffset
from bench.gate.detector.state import SCHEMA_VERSION as DETECTOR_VERSION
from bench.gate.detector.state import SeriesState
from bench.gate.gated import placement_of
from bench.store.history import History
from bench.store.schema import ACCEPTED_LEVELS, GATE_STATES, GATE_VERDICTS
from collectors.metrics.gate import Outcome, ShownOutcome, outcomes_of
from collectors.metrics.results import RUN_SCALING_EFFICIENCY

BAD: frozenset[ShownOutcome] = frozenset(outcomes_of("confirmed", "found", "crept"))
"""Outcomes that mean a figure is worse; `collectors.metrics.gate.OUTCOMES` explains each."""
MARGIN = 0.02
"""Largest change that does not matter; also the default of `observatory compare --margin`."""
SCHEMA_VERSION = 2
"""Version 2 added the outcomes lasting, redefined, standing and mixture, and sorts the hosts of a placement by name."""
PORTION = 500
"""Rows of the history that are in memory as text at a time. All states of 20,000 series would be 250 MB."""
_STATE_KEY = ("suite", "suite_case", "series", "metric", "labels")
# An arbitrary number; no other program may use the same lock in the same database.
_ADVISORY_LOCK = 7_206_114_509


class SeriesKey(msgspec.Struct, frozen=True, order=True):
    """One figure of one case of a suite. series: see `bench.store.summary.series_of`. labels: sorted, as JSON."""

    suite: str
    case: str
    series: str
    metric: str
    labels: str = "{}"

    @property
    def row(self) -> dict[str, str]:
        """The key as columns of the history."""
        return {
            "suite": self.suite,
            "suite_case": self.case,
            "series": self.series,
            "metric": self.metric,
            "labels": self.labels,
        }


def labels_of(labels: Mapping[str, str]) -> str:
    """Return the labels as JSON with sorted names."""
    return msgspec.json.encode(labels, order="sorted").decode()


class OpenChange(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmed change for the worse that has neither recovered nor been accepted.

    log_level, half_width: logarithm of the level before the change, with half of its 95 % interval. since_ns: Unix time
    of the first night of the change; since_low_ns, since_high_ns: its 95 % interval, as far as the nights are known.
    first_ns: when the first change began, if since_ns belongs to a further change for the worse. newest_ns: for a ramp,
    Unix time of the first night of its newest step. log_change: of the first step. outcome: outcome of nights while the
    change is open. reason: reason of these nights, if the change itself does not say enough. definition: what changed
    in the definition of the case, if the series began worse than its predecessor; against: that predecessor.
    own_half_width: half of the 95 % interval of the present level (logarithm).
    """

    log_level: float
    half_width: float
    since_ns: int
    since_low_ns: int | None
    since_high_ns: int | None
    first_ns: int | None = None
    newest_ns: int | None = None
    log_change: float | None = None
    outcome: Outcome = "confirmed"
    reason: str | None = None
    definition: str | None = None
    against: str | None = None
    own_half_width: float = 0.0

    def is_within(self, log_change: float) -> bool:
        """Whether a further step is at most twice as large as the first one."""
        return self.log_change is not None and abs(log_change) <= 2 * abs(self.log_change)


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a change, determined when the change was first reported. Fields are as in `Verdict`."""

    good_run: str | None
    bad_run: str
    cause: str


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a series after its last night.

    detector: the detector's own state. nights: number and Unix time of the last nights, oldest first.
    legs: for an efficiency, tokens per second and rank of the run and of its baseline on the same nights.
    accepted_legs: for an efficiency with an accepted level, its legs at that level, to show which of them crept.
    accepted_half_width: if few nights gave the accepted level, half of its 95 % interval (logarithm).
    noise_onset: number of the night of the last reported noise change.
    blame: cause of the open change; None without one, and if an older version wrote the state.
    is_worse: whether its last verdict is one of `BAD`, and nobody has accepted it since; None if an older version wrote
        the state.
    attribution: result of the last pairs of source trees for the series.
    """

    detector: SeriesState
    nights: tuple[tuple[int, int], ...] = ()
    legs: tuple[tuple[float, float], ...] = ()
    accepted_legs: tuple[float, float] | None = None
    accepted_half_width: float = 0.0
    noise_onset: int | None = None
    open: OpenChange | None = None
    blame: Blame | None = None
    is_worse: bool | None = None
    attribution: Attribution | None = None
    schema_version: int = SCHEMA_VERSION


_PACKED_STATE = msgspec.msgpack.Decoder(GateState)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSeries:
    """A series that was judged. last_run, last_ns: the run of its last night, and when that run began.

    packed: its state as MessagePack; 20,000 of these take 0.2 GB, decoded ones 2 GB. revision: number of times it was
    written, 0 if never.
    """

    key: SeriesKey
    last_run: str
    last_ns: int
    packed: bytes
    revision: int = 0

    @property
    def state(self) -> GateState:
        """The state, unpacked on each call."""
        return _PACKED_STATE.decode(self.packed)

    def with_state(self, state: GateState) -> KnownSeries:
        """Return the series with another state."""
        return replace(self, packed=packed(state))

    @property
    def is_worse(self) -> bool:
        """Whether its last verdict is a bad one, as far as the state shows."""
        state = self.state
        if state.is_worse is None:
            return state.open is not None or state.detector.alert is not None
        return state.is_worse


def packed(state: GateState) -> bytes:
    """Return the state as MessagePack, the form that `KnownSeries` has."""
    return msgspec.msgpack.encode(state)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The gate's verdict on one figure of one run.

    value: the median over trials, in the metric's unit. trial_values: the value of each trial. expected: the prediction
        from earlier nights.
    change_ratio: the present level relative to the level it is compared with; 1.02 means 2 % more. low, high: its 95 %
        interval.
    since_ns: Unix time of the first night of the change; since_low_ns, since_high_ns: its 95 % interval.
    first_ns: if since_ns belongs to a further change for the worse, when the first one began; change_ratio is then of
        both.
    p_value: of the night, given the nights before. is_suspected: by it the night is unlikely, so that reruns would
        help, whatever the outcome.
    visible_ratio: the smallest change, up or down, that would have been unlikely; None if an older version judged.
    is_equivalent: the 95 % interval of the night's change lies within the margin.
    noise: a sentence with the date since when its nights differ more; reported once.
    definition: if a new series is compared with its predecessor, what changed in the definition of the case.
    margin: the case's margin, if its suite file sets one; otherwise it is `MARGIN`. reruns: number of trials of reruns
        that the verdict includes.
    is_new: not reported on an earlier night. reason: in words.
    own_ratio, baseline_ratio: for an efficiency that changed, the changes of the run's and the baseline's tokens per
        second.
    good_run, bad_run: if the figure is worse, the runs of the same series on the last night before the change and on
        its first night; good_run is None if the history has none.
    cause: the likely cause with its evidence, in a line; None if it was not searched for.
    attribution: whether the code or the environment caused the change, if runs of both source trees show it.
    strategy, shape, ranks, hosts, commit: attributes by which alerts are grouped.
    """

    key: SeriesKey
    run: str
    suite_run: str
    started_ns: int
    number: int
    outcome: Outcome
    reason: str
    value: float
    trial_values: tuple[float, ...] = ()
    expected: float | None = None
    change_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    since_ns: int | None = None
    since_low_ns: int | None = None
    since_high_ns: int | None = None
    first_ns: int | None = None
    p_value: float | None = None
    is_suspected: bool = False
    visible_ratio: float | None = None
    is_equivalent: bool = False
    noise: str | None = None
    definition: str | None = None
    margin: float | None = None
    reruns: int = 0
    is_new: bool = False
    own_ratio: float | None = None
    baseline_ratio: float | None = None
    good_run: str | None = None
    bad_run: str | None = None
    cause: str | None = None
    attribution: Attribution | None = None
    strategy: str
    shape: str
    ranks: int
    hosts: tuple[str, ...] = ()
    commit: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def shown(self) -> ShownOutcome:
        """The outcome as shown to people and programs, also for verdicts that an older version stored."""
        return "no_change_shown" if self.outcome == "same" and not self.is_equivalent else self.outcome

    @property
    def is_efficiency(self) -> bool:
        """Whether the figure is a scaling efficiency."""
        return self.key.metric == RUN_SCALING_EFFICIENCY.name

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the metric."""
        return msgspec.json.decode(self.key.labels, type=dict[str, str])


class AcceptedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A level that a person has accepted: who, when and why. level: in the metric's unit. run: that of the level."""

    key: SeriesKey
    level: float
    run: str
    who: str
    because: str
    accepted_ns: int


# States


def load_states(history: History, suite: str) -> dict[SeriesKey, KnownSeries]:
    """Return the series of the suite with their states.

    Raises:
        InfrastructureFailed: the store cannot be read, or a newer version wrote it.
    """
    states = {}
    query = select(GATE_STATES).where(GATE_STATES.c.suite == suite).execution_options(yield_per=PORTION)
    with history.transaction() as connection, connection.execute(query) as rows:
        for row in rows:
            key = _key(row)
            states[key] = KnownSeries(
                key=key,
                last_run=row.last_run,
                last_ns=row.last_ns,
                packed=packed(_upgraded(_decode(row.state_json, GateState, key))),
                revision=row.revision,
            )
    return states


def _upgraded(state: GateState) -> GateState:
    """Return the state in this version's form: version 1 named a placement by its hosts in the order of the ranks."""
    if state.schema_version >= SCHEMA_VERSION:
        return state
    placements: dict[str, PlacementOffset] = {}
    for name, offset in state.detector.placements.items():
        as_set = placement_of(name.split())
        if (other := placements.get(as_set)) is not None:
            # The series' first placement is exact; of two others, keep the one seen last, which has learned longest.
            offset = min(offset, other, key=lambda each: (each.variance > 0, -each.last_number))
        placements[as_set] = offset
    detector = msgspec.structs.replace(state.detector, placements=placements)
    return msgspec.structs.replace(state, detector=detector, schema_version=SCHEMA_VERSION)


class Raced(Exception):
    """Another process has judged the same series in the meantime."""


def save_night(
    history: History, before: Mapping[SeriesKey, KnownSeries], after: Iterable[KnownSeries], verdicts: Iterable[Verdict]
) -> None:
    """Store the verdicts of a night and the states after it, both or neither.

    before: the states with which the night was judged, for their revisions.

    Raises:
        Raced: the stored states have changed since; nothing is stored.
    """
    rows = (
        {
            **verdict.key.row,
            "run": verdict.run,
            "suite_run": verdict.suite_run,
            "started_ns": verdict.started_ns,
            "outcome": verdict.outcome,
            "verdict_json": msgspec.json.encode(verdict).decode(),
        }
        for verdict in verdicts
    )
    with history.transaction() as connection:
        _save_states(connection, before, list(after))
        _replace(connection, GATE_VERDICTS, ("run", "metric", "labels"), rows)


def _save_states(connection: Connection, before: Mapping[SeriesKey, KnownSeries], after: Sequence[KnownSeries]) -> None:
    """Write states in place of those that were read before.

    Raises:
        Raced: the stored states have other revisions.
    """
    if connection.dialect.name == "postgresql":  # SQLite locks with BEGIN IMMEDIATE, see `bench.store.database`.
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    columns = [GATE_STATES.c[name] for name in (*_STATE_KEY, "revision")]
    for suite in {series.key.suite for series in after}:
        stored = {_key(row): row.revision for row in connection.execute(select(*columns).where(columns[0] == suite))}
        for series in after:
            known = before.get(series.key)
            if series.key.suite == suite and stored.get(series.key, 0) != (0 if known is None else known.revision):
                raise Raced
    rows = (
        {
            **series.key.row,
            "revision": 1 if (known := before.get(series.key)) is None else known.revision + 1,
            "last_run": series.last_run,
            "last_ns": series.last_ns,
            "state_json": msgspec.json.encode(series.state).decode(),
        }
        for series in after
    )
    _replace(connection, GATE_STATES, _STATE_KEY, rows)


def _replace(connection: Connection, table: Table, keys: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write the rows in place of those with the same keys, in portions within the same transaction."""
    old = delete(table).where(*(table.c[name] == bindparam(f"old_{name}") for name in keys))
    remaining = iter(rows)
    while portion := list(islice(remaining, PORTION)):
        connection.execute(old, [{f"old_{name}": row[name] for name in keys} for row in portion])
        connection.execute(insert(table), portion)


# Verdicts


def load_verdicts(
    history: History,
    suite: str,
    *,
    suite_run: str | None = None,
    run: str | None = None,
    outcome: Outcome | None = None,
    key: SeriesKey | None = None,
    since_ns: int = 0,
) -> list[Verdict]:
    """Return verdicts of the suite, oldest night first, filtered by suite run, run, outcome, series or start time."""
    query = select(GATE_VERDICTS.c.verdict_json, GATE_VERDICTS.c.run).where(
        GATE_VERDICTS.c.suite == suite, GATE_VERDICTS.c.started_ns >= since_ns
    )
    if suite_run is not None:
        query = query.where(GATE_VERDICTS.c.suite_run == suite_run)
    if run is not None:
        query = query.where(GATE_VERDICTS.c.run == run)
    if key is not None:
        query = query.where(*(GATE_VERDICTS.c[name] == value for name, value in key.row.items()))
    if outcome is not None:
        query = query.where(GATE_VERDICTS.c.outcome == outcome)
    with history.transaction() as connection:
        order = (getattr(GATE_VERDICTS.c, name) for name in ("started_ns", "run", "metric", "labels"))
        rows = connection.execute(query.order_by(*order)).all()
    return [_decode(row.verdict_json, Verdict, row.run) for row in rows]


def judged_runs(history: History, suite: str, since_ns: int) -> frozenset[str]:
    """Return the runs that began since then and have verdicts."""
    query = select(GATE_VERDICTS.c.run).where(GATE_VERDICTS.c.suite == suite, GATE_VERDICTS.c.started_ns >= since_ns)
    with history.transaction() as connection:
        return frozenset(connection.scalars(query.distinct()))


# Accepted levels


def load_accepted(history: History, suite: str) -> dict[SeriesKey, AcceptedLevel]:
    """Return the newest accepted level of each series of the suite that has one."""
    query = select(ACCEPTED_LEVELS).where(ACCEPTED_LEVELS.c.suite == suite).order_by(ACCEPTED_LEVELS.c.accepted_ns)
    with history.transaction() as connection:
        rows = connection.execute(query).all()
    return {
        _key(row): AcceptedLevel(
            key=_key(row),
            level=row.level,
            run=row.run,
            who=row.who,
            because=row.because,
            accepted_ns=row.accepted_ns,
        )
        for row in rows
    }


def save_accepted(
    history: History,
    levels: Iterable[AcceptedLevel],
    before: Mapping[SeriesKey, KnownSeries],
    after: Iterable[KnownSeries],
) -> None:
    """Store accepted levels and the states of their series from now on, both or neither.

    Raises:
        Raced: the stored states have changed since; nothing is stored.
    """
    rows = [
        {
            **level.key.row,
            "accepted_ns": level.accepted_ns,
            "level": level.level,
            "run": level.run,
            "who": level.who,
            "because": level.because,
        }
        for level in levels
    ]
    with history.transaction() as connection:
        _save_states(connection, before, list(after))
        if rows:
            connection.execute(insert(ACCEPTED_LEVELS), rows)


T = TypeVar("T")


def _key(row: Any) -> SeriesKey:
    return SeriesKey(suite=row.suite, case=row.suite_case, series=row.series, metric=row.metric, labels=row.labels)


def _decode(text: str, kind: type[T], whose: object) -> T:
    try:
        document = msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InfrastructureFailed(f"the gate's state for {whose} cannot be read: {error}") from None
    version, known = getattr(document, "schema_version", 0), SCHEMA_VERSION
    if isinstance(document, GateState) and document.detector.schema_version > DETECTOR_VERSION:
        version, known = document.detector.schema_version, DETECTOR_VERSION
    if version > known:
        raise InfrastructureFailed(
            f"the gate's state for {whose} has schema version {version}, this program reads {known}; use the version"
            " that wrote it"
        )
    return document
