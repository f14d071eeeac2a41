"""What stands below the table of runs: every note, or the five lines that a person wants first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bench.judgement.estimate import Estimate, Ratio
from bench.judgement.scaling import ScalingEfficiency
from bench.purpose import why_ad_hoc
from bench.reports.figures import little, percent
from bench.summary import Summary

MOST_NOTES = 5

_ABSENT = re.compile(r"(?:the )?(.+?) (?:is|are) absent(?: from [^:,;]*)?[:,;] ")
_COMMAND = re.compile(r"`observatory run [^`]*`")
_INFORMATION = re.compile(
    r"(?:trial [^:]*: )?(?:ranks? \d.* on host |the measured ceiling is |waits and stragglers are of the last "
    r"|no straggler is named: )"
)
"""Notes of what a figure rests on, where nothing is wrong."""


def all_notes(summary: Summary) -> list[str]:
    """What the table does not say of the run: efficiency, the machine, the peak behind MFU, what is absent and why."""
    name = _name(summary)
    lines = [
        f"{name}: {found.scaling} scaling efficiency {percent(found.ratio)}"
        f" against {_baseline(found)}" + (f" ({found.ratio.why_no_interval})" if found.ratio.why_no_interval else "")
        for found in summary.scaling
    ]
    lines.append(f"{name}: {_machine(summary)}")
    if summary.peak is not None:
        lines.append(f"{name}: {_peak(summary)}")
    return [*lines, *(f"{name}: {note}" for note in summary.notes), *_ad_hoc([summary])]


def little_notes(summaries: Sequence[Summary]) -> list[str]:
    """Why figures of two trials stand without an interval, once; nothing where all of them tell enough."""
    figures: list[Estimate | Ratio] = [one for summary in summaries for one in summary.estimates]
    return little([*figures, *(found.ratio for summary in summaries for found in summary.scaling)])


def first_notes(summaries: Sequence[Summary]) -> list[str]:
    """At most `MOST_NOTES` lines: what is wrong, where it was measured, what is absent, and what would tell more.

    The line of what is absent says how many notes are shown by `--details` only, and which command shows them.
    """
    several = len(summaries) > 1
    wrong = [
        f"{_name(summary)}: {note}" if several else note
        for summary in summaries
        for note in summary.notes
        if not _ABSENT.match(note) and not _INFORMATION.match(note)
    ]
    rest_on = [line for summary in summaries for line in _baselines(summary, is_named=several)]
    machines = list(dict.fromkeys(_machine(summary) for summary in summaries))
    absent = _absent(summaries)
    would_tell = list(
        dict.fromkeys(
            command
            for summary in summaries
            for note in summary.notes
            if _ABSENT.match(note)
            for command in _COMMAND.findall(note)
        )
    )
    last = [f"these would tell more: {', '.join(would_tell)}"] if would_tell else []
    # In the order of the screen. The number says which lines stay where there are more than fit: the lowest first.
    found = [
        *((5 if number else 0, line) for number, line in enumerate(wrong)),
        *((6, line) for line in rest_on),
        *((2, line) for line in little_notes(summaries)),
        *((3, line) for line in _ad_hoc(summaries)),
        *((1, line) for line in machines[:1]),
        *((4, line) for line in last),
    ]
    kept = sorted(range(len(found)), key=lambda place: found[place][0])[: MOST_NOTES - 1]
    shown = [found[place][1] for place in sorted(kept)]
    at_end = [line for line in shown if line in last]
    hidden = (
        len(found)
        - len(shown)
        - (len(last) - len(at_end))
        + len(machines[1:])
        + sum(bool(_INFORMATION.match(note)) for summary in summaries for note in summary.notes)
        + sum(summary.peak is not None for summary in summaries)
    )
    return [*(line for line in shown if line not in last), *_in_details(absent, hidden, summaries), *at_end]


def _ad_hoc(summaries: Sequence[Summary]) -> list[str]:
    """Which of the runs are kept as ad hoc, and why; a line for all that have the same reasons."""
    names: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for summary in summaries:
        if summary.outcome == "done" and (reasons := why_ad_hoc(summary.case, summary.purpose)):
            names.setdefault((reasons, summary.purpose.note is not None), []).append(_name(summary))
    return [
        f"{', '.join(dict.fromkeys(of_runs))}: kept as ad hoc ({'; '.join(reasons)}), and never its series' newest"
        f" result at /metrics{'' if has_note else '; `run --nightly` makes such a run that all the same'}"
        for (reasons, has_note), of_runs in names.items()
    ]


def _baselines(summary: Summary, *, is_named: bool) -> Iterator[str]:
    for found in summary.scaling:
        why = f" ({found.ratio.why_no_interval})" if found.ratio.why_no_interval else ""
        name = f"{_name(summary)}: " if is_named else ""
        yield f"{name}{found.scaling} scaling efficiency is against {_baseline(found)}{why}"


def _baseline(found: ScalingEfficiency) -> str:
    """The run that it is read against, with its ranks where they are several."""
    of_ranks = "" if found.baseline_ranks == 1 else f" on {found.baseline_ranks} ranks"
    return f"{found.baseline_run}{of_ranks}{'' if found.is_beside else ', which was not measured beside it'}"


def _absent(summaries: Sequence[Summary]) -> list[str]:
    """What is absent, each thing once; of which runs, where not of all."""
    of_runs: dict[str, list[str]] = {}
    for summary in summaries:
        for note in summary.notes:
            if (found := _ABSENT.match(note)) is not None:
                of_runs.setdefault(found[1], []).append(_name(summary))
    return [
        what if len(set(names)) == len(summaries) else f"{what} ({', '.join(dict.fromkeys(names))})"
        for what, names in of_runs.items()
    ]


def _in_details(absent: Sequence[str], hidden: int, summaries: Sequence[Summary]) -> list[str]:
    run = summaries[0].run if len(summaries) == 1 else "RUN"
    words = [f"absent: {', '.join(absent)}"] if absent else []
    if hidden:
        words.append(f"{hidden} more note{'s' if hidden > 1 else ''}")
    return [f"{'; '.join(words)} (`observatory show {run} --details` tells)"] if words else []


def _name(summary: Summary) -> str:
    return f"{summary.case.strategy} on {summary.case.ranks}"


def _machine(summary: Summary) -> str:
    commit = summary.commit[:12] if summary.commit else "unknown"
    return f"on {summary.hardware}; torch {summary.torch_version}, commit {commit}, seed {summary.case.seed}"


def _peak(summary: Summary) -> str:
    assert summary.peak is not None
    peak = summary.peak
    return f"MFU by PaLM's formula, of {peak.flops_per_second / 1e12:g} TFLOP/s dense {peak.precision} ({peak.source})"
