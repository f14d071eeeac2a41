"""Verdicts of the gate as a table and as JSON: worse figures, their changes, dates and causes, and missing results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from rich.console import Console

from bench.errors import plural
from bench.gate.cause.changes import Change
from bench.gate.cause.likely import change_words as likely_words
from bench.gate.cause.where import StepChange, TraceChange, in_words, seconds_words, unit_of
from bench.gate.causes import Cause
from bench.gate.check import SuiteCheck
from bench.gate.detector.power import Visible
from bench.gate.gated import NAMES, figure_words
from bench.gate.groups import Group
from bench.gate.missing import day_of
from bench.gate.regimes import SeriesRegimes
from bench.gate.verdicts import BAD, SeriesKey, Verdict
from bench.report.format import grouped, shortened
from bench.report.table import Block, Table, print_page
from collectors.metrics.gate import OUTCOMES, ShownOutcome, outcomes_of

SCHEMA_VERSION = 1
WORDS = {outcome.name: outcome.words for outcome in OUTCOMES}
ORDER = tuple(WORDS)
STYLES: dict[ShownOutcome, str] = {
    **dict.fromkeys(outcomes_of("confirmed", "found", "crept"), "red"),
    **dict.fromkeys(outcomes_of("watch"), "yellow"),
    **dict.fromkeys(outcomes_of("better"), "green"),
}
QUIET: frozenset[ShownOutcome] = frozenset({"same", "no_change_shown", "insufficient_data"})
"""Outcomes that are left out when only changes are shown."""


_NOUNS = ("suspicion", "regression", "improvement")
CHANGES_SHOWN = 3
TRACED_SHOWN = 3
_NAME_WIDTH = 48

# A verdict in words


def verdict_words(verdict: Verdict) -> str:
    """Return the verdict in words; if it shows no change, also the change that one night would not show."""
    return _no_change([verdict]) if verdict.shown == "no_change_shown" else WORDS[verdict.shown]


def _no_change(unchanged: Sequence[Verdict]) -> str:
    """Return the words for no change, and the change that the least precise of the figures would not show."""
    least = [verdict.visible_ratio for verdict in unchanged if verdict.visible_ratio is not None]
    if not least:
        return WORDS["no_change_shown"]
    return f"{WORDS['no_change_shown']} (less than {100 * max(least):.2g} % would not be detected in one night)"


def figure_name(verdict: Verdict) -> str:
    """Return the figure in a few words: `step`, `efficiency weak`, `bus bandwidth all_reduce ring 1048576`."""
    return figure_words(verdict.key.metric, verdict.labels)


def is_named(key: SeriesKey, name: str) -> bool:
    """Whether a figure has this name: that of its metric, or its words in the table."""
    return name in (key.metric, NAMES.get(key.metric))


def change_words(verdict: Verdict) -> str:
    """Return the change with its interval: `+3.1 % [+2.0, +4.2]`."""
    if verdict.change_ratio is None:
        return "-"
    text = f"{_percent(verdict.change_ratio):+.1f} %"
    if verdict.low is None or verdict.high is None:
        return text
    return f"{text} [{_percent(verdict.low):+.1f}, {_percent(verdict.high):+.1f}]"


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def since_words(verdict: Verdict) -> str:
    """Return the first night of the change, with its range: `2026-11-18 (11-17 to 11-18)`."""
    return (
        "-" if verdict.since_ns is None else onset_words(verdict.since_ns, verdict.since_low_ns, verdict.since_high_ns)
    )


def onset_words(since_ns: int, low_ns: int | None, high_ns: int | None) -> str:
    """Return the night of an onset, with the first and last possible night."""
    day = day_of(since_ns)
    ends = [day_of(end) for end in (low_ns, high_ns) if end is not None]
    return day if set(ends) <= {day} else f"{day} ({' to '.join(end[5:] for end in ends)})"


def reason_of(verdict: Verdict) -> str:
    """Return the remark below the table about a figure; for a figure reported before, the first night of its change."""
    words = [verdict.reason]
    if verdict.definition is not None and verdict.outcome in ("redefined", "improvement"):
        words = [f"{change_words(verdict)} {verdict.reason}"]
    if verdict.outcome == "confirmed" and not verdict.is_new and verdict.since_ns is not None:
        words = [f"it began {since_words(verdict)}"]
        words += [verdict.reason] if verdict.reason.startswith("not measured") else []
    if verdict.first_ns is not None:
        words.append(f"it combines several changes, the first of which began {day_of(verdict.first_ns)}")
    if verdict.own_ratio is not None and verdict.baseline_ratio is not None:
        own, baseline = (_percent(ratio) for ratio in (verdict.own_ratio, verdict.baseline_ratio))
        words.append(f"tokens per second of the run {own:+.1f} %, of its baseline {baseline:+.1f} %")
    return "; ".join(word for word in words if word)


def cause_words(verdict: Verdict) -> str | None:
    """Return the likely cause and the next command in one line; None if no cause was searched for."""
    if verdict.cause is None:
        return None
    command = (
        f"diagnose {verdict.bad_run}" if verdict.good_run is None else f"compare {verdict.good_run} {verdict.bad_run}"
    )
    return f"{verdict.cause}; next: `observatory {command}`"


# The check of suites


def print_check(checks: Sequence[SuiteCheck], *, has_details: bool, console: Console | None = None) -> None:
    """Print the figures that have changed, worst first; with details also those that have not."""
    print_page(_page(checks, has_details=has_details), console)


def _page(checks: Sequence[SuiteCheck], *, has_details: bool) -> Iterator[Block]:
    for check in checks:
        verdicts = [each for each in (*check.earlier, *check.verdicts) if has_details or each.shown not in QUIET]
        if verdicts:
            has_nights = bool(check.earlier)
            verdicts.sort(key=lambda each: (-each.started_ns * has_nights, ORDER.index(each.shown), each.key))
            rows = [
                (
                    *([day_of(verdict.started_ns)] if has_nights else []),
                    verdict.key.case,
                    figure_name(verdict),
                    change_words(verdict),
                    "-" if verdict.since_ns is None else day_of(verdict.since_ns),
                    verdict_words(verdict),
                )
                for verdict in verdicts
            ]
            columns = (*(("night",) if has_nights else ()), "case", "figure", "change", "since", "verdict")
            words = [place for place, name in enumerate(columns) if name != "change"]
            styles = [STYLES.get(verdict.shown, "") for verdict in verdicts]
            yield Table(columns, rows, words=words, keys=2 + has_nights, styles=styles)
        yield from check_lines(check, has_details=has_details)
        for cause in check.causes:
            yield from cause_lines(cause, has_details=has_details)
        yield from map(_regimes_words, check.regimes)
    yield from exit_words(checks)


def check_lines(check: SuiteCheck, *, has_details: bool = False) -> list[str]:
    """Return the lines below the table: reasons, detectable changes, what alerts share, what is missing.

    has_details: the table also has unchanged figures.
    """
    changed = [verdict for verdict in check.verdicts if verdict.shown not in QUIET]
    reasons = grouped(((verdict.key.case, reason_of(verdict)), figure_name(verdict)) for verdict in changed)
    lines = [f"{case}: {', '.join(names)}: {reason}" for (case, reason), names in reasons.items() if reason]
    noisier = grouped(((each.key.case, each.noise), figure_name(each)) for each in check.verdicts if each.noise)
    lines += [f"{case}: {', '.join(names)}: {noise}" for (case, noise), names in noisier.items()]
    lines += [f"{sick.case}: {sick.words}" for sick in check.sick]
    lines += _visible_lines(check, check.verdicts if has_details else changed)
    lines += [_group_words(group, *group.shared) for group in check.groups if group.shared is not None]
    insufficient = Counter(each.reason for each in check.verdicts if each.outcome == "insufficient_data")
    lines += [f"insufficient data for {plural(count, 'figure')}: {reason}" for reason, count in insufficient.items()]
    single = [verdict for verdict in check.verdicts if len(verdict.trial_values) == 1 and verdict.outcome != "late"]
    if single:
        cases = ", ".join(sorted({verdict.key.case for verdict in single}))
        lines.append(
            f"{plural(len(single), 'figure')} with one trial only ({cases}): a broken trial would not be noticed"
        )
    lines += [f"{missing.kind.replace('_', ' ')}: {missing.what}: {missing.reason}" for missing in check.missing]
    return lines


def _visible_lines(check: SuiteCheck, shown: Sequence[Verdict]) -> list[str]:
    """Return the changes that the shown figures can show, each with its case, and those that all others can show."""
    each = [(verdict, check.visible[verdict.key]) for verdict in shown if verdict.key in check.visible]
    words = grouped(((verdict.key.case, power.words), figure_name(verdict)) for verdict, power in each)
    lines = [f"{case}: {', '.join(names)}: {can_show}" for (case, can_show), names in words.items()]
    rest = [check.visible[key] for key in check.visible.keys() - {verdict.key for verdict in shown}]
    if rest:
        lines.append(f"{plural(len(rest), 'unchanged figure')}: {_visible_words(rest)}")
    return lines


def _visible_words(powers: Sequence[Visible]) -> str:
    """Return the changes that several figures can show, as a range."""
    smallest = sorted(powers, key=lambda power: power.smallest)
    if smallest[0].words == smallest[-1].words:
        return smallest[0].words
    nights = sorted({power.history for power in powers})
    ends = [f"{100 * power.smallest:.2g}" for power in (smallest[0], smallest[-1])]
    changes = f"lasting changes of {' to '.join(dict.fromkeys(ends))} % or more are detectable"
    words = f"with {' to '.join(map(str, dict.fromkeys((nights[0], nights[-1]))))} nights, {changes}"
    blind = [power for power in powers if power.smallest > power.target]
    if not blind:
        return words
    target = f"{100 * max(power.target for power in blind):.2g} %"
    never = sum(power.nights is None for power in blind)
    if never:
        whose = "" if never == len(powers) else f" in {never} of them"
        return f"{words}; no history is long enough for {target}{whose}"
    words += f"; {target} after about {max(power.nights for power in blind if power.nights is not None)} nights"
    return words


def _group_words(group: Group, name: str, value: str) -> str:
    """Return a sentence about the attribute that the alerts of a group share."""
    if name == "metric":
        value = NAMES.get(value, value)
    well = f"; {plural(group.others, 'other figure')} with it did not get worse" if group.others else ""
    return f"{len(group.alerts)} alerts share {name} {value}{well}"


def _regimes_words(series: SeriesRegimes) -> str:
    """Return the levels of a figure in a line: `levels of ddp, step: 18 nights from 2026-10-31; +5.8 % from ...`."""
    parts = []
    for before, now in pairwise((None, *series.regimes)):
        assert now is not None, "only what is before the first regime is None"
        change = "" if before is None else f"{_percent(now.value / before.value):+.1f} % "
        onset = onset_words(now.since_ns, now.since_low_ns, now.since_high_ns)
        parts.append(f"{change}from {onset}, {now.nights} nights")
    return f"levels of {series.figure.key.case}, {figure_name(series.figure)}: {'; '.join(parts)}"


def exit_words(checks: Iterable[SuiteCheck]) -> list[str]:
    """Return a line for each suite: the number of figures with each outcome, and the number of missing results."""
    lines = []
    for check in checks:
        unchanged = [each for each in check.verdicts if each.shown == "no_change_shown"]
        counts = {**check.counts, "no_change_shown": 0}  # These come last, with the change that would be missed.
        alone = sum(each.outcome == "suspicion" and not each.reruns for each in check.verdicts)
        counts["suspicion"] = counts.get("suspicion", 0) - alone
        words = [_counted(counts[outcome], WORDS[outcome]) for outcome in ORDER if counts.get(outcome)]
        words += [f"{_counted(alone, WORDS['suspicion'])} not measured again"] if alone else []
        words += [f"{len(unchanged)} {_no_change(unchanged)}"] if unchanged else []
        if missing := sum(each.is_alert for each in check.missing):
            words.append(f"{missing} missing or failed")
        night = "no night has ended yet" if check.night is None else f"night {check.night.id}"
        lines.append(f"suite {check.suite}, {night}: {', '.join(words) or 'nothing to judge'}")
    return lines


def _counted(count: int, words: str) -> str:
    """Return an outcome with its count: `2 regressions`, `3 same`."""
    return plural(count, words) if words in _NOUNS else f"{count} {words}"


# The cause of worse figures: what changed, where the time went, which rank, what to do next


def cause_lines(cause: Cause, *, has_details: bool) -> Iterator[str]:
    """Yield the lines of a cause, the likely cause first.

    has_details: include all changes, even if one is blamed, all parts, more kernels, and everything that is unknown.
    """
    against = "" if cause.good_run is None else f", {cause.bad_run} against {cause.good_run}"
    yield f"cause of {cause.case} ({', '.join(map(figure_name, cause.figures))}){against}:"
    yield f"  {cause.line}"
    yield from (f"  {line}" for line in _changed(cause, has_details=has_details))
    if cause.time is not None:
        yield from (f"  {line}" for line in _parts(cause.time, has_details=has_details))
    if cause.traces is not None:
        yield from (f"  {line}" for line in _traced(cause.traces, cause.time, has_details=has_details))
    if cause.standout is not None:
        yield f"  {cause.standout.text}"
    if has_details:
        yield from (f"  missing: {why}" for why in cause.missing)
    elif cause.missing:
        more = f" ({len(cause.missing) - 1} more with --details)" if len(cause.missing) > 1 else ""
        yield f"  missing: {cause.missing[0]}{more}"
    if cause.others:
        yield f"  also worse: {', '.join(cause.others)} (--details shows each)"
    yield f"  next: {'; '.join(cause.commands)}"


def changed_words(changes: Sequence[Change]) -> str:
    """Return changes on one line, each with its frequency: `driver 550.54 -> 560.28 (on 1 of 18 nights)`."""
    words = []
    for change in changes:
        frequency = "" if change.carried_by is None else f", with the {change.carried_by}"
        if change.changed_on is not None:
            frequency = f" (on {change.changed_on} of {change.nights} nights{frequency})"
        words.append(f"{likely_words(change)}{frequency}")
    return ", ".join(words)


def _changed(cause: Cause, *, has_details: bool) -> Iterator[str]:
    if has_details:
        yield from (f"changed: {changed_words([change])}" for change in cause.changes)
    elif cause.changes:
        # If no change is blamed, the reader has to choose among all of them.
        shown = cause.changes[: CHANGES_SHOWN if cause.is_likely else None]
        left_out = len(cause.changes) - len(shown)
        yield f"changed: {changed_words(shown)}{f' and {left_out} more (--details)' if left_out else ''}"


def _parts(time: StepChange, *, has_details: bool) -> Iterator[str]:
    unit = unit_of(time.step.change_s)
    shown = [part for part in time.parts if (has_details and part.change_s) or part.is_shown]
    shown.sort(key=lambda part: -abs(part.change_s))
    words = "; ".join(f"{part.name} {in_words(part, unit)}" for part in shown) or "no part stands out"
    yield f"step {in_words(time.step, unit)}: {words}"
    if has_details:
        yield f"parts: of {time.good_trials} trials before and {time.bad_trials} after"
        yield from time.notes


def _traced(traces: TraceChange, time: StepChange | None, *, has_details: bool) -> Iterator[str]:
    unit = unit_of(traces.step_s)
    step = f"traced step {seconds_words(traces.step_s, unit)}"
    if time is not None and traces.step_s * time.step.change_s <= 0:
        yield f"{step}: the change is not in the steps that were traced"
        return
    titles = []
    for title, changes in (("kernels", traces.kernels), ("collectives", traces.collectives)):
        shown = changes if has_details else changes[:TRACED_SHOWN]
        short = shortened((change.name for change in shown), _NAME_WIDTH)
        words = [
            f"{short[change.name]} {seconds_words(change.change_s, unit)}"
            + ("" if change.seen == "both" else f" ({change.seen})")
            for change in shown
        ]
        if words:
            titles.append(f"{title} {', '.join(words)}")
    yield f"{step}: {'; '.join(titles) or 'no kernel stands out'}"
    if has_details:
        yield from traces.notes


# JSON


def check_document(check: SuiteCheck) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "suite": check.suite,
        "suite_run": None if check.night is None else check.night.id,
        "is_regression": check.is_regression,
        "is_missing": check.is_missing,
        "counts": check.counts,
        "verdicts": [_verdict(verdict, check.visible.get(verdict.key)) for verdict in check.verdicts],
        "earlier": [_verdict(verdict, None) for verdict in check.earlier],
        "missing": check.missing,
        "sick_hosts": [{**msgspec.to_builtins(sick), "words": sick.words} for sick in check.sick],
        "groups": [
            {
                "shared": None if group.shared is None else dict([group.shared]),
                "alerts": [{"case": alert.key.case, "figure": figure_name(alert)} for alert in group.alerts],
                "others": group.others,
                "p_value": group.p_value,
            }
            for group in check.groups
        ],
        "causes": [
            {
                **msgspec.to_builtins(cause),
                "figures": [{"metric": each.key.metric, "labels": each.labels} for each in cause.figures],
            }
            for cause in check.causes
        ],
        "regimes": [
            {
                "case": series.figure.key.case,
                "figure": figure_name(series.figure),
                "series": series.figure.key.series,
                "regimes": series.regimes,
            }
            for series in check.regimes
        ],
    }


def _verdict(verdict: Verdict, power: Visible | None) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(verdict)
    key = fields.pop("key")
    is_bad = verdict.outcome in BAD
    can_show = None
    if power is not None:
        can_show = {
            "history_nights": power.history,
            "detectable_ratio": power.smallest,
            "target_ratio": power.target,
            "asked_nights": power.nights,
        }
    more = {"labels": verdict.labels, "is_bad": is_bad}
    return {**key, **more, **fields, "outcome": verdict.shown, "can_show": can_show}
