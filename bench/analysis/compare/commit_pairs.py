"""Pairs of commits for `observatory suite bisect`: lists the commits, measures a pair, and shows the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.analysis.compare.bisect import Bisected, Unmeasurable
from bench.errors import InfrastructureFailed, Misuse
from bench.gate.cause.attribution import FEWEST_PAIRS, MeasuredChange, change_of_pairs, change_text
from bench.gate.gated import log_trials
from bench.gate.verdicts import BAD, SeriesKey, Verdict
from bench.session.checkouts import PACKAGES, git
from bench.session.measure import CaseOrder, Listener
from bench.session.session import Session
from bench.session.tree_pairs import measure_pair
from collectors.metrics.results import RUN_MEAN_STEP_SECONDS, RUN_STEP_SECONDS

SCHEMA_VERSION = 1
_FIRST = (RUN_STEP_SECONDS.name, RUN_MEAN_STEP_SECONDS.name)
"""Preferred figures, if several of a case got worse."""


def worse_figure(verdicts: list[Verdict], case: str, is_wanted: Callable[[SeriesKey], bool]) -> Verdict:
    """Return the verdict on a figure of the case that got worse, preferably a time of the step.

    Raises:
        Misuse: no figure got worse, or only an efficiency did.
    """
    names = sorted({verdict.key.case for verdict in verdicts})
    if case not in names:
        raise Misuse(f'case "{case}" is in no suite of this history; it has {", ".join(names) or "none"}')
    worse = [verdict for verdict in verdicts if verdict.key.case == case and verdict.outcome in BAD]
    candidates = [verdict for verdict in worse if is_wanted(verdict.key) and not verdict.is_efficiency]
    if not candidates:
        what = "no figure of it" if not worse else "none of the figures that pairs of commits can measure"
        raise Misuse(f'case "{case}": {what} is worse; `observatory check` shows what is')
    return min(candidates, key=lambda verdict: verdict.key.metric not in _FIRST)


def commits_between(repository: Path, good: str, bad: str) -> list[str]:
    """Return the commits after the good one, up to the bad one, that change the code that runs; oldest first.

    Of a merge, only the merge commit counts, as on the branch that nights run.

    Raises:
        Misuse: the good commit is not an ancestor of the bad one.
    """
    try:
        git(repository, "merge-base", "--is-ancestor", good, bad)
    except InfrastructureFailed:
        raise Misuse(
            f"commit {good[:7]} is not an ancestor of {bad[:7]}: the history was rewritten, or they are on different"
            " branches; name others with --good and --bad"
        ) from None
    words = ("rev-list", "--first-parent", "--reverse", f"{good}..{bad}", "--", *PACKAGES)
    return git(repository, *words).splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPairs:
    """Measures pairs of commits on a session's nodes. order: that of the case. key: that of the figure."""

    session: Session
    order: CaseOrder
    key: SeriesKey
    repository: Path
    pairs: int

    def measure(self, before: str, after: str) -> MeasuredChange:
        """Return the change from one commit to another.

        Raises:
            Unmeasurable: a tree cannot be run, or the case fails on it.
            KeyboardInterrupt: a person interrupted it.
            InfrastructureFailed: the engine or the store failed.
        """
        tell = self.session.tell
        try:
            sides = measure_pair(
                self.session,
                self.order,
                (before, after),
                self.repository,
                pairs=self.pairs,
                note=f"bisect {self.key.case}",
                listener=Listener(),
            )
        except Misuse as error:
            tell(f"{after[:7]} is left out: {error}")
            raise Unmeasurable(str(error)) from None
        if sides.is_interrupted:
            raise KeyboardInterrupt
        first, second = (log_trials(side, self.key.metric, self.key.labels) for side in (sides.first, sides.second))
        change = change_of_pairs(first, second)
        if change is None:
            why = sides.failure or f"fewer than {FEWEST_PAIRS} pairs are complete"
            tell(f"{after[:7]} is left out: {why}")
            raise Unmeasurable(why)
        tell(f"{before[:7]} to {after[:7]}: {change_text(change)}")
        return change


def bisected_lines(bisected: Bisected, figure: str, repository: Path) -> list[str]:
    """Return the result in lines; the first names the commit or the environment, or says "unsure"."""
    change = "" if bisected.change is None else f" {change_text(bisected.change)}"
    if bisected.outcome == "commit" and bisected.commit is not None:
        subject = git(repository, "show", "--no-patch", "--format=%h %s", bisected.commit)
        lines = [f"{figure}: commit {subject}:{change}, {bisected.reason}"]
    elif bisected.outcome == "environment":
        lines = [f"{figure}: the environment and no commit: {bisected.reason}, code{change}"]
    else:
        lines = [f"{figure}: unsure: {bisected.reason}{',' if change else ''}{change}"]
        if bisected.between:
            first, last = bisected.between[0][:7], bisected.between[-1][:7]
            lines.append(f"if it is a commit, it is {first if first == last else f'one of {first} to {last}'}")
    return [*lines, *(f"{commit[:7]} cannot be run: {why}" for commit, why in bisected.skipped)]


def bisected_document(bisected: Bisected, key: SeriesKey) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION, **key.row, **msgspec.to_builtins(bisected)}
