"""Verdicts of the gate, and what it knows of each series: their form, and how the history keeps them."""

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
"""Outcomes of figures that are worse; see `collectors.metrics.gate.OUTCOMES` for each."""
MARGIN = 0.02
"""Largest change that does not matter, as `observatory compare --margin` has it by default."""
SCHEMA_VERSION = 2
"""2: the outcomes lasting, redefined, standing and mixture; hosts of a placement in the order of their names."""
PORTION = 500
"""Rows of the history that are held as text at a time. All states of 20,000 series are 250 MB of it."""
_STATE_KEY = ("suite", "suite_case", "series", "metric", "labels")
# An arbitrary number; no other program may lock the same one in the same database.
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

    log_level, half_width: the level before it, of the logarithm, with half of its 95 % interval. since_ns: Unix time of
    the first night of the change; since_low_ns, since_high_ns: its 95 % interval, as far as the nights are known.
    first_ns: where since_ns is that of a further change for the worse, when the first one began.
    newest_ns: of a ramp, Unix time of the first night of its newest step. log_change: of the first step.
    outcome: of nights while it is open. reason: of them, in words, where the change itself does not say enough.
    definition: where the series began worse than the one before it: what changed in the definition of the case.
    against: the series before. own_half_width: half of the 95 % interval of the present level, on logarithms.
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
        """Whether a further step is no larger than the first one was."""
        return self.log_change is not None and abs(log_change) <= 2 * abs(self.log_change)


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of the cause of a change when it was first told. Fields are as in `Verdict`."""

    good_run: str | None
    bad_run: str
    cause: str


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a series after its last night.

    detector: the detector's own state. nights: number and Unix time of the last nights, oldest first.
    legs: of an efficiency: of the same nights, the run's and the baseline's tokens per second and rank.
    accepted_legs: of an efficiency with an accepted level: its legs at that level, to tell which of them crept.
    accepted_half_width: of an accepted level that few nights told: half of its 95 % interval, on logarithms.
    noise_onset: number of the night since which the noise was last said to be another.
    blame: of the change that is open; None without one, and where an older version wrote the state.
    is_worse: whether its last verdict is one of `BAD`, and nobody has accepted that since; None where an older version
    wrote the state.
    attribution: what the last pairs of source trees said of the series.
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
    """A series that was judged. last_run, last_ns: the run of its last night, and when that began.

    packed: its state as MessagePack, of which 20,000 take 0.2 GB and unpacked ones 2 GB. revision: how often it was
    written; 0 of one that never was.
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
        """Whether its last verdict says so, as far as the state tells."""
        state = self.state
        if state.is_worse is None:
            return state.open is not None or state.detector.alert is not None
        return state.is_worse


def packed(state: GateState) -> bytes:
    """Return the state as `KnownSeries` keeps it."""
    return msgspec.msgpack.encode(state)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate says of one figure of one run.

    value: the median over trials, in the metric's unit. trial_values: of each. expected: what earlier nights predict.
    change_ratio: of the level that is judged against, to the present one; 1.02 is 2 % more. low, high: its 95 %
    interval. since_ns: Unix time of the first night of the change; since_low_ns, since_high_ns: its 95 % interval.
    first_ns: where a further change for the worse began then, when the first one did; change_ratio is of both.
    p_value: of the night against the nights before. is_suspected: by it the night is unlikely, and reruns would tell
    more, whatever the outcome. visible_ratio: the least change, up or down, by which it would have been unlikely; None
    where an older version judged. is_equivalent: the 95 % interval of the night's change lies within the margin.
    noise: since when its nights differ more, said once. definition: where a new series is held against the one before
    it: what changed in the definition of the case.
    margin: that of the case, where its suite file gives it one; else it is `MARGIN`. reruns: trials of reruns that it
    is judged by, too.
    is_new: not said on an earlier night. reason: in words.
    own_ratio, baseline_ratio: of an efficiency that changed: how the run's and the baseline's tokens per second did.
    good_run, bad_run: the runs of the same series on the last night before the change and on its first night, of what
    is worse; good_run is None where the history has none. cause: the likely cause with its evidence, in a line; None
    where it was not looked for.
    attribution: whether the change is of the code or of the environment, as far as runs of both source trees tell.
    strategy, shape, ranks, hosts, commit: what alerts are grouped by.
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
        """The outcome as people and programs are shown it, also of a verdict that an older version kept."""
        return "no_change_shown" if self.outcome == "same" and not self.is_equivalent else self.outcome

    @property
    def is_efficiency(self) -> bool:
        """Whether it is of a scaling efficiency."""
        return self.key.metric == RUN_SCALING_EFFICIENCY.name

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the metric."""
        return msgspec.json.decode(self.key.labels, type=dict[str, str])


class AcceptedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A level that a person has accepted: who, when and why. level: in the metric's unit. run: the one it is of."""

    key: SeriesKey
    level: float
    run: str
    who: str
    because: str
    accepted_ns: int


# States


def load_states(history: History, suite: str) -> dict[SeriesKey, KnownSeries]:
    """Return what is known of each series of the suite.

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
    """Return the state as this version keeps it: version 1 named a placement by its hosts in the order of the ranks."""
    if state.schema_version >= SCHEMA_VERSION:
        return state
    placements: dict[str, PlacementOffset] = {}
    for name, offset in state.detector.placements.items():
        as_set = placement_of(name.split())
        if (other := placements.get(as_set)) is not None:
            # The series' first placement is known exactly; of two others the one seen last, which has learned longest.
            offset = min(offset, other, key=lambda each: (each.variance > 0, -each.last_number))
        placements[as_set] = offset
    detector = msgspec.structs.replace(state.detector, placements=placements)
    return msgspec.structs.replace(state, detector=detector, schema_version=SCHEMA_VERSION)


class Raced(Exception):
    """Another process has judged the same series meanwhile."""


def save_night(
    history: History, before: Mapping[SeriesKey, KnownSeries], after: Iterable[KnownSeries], verdicts: Iterable[Verdict]
) -> None:
    """Keep verdicts of a night and what is known after it, both or neither.

    before: what was known when the night was judged, for its revisions.

    Raises:
        Raced: something else is known by now; nothing is kept.
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
        Raced: they are not there any more.
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
    """Write the rows in place of those with the same keys, in portions of the same transaction."""
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
    """Return verdicts of the suite, oldest night first: of a suite run, a run, an outcome, a series, since a time."""
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
    """Keep accepted levels, and what is known of their series from now on, both or neither.

    Raises:
        Raced: something else is known by now; nothing is kept.
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
