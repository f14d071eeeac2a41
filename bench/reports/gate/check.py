"""Verdicts of the gate as a table and as JSON: what is worse, by how much, since when, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console

from bench.reports.format import open_console, print_figures, print_json, print_words, table_of
from bench.reports.gate.cause import cause_document, cause_lines
from bench.suites.gate.check import SuiteCheck
from bench.suites.gate.gated import NAMES, figure_words
from bench.suites.gate.groups import Group
from bench.suites.gate.missing import day_of
from bench.suites.gate.regimes import SeriesRegimes
from bench.suites.gate.verdicts import BAD, SeriesKey, ShownOutcome, Verdict

SCHEMA_VERSION = 1
WORDS: dict[ShownOutcome, str] = {
    "insufficient_data": "insufficient data",
    "same": "same",
    "no_change_shown": "no change shown",
    "suspicion": "suspicion",
    "regression": "regression",
    "confirmed": "confirmed worse",
    "creep": "crept",
    "improvement": "improvement",
    "recovered": "recovered",
    "faster_baseline": "faster baseline",
    "accepted": "accepted",
    "late": "left out",
}
ORDER: tuple[ShownOutcome, ...] = (
    *("confirmed", "regression", "creep", "suspicion", "improvement", "recovered", "faster_baseline"),
    *("accepted", "late", "insufficient_data", "same", "no_change_shown"),
)
STYLES: dict[ShownOutcome, str] = {
    "confirmed": "red",
    "regression": "red",
    "creep": "red",
    "suspicion": "yellow",
    "improvement": "green",
    "recovered": "green",
}
QUIET: frozenset[ShownOutcome] = frozenset({"same", "no_change_shown", "insufficient_data"})
"""What is left out where only changes are shown."""


def verdict_words(one: Verdict) -> str:
    """Return the verdict in words; where no change is shown, with what a night like this one would not show."""
    return _no_change([one]) if one.shown == "no_change_shown" else WORDS[one.shown]


def _no_change(unchanged: Sequence[Verdict]) -> str:
    """Return that no change is shown, and the change that the least exact of the figures would not show."""
    least = [one.visible_ratio for one in unchanged if one.visible_ratio is not None]
    return WORDS["no_change_shown"] + (f" (less than {100 * max(least):.2g} % would not be seen)" if least else "")


def figure_name(one: Verdict) -> str:
    """Return the figure in a few words: `step`, `efficiency weak`, `bus bandwidth all_reduce ring 1048576`."""
    return figure_words(one.key.metric, one.labels)


def is_named(key: SeriesKey, name: str) -> bool:
    """Whether a figure goes by this name: its metric's, or the words of the table."""
    return name in (key.metric, NAMES.get(key.metric))


def change_words(one: Verdict) -> str:
    """Return how much it changed, with its interval: `+3.1 % [+2.0, +4.2]`."""
    if one.change_ratio is None:
        return "-"
    text = f"{_percent(one.change_ratio):+.1f} %"
    if one.low is None or one.high is None:
        return text
    return f"{text} [{_percent(one.low):+.1f}, {_percent(one.high):+.1f}]"


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def since_words(one: Verdict) -> str:
    """Return since which night, with the first and last that it may be: `2026-11-18 (11-17 to 11-18)`."""
    return "-" if one.since_ns is None else onset_words(one.since_ns, one.since_low_ns, one.since_high_ns)


def onset_words(since_ns: int, low_ns: int | None, high_ns: int | None) -> str:
    """Return the night of an onset, with the first and last that it may be."""
    day = day_of(since_ns)
    ends = [day_of(end) for end in (low_ns, high_ns) if end is not None]
    return day if set(ends) <= {day} else f"{day} ({' to '.join(end[5:] for end in ends)})"


def exit_words(checks: Iterable[SuiteCheck]) -> list[str]:
    """Return a line for each suite: how many figures there are of each outcome, and how much is missing."""
    lines = []
    for check in checks:
        unchanged = [one for one in check.verdicts if one.shown == "no_change_shown"]
        counts = {**check.counts, "no_change_shown": 0}  # They stand at the end, with what would not be seen.
        alone = sum(one.outcome == "suspicion" and not one.reruns for one in check.verdicts)
        counts["suspicion"] = counts.get("suspicion", 0) - alone
        words = [_counted(counts[outcome], WORDS[outcome]) for outcome in ORDER if counts.get(outcome)]
        words += [f"{_counted(alone, WORDS['suspicion'])} not measured again"] if alone else []
        words += [f"{len(unchanged)} {_no_change(unchanged)}"] if unchanged else []
        if missing := sum(one.is_alert for one in check.missing):
            words.append(f"{missing} missing or failed")
        night = "no night has ended yet" if check.night is None else f"night {check.night.id}"
        lines.append(f"suite {check.suite}, {night}: {', '.join(words) or 'nothing to judge'}")
    return lines


def _counted(count: int, words: str) -> str:
    """Return so many of an outcome: `2 regressions`, `3 same`."""
    return f"{count} {words}{'s' if count > 1 and words in _NOUNS else ''}"


_NOUNS = ("suspicion", "regression", "improvement")


def print_check(checks: Sequence[SuiteCheck], *, has_details: bool, console: Console | None = None) -> None:
    """Print what is not as it was, worst first; with details also what is."""
    console = console or open_console()
    for check in checks:
        shown = [one for one in (*check.earlier, *check.verdicts) if has_details or one.shown not in QUIET]
        if shown:
            nights = ("night",) if check.earlier else ()
            columns = (*nights, "case", "figure", "change", "since", "verdict")
            table = table_of(columns, words=[place for place, name in enumerate(columns) if name != "change"])
            for one in sorted(shown, key=lambda one: (-one.started_ns * len(nights), ORDER.index(one.shown), one.key)):
                night = (day_of(one.started_ns),) if nights else ()
                since = "-" if one.since_ns is None else day_of(one.since_ns)
                cells = (one.key.case, figure_name(one), change_words(one), since, verdict_words(one))
                table.add_row(*night, *cells, style=STYLES.get(one.shown, ""))
            print_figures(console, table, keys=2 + len(nights))
        print_words(console, *check_lines(check))
        for cause in check.causes:
            names = [figure_name(one) for one in cause.figures]
            print_words(console, *cause_lines(cause, names, has_details=has_details))
        print_words(console, *map(regimes_words, check.regimes))
    print_words(console, *exit_words(checks))


def check_lines(check: SuiteCheck) -> list[str]:
    """Return what stands below the table: reasons, what alerts share, and what is missing."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in check.verdicts:
        if one.shown not in QUIET:
            reasons.setdefault((one.key.case, reason_of(one)), []).append(figure_name(one))
    lines = [f"{case}: {', '.join(names)}: {reason}" for (case, reason), names in reasons.items() if reason]
    lines += [group_words(group) for group in check.groups if group.shared is not None]
    insufficient: dict[str, int] = {}
    for one in check.verdicts:
        if one.outcome == "insufficient_data":
            insufficient[one.reason] = insufficient.get(one.reason, 0) + 1
    lines += [f"insufficient data for {count} figure(s): {reason}" for reason, count in insufficient.items()]
    lines += [f"{one.kind.replace('_', ' ')}: {one.what}: {one.reason}" for one in check.missing]
    return lines


def regimes_words(one: SeriesRegimes) -> str:
    """Return the levels of a figure in a line: `levels of ddp, step: 18 nights from 2026-10-31; +5.8 % from ...`."""
    parts = []
    for before, now in zip((None, *one.regimes), one.regimes, strict=False):
        change = "" if before is None else f"{_percent(now.value / before.value):+.1f} % from "
        onset = onset_words(now.since_ns, now.since_low_ns, now.since_high_ns)
        parts.append(f"{change or 'from '}{onset}, {now.nights} nights")
    return f"levels of {one.figure.key.case}, {figure_name(one.figure)}: {'; '.join(parts)}"


def reason_of(one: Verdict) -> str:
    """Return what there is to say of a figure beside its row. Of one that was told of before, since when it may be."""
    words = [one.reason]
    if one.outcome == "confirmed" and not one.is_new and one.since_ns is not None:
        words = [f"it began {since_words(one)}"]
        words += [one.reason] if one.reason.startswith("not measured") else []
    if one.first_ns is not None:
        words.append(f"it is of more than one change, of which the first began {day_of(one.first_ns)}")
    if one.own_ratio is not None and one.baseline_ratio is not None:
        own, baseline = (_percent(ratio) for ratio in (one.own_ratio, one.baseline_ratio))
        words.append(f"tokens per second of the run {own:+.1f} %, of its baseline {baseline:+.1f} %")
    return "; ".join(word for word in words if word)


def cause_words(one: Verdict) -> str | None:
    """Return the likely cause and the next command in one line; None where no cause was looked for."""
    if one.cause is None:
        return None
    command = f"diagnose {one.bad_run}" if one.good_run is None else f"compare {one.good_run} {one.bad_run}"
    return f"{one.cause}; next: `observatory {command}`"


def group_words(group: Group) -> str:
    """Return what the alerts of a group share."""
    assert group.shared is not None, "a group without anything shared has no words"
    name, value = group.shared
    if name == "metric":
        value = NAMES.get(value, value)
    well = f"; {group.others} other figure(s) with it are well" if group.others else ""
    return f"{len(group.alerts)} alerts share {name} {value}{well}"


# JSON


def check_document(check: SuiteCheck) -> dict[str, Any]:
    """Return the check of a suite as JSON's values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "suite": check.suite,
        "suite_run": None if check.night is None else check.night.id,
        "is_regression": check.is_regression,
        "is_missing": check.is_missing,
        "counts": dict(check.counts),
        "verdicts": [_verdict(one) for one in check.verdicts],
        "earlier": [_verdict(one) for one in check.earlier],
        "missing": [msgspec.to_builtins(one) for one in check.missing],
        "groups": [
            {
                "shared": None if group.shared is None else dict([group.shared]),
                "alerts": [{"case": one.key.case, "figure": figure_name(one)} for one in group.alerts],
                "others": group.others,
                "p_value": group.p_value,
            }
            for group in check.groups
        ],
        "causes": [cause_document(cause) for cause in check.causes],
        "regimes": [
            {
                "case": one.figure.key.case,
                "figure": figure_name(one.figure),
                "series": one.figure.key.series,
                "regimes": msgspec.to_builtins(one.regimes),
            }
            for one in check.regimes
        ],
    }


def _verdict(one: Verdict) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(one)
    key = fields.pop("key")
    return {**key, "labels": one.labels, "is_bad": one.outcome in BAD, **fields, "outcome": one.shown}


def print_check_json(checks: Sequence[SuiteCheck]) -> None:
    """Print the checks as JSON."""
    print_json([check_document(check) for check in checks])
