"""The state of a suite after its newest night: verdicts, missing results, and which alerts belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from bench.errors import Misuse
from bench.gate.cause.hosts import SickCase, find_sick_hosts
from bench.gate.causes import Cause
from bench.gate.detector.power import Visible, visible
from bench.gate.groups import Group, group_alerts
from bench.gate.missing import NIGHTS_SEEN, Missing, day_of, is_going_on, may_be_resumed, missing_in
from bench.gate.nightly import judge_nights
from bench.gate.regimes import SeriesRegimes
from bench.gate.standing import judged_suites, standing_verdicts
from bench.gate.verdicts import (
    BAD,
    KnownSeries,
    SeriesKey,
    Verdict,
    load_states,
    load_verdicts,
)
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from bench.suite.form.document import shipped_suites
from collectors.metrics.gate import ShownOutcome
from collectors.settings_file import near_name

MOST_RUNS = 1_000_000
NANOSECONDS = 10**9
LAST_YEAR = 2262
"""The first year whose nanoseconds do not fit into 64 bits."""
CLOCK_NS = 3600 * NANOSECONDS
"""How far a runner's clock may be ahead of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCheck:
    """What the gate reports about a suite. night: its newest run that has ended, if any.

    verdicts: those of that night, and open ones of figures that it did not measure. earlier: verdicts of additionally
    requested nights, oldest first. sick: hosts whose nights are worse. Only if requested: visible (changes that the
    figures can show), causes (of worse figures), regimes (of figures with more than one).
    """

    suite: str
    night: SuiteRecord | None
    verdicts: tuple[Verdict, ...]
    earlier: tuple[Verdict, ...]
    missing: tuple[Missing, ...]
    groups: tuple[Group, ...]
    visible: Mapping[SeriesKey, Visible] = field(default_factory=dict)
    sick: tuple[SickCase, ...] = ()
    causes: tuple[Cause, ...] = ()
    regimes: tuple[SeriesRegimes, ...] = ()

    @property
    def counts(self) -> dict[ShownOutcome, int]:
        """Number of the night's figures with each outcome."""
        return dict(Counter(verdict.shown for verdict in self.verdicts))

    @property
    def is_regression(self) -> bool:
        """Whether any figure is known to be worse."""
        return any(verdict.outcome in BAD for verdict in self.verdicts)

    @property
    def is_missing(self) -> bool:
        """Whether something that should be there is missing."""
        return any(absence.is_alert for absence in self.missing)


def check_suite(
    history: History,
    suite: str,
    records: Sequence[SuiteRecord],
    *,
    since_ns: int | None,
    now_ns: int,
    is_judging: bool = True,
) -> SuiteCheck:
    """Judge the nights that have no verdicts yet, and return the state after the newest night.

    records: the suite's runs, newest first. since_ns: also return the verdicts of all nights from then on. is_judging:
    if False, nothing is judged or written, and the state is that after the newest judged night.
    """
    past = [record for record in records if record.started_ns <= now_ns + CLOCK_NS]
    unfinished = [record.id for record in past if is_going_on(record, now_ns) or may_be_resumed(record, past, now_ns)]
    if is_judging:
        judge_nights(history, suite, now_ns=now_ns + CLOCK_NS, unfinished=unfinished)
        night = next((record for record in past if record.id not in unfinished), None)
    else:
        judged = judged_suites(history, now_ns + CLOCK_NS).get(suite)
        night = next((record for record in past if judged is not None and record.id == judged.suite_run), None)
    known = load_states(history, suite)
    verdicts = standing_verdicts(history, suite, None if night is None else night.id, known)
    earlier = [] if since_ns is None else load_verdicts(history, suite, since_ns=since_ns)
    return SuiteCheck(
        suite=suite,
        night=night,
        verdicts=tuple(verdicts),
        earlier=tuple(verdict for verdict in earlier if night is None or verdict.suite_run != night.id),
        missing=(
            *_of_the_future(history, records, now_ns),
            *_late(load_verdicts(history, suite, outcome="late"), known, past),
            *(missing_in(history, past, known.values(), now_ns=now_ns) if past else ()),
        ),
        groups=group_alerts(verdicts),
        sick=find_sick_hosts(history, suite, verdicts, known),
    )


def standing_of(history: History, suite: str | None, now_ns: int) -> list[Verdict]:
    """Return the gate's last verdict on each figure so far, for one suite or for all; judge nothing.

    Raises:
        Misuse: the suite has no run in the history.
    """
    suites = suites_in(history)
    chosen = suites if suite is None else (require_suite(suite, suites),)
    judged = judged_suites(history, now_ns + CLOCK_NS)
    return [
        verdict
        for name in chosen
        for verdict in standing_verdicts(
            history, name, judged[name].suite_run if name in judged else None, load_states(history, name)
        )
    ]


def with_visible(history: History, check: SuiteCheck) -> SuiteCheck:
    """Return the check with the changes that each figure can show, for figures that have a level."""
    known = load_states(history, check.suite)
    shown = {each.key: visible(known[each.key].state.detector) for each in check.verdicts if each.key in known}
    return replace(check, visible={key: power for key, power in shown.items() if power is not None})


def _of_the_future(history: History, records: Iterable[SuiteRecord], now_ns: int) -> Iterator[Missing]:
    """Yield suite runs that began in the future, by a wrong clock, which may already have been used to judge them."""
    for record in records:
        if record.started_ns > now_ns + CLOCK_NS:
            when = f"on {day_of(record.started_ns)}, by the clock of its runner"
            judged = "it is not judged"
            if load_verdicts(history, record.suite, suite_run=record.id):
                judged = "it was judged by that clock, and the nights after it are judged"
            reason = f"{record.id} began in the future, {when}; {judged}"
            yield Missing(kind="clock", suite=record.suite, what=record.suite, reason=reason)


def _late(
    verdicts: Iterable[Verdict], known: Mapping[SeriesKey, KnownSeries], past: Sequence[SuiteRecord]
) -> Iterator[Missing]:
    """Yield cases with a recent run that was left out because it began before nights that were already judged.

    The series' later nights define what is recent, because the run's own start time is wrong. A series that is missing
    from all of the suite's last nights has ended, and is left out. past: the suite's runs, newest first.
    """
    lately = {}
    since_ns = min((record.started_ns for record in past[:NIGHTS_SEEN]), default=0)
    for verdict in verdicts:
        series = known.get(verdict.key)
        if series is None or series.last_ns < since_ns:
            continue
        if sum(number > verdict.number for number, _ in series.state.nights) < NIGHTS_SEEN:
            lately[verdict.key.case] = verdict
    for case, verdict in lately.items():
        began = day_of(verdict.started_ns)
        reason = f"{verdict.run} began on {began}, before a night that is already judged; a clock was set back"
        yield Missing(kind="late", suite=verdict.key.suite, what=case, reason=reason)


def suites_in(history: History) -> tuple[str, ...]:
    return tuple(sorted({record.suite for record in history.suite_runs(MOST_RUNS)}))


def require_suite(name: str, suites: Sequence[str]) -> str:
    """Return the name if the history has runs of this suite.

    Raises:
        Misuse: the history has none; the message offers the nearest name.
    """
    if name in suites:
        return name
    near = near_name(name, suites)
    offer = f"it has {', '.join(suites) or 'none'}" if near is None else f'did you mean "{near}"?'
    maker = f" (`observatory suite run {name}` makes one)" if name in shipped_suites() else ""
    raise Misuse(f'suite "{name}" has no run in this history; {offer}{maker}')


def night_ns(text: str, records: Sequence[SuiteRecord]) -> int:
    """Return when a night began. `text` is the id of a suite run, the beginning of one, or a UTC day (2026-11-23).

    Raises:
        Misuse: no night, or more than one, matches.
    """
    matches = [record for record in records if record.id == text] or [
        record for record in records if record.id.startswith(text)
    ]
    if len(matches) == 1:
        return matches[0].started_ns
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        if not 1970 <= day.year < LAST_YEAR:
            raise ValueError
        return int(day.timestamp()) * NANOSECONDS
    except ValueError:
        newest = ", ".join(record.id for record in (matches or records)[:4]) or "none"
        what = (
            "may be any of" if matches else "is neither a day, for example 2026-11-23, nor a suite run; the newest are"
        )
        raise Misuse(f'night "{text}" {what}: {newest}') from None
