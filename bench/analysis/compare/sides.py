"""The two sides of a comparison: runs, suite runs or commits of the history, matched case by case."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.case import Case, options_of, why_ad_hoc
from bench.errors import Misuse, plural
from bench.store import run_dir
from bench.store.history import History
from bench.store.nights import nights_of
from bench.store.suite_record import FAILED, SuiteRecord
from bench.store.summary import Summary
from collectors.settings_file import near_name
from workloads.core.precision_options import GRAD_DTYPE, WEIGHTS
from workloads.cost_models.shape import unlike

Kind = Literal["run", "suite run", "commit"]

MOST_RUNS = 100_000
EARLIER_RUNS = 30
"""Newest other runs of a series, from which the noise of its trials is known: about a month of nights."""
LEAST_DIGITS = 7
"""Fewest hex digits that name a commit: shorter prefixes too often match something else."""
_CANDIDATES_SHOWN = 6
_NAMES_OFFERED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side, as the user named it, and its runs.

    name: the full id or commit. cases: the run of each case, by its name in the suite, else by its title. unmeasured:
    why cases have no complete trial, by name. drills: the fire drills among these that ended as expected. notes: on the
    choice of runs, for the reader.
    """

    kind: Kind
    name: str
    cases: Mapping[str, Summary]
    unmeasured: Mapping[str, str]
    drills: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The kind and the short name."""
        return f"{self.kind} {self.name[:12] if self.kind == 'commit' else self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs that are compared.

    differences: between their cases, for example `option bucket_mb 1 -> 25`. is_in_turn: their trials took turns.
    """

    name: str
    a: Summary
    b: Summary
    differences: tuple[str, ...] = ()
    is_in_turn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The pairs of two sides. missing: a line on each case left out. is_incomplete: a suite run lacks a case."""

    pairs: tuple[Pair, ...]
    missing: tuple[str, ...] = ()
    is_incomplete: bool = False


# Resolving a name on the command line


def find_side(text: str, history: History) -> Side:
    """Return the side that this text names.

    It is, in this order: a run's folder; the full id of a run or suite run; a unique prefix of a run, suite run or
    commit; the name of a watched program, for its newest run, or NAME@DAY, for the newest as of that day.

    Raises:
        Misuse: nothing or several things have this name, or the run has no complete trial.
    """
    if history.means_folder(text):
        return _of_run(run_dir.load(Path(text)))
    records = {record.id: record for record in history.suite_runs(limit=MOST_RUNS)}
    suites = list(records)
    runs = history.beginning_with(text, _CANDIDATES_SHOWN + 1)
    if history.known([text]):
        return _of_run(history.find(text))
    if text in suites:
        return _of_suite_run(records[text], history)
    commits: dict[str, list[Summary]] = {}
    if re.fullmatch(rf"[0-9a-fA-F]{{{LEAST_DIGITS},40}}", text):
        for summary in history.at_commit(text.lower(), MOST_RUNS):
            commits.setdefault(summary.commit or "", []).append(summary)
    candidates: list[tuple[Kind, str]] = [("run", name) for name in runs]
    candidates += [("suite run", name) for name in suites if name.startswith(text)]
    candidates += [("commit", commit) for commit in commits]
    if len(candidates) > 1:
        words = ", ".join(f"{kind} {name}" for kind, name in candidates[:_CANDIDATES_SHOWN])
        more = ", ..." if len(candidates) > _CANDIDATES_SHOWN else ""
        raise Misuse(f'"{text}" may be any of {words}{more}; give more of its name')
    if not candidates and (watched := history.watched(text)) is not None:
        return _of_run(watched)
    if not candidates:
        raise _unknown(text, history, suites)
    kind, name = candidates[0]
    if kind == "run":
        return _of_run(history.find(name))
    return _of_suite_run(records[name], history) if kind == "suite run" else _of_commit(name, commits[name])


def side_of_folder(text: str, runs: Path) -> Side | None:
    """Return the run whose folder this text names, as a path or as a full id in the folder of runs; else None.

    Raises:
        Misuse: the run cannot be read, or has no complete trial.
    """
    folders = [folder for folder in (Path(text), runs / text) if (folder / "case.json").is_file()]
    return _of_run(run_dir.load(folders[0])) if folders else None


def _unknown(text: str, history: History, suites: Sequence[str]) -> Misuse:
    """Return the error, which suggests the nearest name or else the newest ones."""
    names = [*history.names(_NAMES_OFFERED), *suites[:_NAMES_OFFERED]]
    near = near_name(text, names)
    newest = ", ".join(names[:_CANDIDATES_SHOWN]) or "none"
    offer = f"the newest runs are: {newest}" if near is None else f'did you mean "{near}"?'
    digits = re.fullmatch(r"[0-9a-fA-F]+", text)
    few = f", and a commit has {LEAST_DIGITS} digits or more" if digits and len(text) < LEAST_DIGITS else ""
    return Misuse(
        f'"{text}" is not a run, suite run or commit in the history{few}; {offer} (`observatory show` and'
        " `observatory suite show` list them)"
    )


def _of_run(summary: Summary) -> Side:
    if not summary.trials_done:
        raise Misuse(f"run {summary.run} has no complete trial ({_why(summary)}); choose one that has")
    return Side(
        kind="run", name=summary.run, cases={summary.case.title: summary}, unmeasured={}, notes=_watched_notes(summary)
    )


def _watched_notes(summary: Summary) -> tuple[str, ...]:
    """Return the notes on a watched run: its program, and the meaning of its intervals."""
    watched = summary.watched
    if watched is None:
        return ()
    script = f"script {(watched.script_sha256 or 'unknown')[:12]}, commit {(watched.git_commit or 'unknown')[:12]}"
    uneven = [f"{summary.run}: {watched.work_reason}"] if watched.work == "uneven" else []
    return (
        f"{summary.run}: {watched.name}, {script}; its intervals show the noise within the run; runs of one program"
        " may differ by more",
        *uneven,
    )


def _of_suite_run(record: SuiteRecord, history: History) -> Side:
    """Return a suite run with the newest run of each case that has complete trials, else the newest run."""
    name = record.id
    cases: dict[str, Summary] = {}
    for summary in history.runs(limit=MOST_RUNS, suite_run=name):
        member = summary.purpose.member
        assert member is not None, "the history finds a suite's runs by their membership"
        if member.is_rerun:
            continue  # A check of the case's own run by the gate, not a result.
        if member.case not in cases or (summary.trials_done and not cases[member.case].trials_done):
            cases[member.case] = summary
    measured = {case: summary for case, summary in reversed(cases.items()) if summary.trials_done}
    if not measured:
        raise Misuse(f"suite run {name} has no case with a complete trial; `observatory suite show {name}` shows why")
    unmeasured = {case: _why(summary) for case, summary in cases.items() if case not in measured}
    drills = frozenset(case for case in unmeasured if cases[case].outcome in FAILED and not record.has_failed(case))
    return Side(kind="suite run", name=name, cases=measured, unmeasured=unmeasured, drills=drills)


def _of_commit(commit: str, summaries: Sequence[Summary]) -> Side:
    """Return a commit with the newest run of each of its series; an ad-hoc run only if the series has no other."""
    of_series: dict[tuple[str, str], Summary] = {}
    for summary in sorted(summaries, key=lambda run: bool(why_ad_hoc(run.case, run.purpose))):  # Keeps newest first.
        if summary.trials_done:
            of_series.setdefault((summary.case.key(), summary.hardware), summary)
    if not of_series:
        runs = plural(len(summaries), "run")
        raise Misuse(f"commit {commit[:12]} has {runs}, and none has a complete trial; choose another")
    titles = [summary.case.title for summary in of_series.values()]
    cases = {
        summary.case.title
        if titles.count(summary.case.title) == 1
        else f"{summary.case.title} ({summary.run})": summary
        for summary in of_series.values()
    }
    ad_hoc = [summary.run for summary in of_series.values() if why_ad_hoc(summary.case, summary.purpose)]
    runs = plural(len(summaries), "run")
    notes = [f"commit {commit[:12]} has {runs} of {len(cases)} series: the newest run of each is compared"]
    if ad_hoc:
        notes.append(f"commit {commit[:12]}: only ad-hoc runs for some series: {', '.join(ad_hoc)}")
    return Side(kind="commit", name=commit, cases=cases, unmeasured={}, notes=tuple(notes))


def _why(summary: Summary) -> str:
    words = summary.outcome.replace("_", " ")
    return words if summary.cause is None else f"{words}: {summary.cause.text}"


# Matching runs


def match(a: Side, b: Side) -> Matched:
    """Return the pairs of two sides, and the cases without a partner.

    Two runs are always compared, and the report shows how their cases differ. Two suite runs are compared case by case,
    by name. Otherwise runs of the same series are compared.

    Raises:
        Misuse: both sides are the same, or nothing can be compared.
    """
    if (a.kind, a.name) == (b.kind, b.name):
        raise Misuse(
            f"A and B are both {a.title}; name two different ones, or measure one twice with `observatory compare"
            " --aa SUITE`"
        )
    if a.kind == b.kind == "run":
        (a_run,), (b_run,) = a.cases.values(), b.cases.values()
        return Matched(pairs=(pair(a_run.case.title, a_run, b_run),))
    matched = _by_name(a, b) if a.kind == b.kind == "suite run" else _by_series(a, b)
    if not matched.pairs:
        raise Misuse(f"{a.title} and {b.title} have nothing to compare: {'; '.join(matched.missing[:3])}")
    return matched


def _by_name(a: Side, b: Side) -> Matched:
    """Match the cases of two suite runs by name; the runs of a pair must belong to the same series."""
    pairs, missing = [], []
    drills = a.drills & b.drills
    for name in dict.fromkeys((*a.cases, *a.unmeasured, *b.cases, *b.unmeasured)):
        if name in drills:
            continue
        lacking = [
            f"{side.title} has no such case"
            if (why := side.unmeasured.get(name)) is None
            else f"{side.title} has no complete trial of it ({why})"
            for side in (a, b)
            if name not in side.cases
        ]
        if lacking:
            missing.append(f"{name} is not compared: {'; '.join(lacking)}")
            continue
        try:
            candidate = pair(name, a.cases[name], b.cases[name])
        except Misuse as error:
            missing.append(f"{name} is not compared: {error}")
            continue
        if candidate.a.case.key() != candidate.b.case.key():
            missing.append(f"{name} is not compared, because it is another series: {', '.join(candidate.differences)}")
            continue
        pairs.append(candidate)
    is_incomplete = bool(missing)
    if drills:
        missing.append(f"fire drills that ended as expected are left out: {', '.join(sorted(drills))}")
    return Matched(pairs=tuple(pairs), missing=tuple(missing), is_incomplete=is_incomplete)


def _by_series(a: Side, b: Side) -> Matched:
    """Match runs by their series, whatever their names in a suite; within a series, runs of the same case."""
    of_a, of_b = _names_by_series(a), _names_by_series(b)
    pairs, missing = [], []
    for series, ours in of_a.items():
        theirs = of_b.pop(series, [])
        both = [(name, other) for name in ours for other in theirs if _are_one_case(a.cases[name], b.cases[other])]
        if len(ours) == len(theirs) == 1:
            both = [(ours[0], theirs[0])]
        if not both and theirs:
            side, names = (a, ours) if len(ours) > 1 else (b, theirs)
            runs = ", ".join(f"{name} ({side.cases[name].run})" for name in names)
            missing.append(
                f"{ours[0]} is not compared: {side.title} has several cases of its series: {runs}; name one of the runs"
            )
            continue
        pairs += [
            pair(name, a.cases[name], b.cases[other]) for name, other in both if a.cases[name].run != b.cases[other].run
        ]
        matched = {name for name, _ in both}
        missing += [
            f"{name} is not compared: {b.title} has no run of its series" for name in ours if name not in matched
        ]
    missing += [
        f"{name} is not compared: {a.title} has no run of its series" for names in of_b.values() for name in names
    ]
    return Matched(pairs=tuple(pairs), missing=tuple(missing))


def _names_by_series(side: Side) -> dict[tuple[str, str], list[str]]:
    names: dict[tuple[str, str], list[str]] = {}
    for name, summary in side.cases.items():
        names.setdefault((summary.case.key(), summary.hardware), []).append(name)
    return names


def _are_one_case(a: Summary, b: Summary) -> bool:
    """Whether both are runs of the same case of a suite."""
    ours, theirs = a.purpose.member, b.purpose.member
    return ours is not None and theirs is not None and (ours.suite, ours.case) == (theirs.suite, theirs.case)


def pair(name: str, a: Summary, b: Summary) -> Pair:
    """Pair two runs that can be compared.

    Raises:
        Misuse: they ran on different hardware, they measure different probes or a probe and training, or the definition
            of their strategy has changed.
    """
    if a.hardware != b.hardware:
        raise Misuse(
            f"run {a.run} ran on {a.hardware}, and {b.run} on {b.hardware}; figures of different hardware are different"
            " series: choose runs on the same hardware"
        )
    if (a.case.model is None or b.case.model is None) and a.case.strategy != b.case.strategy:
        raise Misuse(
            f"run {a.run} measures {a.case.strategy} and {b.run} {b.case.strategy}, which measure different things;"
            " choose two runs of the same probe, or two of training"
        )
    if a.case.strategy == b.case.strategy and a.case.version != b.case.version:
        raise Misuse(
            f"the definition of {a.case.strategy} has changed from version {a.case.version} (run {a.run}) to"
            f" {b.case.version} ({b.run}), which begins a new series; choose runs of the same version"
        )
    # In turn: trial i of one run was measured right before or after trial i of the other, and no trial is missing.
    are_whole = all(run.outcome != "done" or run.trials_done == run.case.trials for run in (a, b))
    is_in_turn = b.run in a.in_turn_with and a.run in b.in_turn_with and are_whole
    return Pair(name=name, a=a, b=b, differences=tuple(differences(a.case, b.case)), is_in_turn=is_in_turn)


def earlier_runs(pairs: Iterable[Pair], history: History) -> dict[str, list[Summary]]:
    """Return, by the run's id, the newest other runs in the series of each run that is not compared in turn.

    They have as many steps, and show how noisy the run's trials may be. The compared runs are not among them.
    """
    runs = [run for pair in pairs if not pair.is_in_turn for run in (pair.a, pair.b)]
    compared = {run.run for run in runs}
    of_series: dict[tuple[str, str, int, int], list[Summary]] = {}
    for run in runs:
        series = (run.case.key(), run.hardware, run.case.steps, run.case.warm_up)
        if series not in of_series:
            # Two more than needed: a series is usually in one pair, whose own runs are left out.
            others = history.baselines(*series[:2], EARLIER_RUNS + 2)
            nights = nights_of(run.case, [other for other in others if other.run not in compared][:EARLIER_RUNS])
            of_series[series] = [other for night in nights for other in night]
    return {run.run: of_series[run.case.key(), run.hardware, run.case.steps, run.case.warm_up] for run in runs}


_KEYS = (
    "strategy",
    "ranks",
    "nodes",
    "device",
    "backend",
    "precision",
    "threads",
    "bind",
    "seed",
    "steps",
    "warm_up",
    "save_every",
    "save_mode",
)


def differences(a: Case, b: Case) -> Iterable[str]:
    """Yield the differences between two cases: `ranks 2 -> 4`, `option bucket_mb 1 -> 25`. Trials are not compared."""
    # The length of a user's own program is not a setting.
    keys = [key for key in _KEYS if a.watched_name is None or key not in ("steps", "warm_up")]
    pairs = [(key.replace("_", "-"), getattr(a, key), getattr(b, key)) for key in keys]
    if a.model is not None and b.model is not None:
        pairs += [(name, a.model.word(name), b.model.word(name)) for name in unlike(a.model, b.model)]
    a_options, b_options = options_of(a), options_of(b)
    pairs += [(f"option {name}", a_options[name], b_options[name]) for name in a_options if name in b_options]
    yield from (f"{name} {_word(before)} -> {_word(after)}" for name, before, after in pairs if before != after)


def arithmetic(case: Case) -> dict[str, str]:
    """Return the precisions in which a case computes, adds gradients and, for bf16, stores weights."""
    options = options_of(case)
    names = (WEIGHTS.name, GRAD_DTYPE.name) if case.precision == "bf16" else (GRAD_DTYPE.name,)
    return {"precision": case.precision, **{name: str(options[name]) for name in names if name in options}}


def arithmetic_differences(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the differences between the arithmetic of two sides, as each has it; only bf16 has `weights`."""
    names = [
        name
        for name in {**a, **b}
        if a.get(name) != b.get(name) and (name == WEIGHTS.name or (name in a and name in b))
    ]
    of_a, of_b = ({name: side[name] for name in names if name in side} for side in (a, b))
    return of_a, of_b


def arithmetic_note(a: Case, b: Case) -> str | None:
    """Return a line if two cases compute differently, so that not only their code is compared; else None."""
    of_a, of_b = arithmetic_differences(arithmetic(a), arithmetic(b))
    if not of_a:
        return None
    sides = (", ".join(f"{name} {value}" for name, value in side.items()) for side in (of_a, of_b))
    return "A has {}, B has {}: they compute differently, so no change below is a regression of the code".format(*sides)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
