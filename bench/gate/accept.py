"""Accepting the present level of a case: pinned with who, when and why, and held against slow creep from then on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec

from bench.errors import Misuse
from bench.gate.detector.detector import level
from bench.gate.figure import DAY_NS, middle_legs
from bench.gate.verdicts import AcceptedLevel, GateState, KnownSeries, SeriesKey


def by_metric(key: SeriesKey, name: str) -> bool:
    """Whether the name is that of the figure's metric."""
    return key.metric == name


def accept(
    known: Iterable[KnownSeries],
    *,
    case: str,
    metric: str | None,
    is_named: Callable[[SeriesKey, str], bool] = by_metric,
    who: str,
    because: str,
    now_ns: int,
) -> tuple[list[AcceptedLevel], list[KnownSeries]]:
    """Return the present levels of the case's newest series as accepted, and its series without open changes.

    Series that the last night did not have, as of an older definition or of a machine that has gone, get no level: what
    is open of them is closed, since no night will ever do so.

    metric: only this one. is_named: whether a figure goes by this name.

    Raises:
        Misuse: the case never ran, has no such figure, too few nights for a level, or a change of tonight alone.
    """
    every = list(known)
    of_case = [figure for figure in every if figure.key.case == case]
    if not of_case:
        names = ", ".join(sorted({figure.key.case for figure in every})[:8]) or "none"
        raise Misuse(f'case "{case}" has never been judged, so there is no level to accept; judged cases: {names}')
    newest_ns = max(figure.last_ns for figure in of_case)
    of_night = [
        figure for figure in of_case if figure.last_ns >= newest_ns - DAY_NS
    ]  # On each kind of machine of the night.
    chosen = [figure for figure in of_night if metric is None or is_named(figure.key, metric)]
    closed = [
        _closed(figure)
        for figure in of_case
        if figure not in of_night and figure.is_worse and (metric is None or is_named(figure.key, metric))
    ]
    if not chosen and not closed:
        names = ", ".join(sorted({figure.key.metric for figure in of_night}))
        raise Misuse(f'case "{case}" has no figure "{metric}"; it has: {names}')
    if fresh := [figure.key.metric for figure in chosen if figure.state.detector.alert is not None]:
        raise Misuse(
            f"the change of {case} ({', '.join(dict.fromkeys(fresh))}) is from this night only, and its new level"
            " is not"
            " known yet; accept it when `observatory check` says that it is confirmed, or leave it out with --metric"
        )
    levels: list[AcceptedLevel] = []
    after: list[KnownSeries] = []
    for figure in chosen:
        present = level(figure.state.detector)
        if present is None:
            continue
        levels.append(
            AcceptedLevel(
                key=figure.key,
                level=math.exp(present.log_level),
                run=figure.last_run,
                who=who,
                because=because,
                accepted_ns=now_ns,
            )
        )
        pinned = _closed(figure)
        state = msgspec.structs.replace(pinned.state, accepted_legs=_legs_at_level(figure.state))
        after.append(pinned.with_state(state))
    if not levels and not closed:
        raise Misuse(f'case "{case}" has too few nights for a level; accept it when `observatory check` judges it')
    return levels, [*after, *closed]


def _legs_at_level(state: GateState) -> tuple[float, float] | None:
    """Return the legs of an efficiency at its present level."""
    return middle_legs(state.legs, state.nights, since_number=state.detector.regime_starts[-1])


def _closed(known: KnownSeries) -> KnownSeries:
    """Return the series without anything open, and without its cause."""
    state = known.state
    detector = msgspec.structs.replace(state.detector, alert=None)
    return known.with_state(msgspec.structs.replace(state, detector=detector, open=None, blame=None, is_worse=False))
