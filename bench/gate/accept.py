"""Accept the present level of a case: record who, when and why, and compare later nights with it for creep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import median

import msgspec

from bench.errors import Misuse
from bench.gate.cause.legs import middle_legs
from bench.gate.detector.detector import PAST_LEVELS, level
from bench.gate.detector.hypotheses import begin
from bench.gate.detector.level_filter import NightValue
from bench.gate.detector.night import learn
from bench.gate.detector.settings import SETTINGS
from bench.gate.figure import DAY_NS
from bench.gate.verdicts import AcceptedLevel, GateState, KnownSeries, SeriesKey

AGREEING_NIGHTS = 3
"""Nights that a change must have, each near the same level, before that level can be accepted."""


def by_metric(key: SeriesKey, name: str) -> bool:
    """Whether `name` is the figure's metric."""
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
    """Return the accepted levels of the case's newest series, and those series without open changes.

    Series that are missing from the last night, because of an older definition or a machine that has gone, get no
    level. Their open changes are closed, since no later night would close them.

    metric: accept only this metric. is_named: whether a figure goes by this name.

    Raises:
        Misuse: the case never ran, has no such figure, has too few nights for a level, or its change has nights that
            disagree.
    """
    every = list(known)
    of_case = [figure for figure in every if figure.key.case == case]
    if not of_case:
        names = ", ".join(sorted({figure.key.case for figure in every})[:8]) or "none"
        raise Misuse(f'case "{case}" has never been judged, so there is no level to accept; judged cases: {names}')
    newest_ns = max(figure.last_ns for figure in of_case)
    of_night = [figure for figure in of_case if figure.last_ns >= newest_ns - DAY_NS]  # One on each kind of machine.
    chosen = [figure for figure in of_night if metric is None or is_named(figure.key, metric)]
    closed = [
        _closed(figure)
        for figure in of_case
        if figure not in of_night and figure.is_worse and (metric is None or is_named(figure.key, metric))
    ]
    if not chosen and not closed:
        names = ", ".join(sorted({figure.key.metric for figure in of_night}))
        raise Misuse(f'case "{case}" has no figure "{metric}"; it has: {names}')
    chosen = [_settled(figure) for figure in chosen]
    levels: list[AcceptedLevel] = []
    after: list[KnownSeries] = []
    for figure in chosen:
        present = _present(figure.state)
        if present is None:
            continue
        levels.append(
            AcceptedLevel(
                key=figure.key,
                level=math.exp(present[0]),
                run=figure.last_run,
                who=who,
                because=because,
                accepted_ns=now_ns,
            )
        )
        pinned, before = _closed(figure), figure.state
        legs = middle_legs(before.legs, before.nights, since_number=before.detector.regime_starts[-1])
        state = msgspec.structs.replace(pinned.state, accepted_legs=legs, accepted_half_width=present[1])
        after.append(pinned.with_state(state))
    if not levels and not closed:
        raise Misuse(f'case "{case}" has too few nights for a level; accept it when `observatory check` judges it')
    return levels, [*after, *closed]


def _settled(known: KnownSeries) -> KnownSeries:
    """Return the series at its present level: after an open change, the level of the nights since then, if three agree.

    Raises:
        Misuse: the nights since the change are too few, or disagree.
    """
    of_gate = known.state
    state = of_gate.detector
    alert, unchanged = state.alert, state.unchanged
    if alert is None or unchanged is None:
        return known
    what = f"the change of {known.key.case} ({known.key.metric})"
    own = [night for night in state.nights if night.number >= alert.onset]
    if len(own) < AGREEING_NIGHTS:
        nights = "this night" if len(own) == 1 else f"{len(own)} nights"
        raise Misuse(
            f"{what} is from {nights} only, and its new level is not known yet; accept it when {AGREEING_NIGHTS} nights"
            " agree, or leave it out with --metric"
        )
    middle = median(night.log_value for night in own)
    change = abs(middle - unchanged.level)
    apart = [abs(night.log_value - middle) for night in own[-AGREEING_NIGHTS:]]
    if max(apart) > change / 2:
        raise Misuse(
            f"{what} has no level yet: its last {AGREEING_NIGHTS} nights differ by {100 * math.expm1(max(apart)):.2g} %"
            f" from their median, which is {100 * math.expm1(change):.2g} % away from the previous level; accept it"
            f" when {AGREEING_NIGHTS} nights agree, or leave it out with --metric"
        )
    before = [night for night in state.nights if night.number < alert.onset]
    regimes = [[night.log_value for night in nights] for nights in (before, own) if nights]
    noise = learn(regimes, median(night.variance for night in state.nights), SETTINGS)
    begun, hypotheses = begin(
        [NightValue(night.number, night.log_value, night.variance) for night in own], noise, SETTINGS
    )
    detector = msgspec.structs.replace(
        state,
        unchanged=begun,
        hypotheses=hypotheses,
        likely_onset=None,
        regime_starts=(*state.regime_starts, alert.onset),
        past_levels=((unchanged.level, unchanged.level_variance), *state.past_levels)[:PAST_LEVELS],
    )
    return known.with_state(msgspec.structs.replace(of_gate, detector=detector))


def _present(state: GateState) -> tuple[float, float] | None:
    """Return the logarithm of the present level, and the half width of its interval if few nights give it (else 0)."""
    present = level(state.detector)
    if present is not None:
        return present.log_level, 0.0
    if state.open is None:  # A new series, no worse than the one before it, has no level yet.
        return None
    return median(night.log_value for night in state.detector.nights), state.open.own_half_width


def _closed(known: KnownSeries) -> KnownSeries:
    """Return the series without open changes or a cause."""
    state = known.state
    detector = msgspec.structs.replace(state.detector, alert=None)
    return known.with_state(msgspec.structs.replace(state, detector=detector, open=None, blame=None, is_worse=False))
