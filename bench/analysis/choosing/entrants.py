"""Selects the cases that a choice on this machine measures: the best predicted setups, and always the plainest.

Searches over predictions have returned setups that are slower than common defaults, so the plainest strategies take
part whatever their predictions are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.analysis.choosing.candidates import PLAINEST, Ranking
from bench.analysis.choosing.pricing import Candidate
from bench.analysis.race.race import RaceCase
from bench.case import Case, known_options, options_set, written
from bench.errors import Misuse
from bench.report.format import whole_percent
from bench.session.case_args import CaseArgs
from workloads.spec import OptionValue

MOST_PREDICTED = 4
"""Number of best predicted setups to measure."""


def entrants(
    ranking: Ranking | None,
    bases: Sequence[Case],
    *,
    is_named: bool,
    shape_name: str,
    dimensions: Mapping[str, int | None],
    steps: int,
) -> list[RaceCase]:
    """Return the cases to measure, the best predicted first.

    ranking: None if nothing is predicted. bases: a case of each strategy, with default options and those that the user
    set. is_named: the user named these strategies, so exactly these take part.
    """
    counts: Counter[str] = Counter()
    entered: list[RaceCase] = []

    def enter(case: Case, candidate: Candidate | None) -> None:
        ranks = 1 if case.strategy == "single" else case.ranks
        args = CaseArgs(
            strategy=case.strategy,
            ranks=(ranks,),
            shape_name=shape_name,
            dimensions=dimensions,
            device=case.device,
            backend=case.backend,
            precision=case.precision,
            steps=steps,
            options=[f"{name}={written(value)}" for name, value in options_set(case).items()],
        )
        for place, other in enumerate(entered):
            if other.args == args:
                entered[place] = replace(other, is_plain=other.is_plain or candidate is None)
                return
        counts[case.strategy] += 1
        number = counts[case.strategy]
        entered.append(
            RaceCase(
                name=_name(case, number, is_plain=candidate is None),
                args=args,
                predicted=_predicted_figure(candidate, ranking),
                limit=None if candidate is None else f"{candidate.limit[0]} {whole_percent(candidate.limit[1])}",
                is_plain=candidate is None,
            )
        )

    for candidate in _predicted_best(ranking, is_named=is_named):
        enter(candidate.case, candidate)
    predicted = {case.args.strategy for case in entered}
    for case in bases:
        if case.strategy in PLAINEST or (is_named and case.strategy not in predicted):
            enter(case, None)
    return entered


def continued(
    begun: Mapping[str, CaseArgs],
    cases: Sequence[RaceCase],
    bases: Sequence[Case],
    fixed: Mapping[str, OptionValue],
    *,
    is_named: bool,
    suite_run: str,
) -> list[RaceCase]:
    """Return the cases that an interrupted choice was begun with.

    Its own runs are in the history now, so predictions, and with them the cases that a new choice would measure, may
    differ.

    begun: the arguments of its cases by name. cases: what a new choice would measure; the predictions are theirs.
    bases, is_named: as for `entrants`. fixed: options that the user set. suite_run: its id.

    Raises:
        Misuse: it was begun with other options.
    """
    by_args = {_key(case.args): case for case in cases}
    now = {case.strategy: case for case in bases}
    expected = cases[0].args
    for name, args in begun.items():
        base = now.get(args.strategy)
        if base is None:
            raise _begun_with(suite_run, f"strategy {args.strategy}", f"without it: {', '.join(now)}")
        expected_ranks = 1 if args.strategy == "single" else base.ranks
        options = {option.name: written(option.default) for option in known_options(args.strategy)}
        options |= dict(text.split("=", 1) for text in args.options)
        for field, was, is_now in (
            ("shape", args.shape_name, expected.shape_name),
            *((f"{key} of the shape", args.dimensions.get(key), value) for key, value in expected.dimensions.items()),
            ("ranks", args.ranks and args.ranks[0], expected_ranks),
            ("device", args.device, expected.device),
            ("precision", args.precision, expected.precision),
            ("steps", args.steps, expected.steps),
            *((f"option {option}", options.get(option), written(value)) for option, value in fixed.items()),
        ):
            if was != is_now:
                raise _begun_with(suite_run, f"{field} {was} ({name})", str(is_now))
    if is_named and (missing := set(now) - {args.strategy for args in begun.values()}):
        raise _begun_with(suite_run, f"{', '.join(begun)}", f"also {', '.join(sorted(missing))}")
    return [
        replace(by_args[_key(args)], name=name)
        if _key(args) in by_args
        else RaceCase(name=name, args=args, is_plain=args.strategy in PLAINEST and not args.options)
        for name, args in begun.items()
    ]


def _key(args: CaseArgs) -> tuple[str, tuple[str, ...]]:
    return args.strategy, tuple(args.options)


def _begun_with(suite_run: str, was: str, is_now: str) -> Misuse:
    return Misuse(
        f"suite run {suite_run} was begun with {was}, now {is_now}; give the options that it was begun with, or leave"
        " --resume out"
    )


def _name(case: Case, number: int, *, is_plain: bool) -> str:
    if number == 1:
        return case.strategy
    return f"{case.strategy}-plain" if is_plain else f"{case.strategy}-{number}"


def _predicted_best(ranking: Ranking | None, *, is_named: bool) -> Sequence[Candidate]:
    """Return the candidates that take part: the best of each named strategy, or else the best of all."""
    if ranking is None:
        return ()
    if not is_named:
        return ranking.candidates[:MOST_PREDICTED]
    return [*ranking.candidates[:1], *ranking.best_of_others()]


def _predicted_figure(candidate: Candidate | None, ranking: Ranking | None) -> float | None:
    """Return tokens per second, or bytes in a choice for memory; None if the case was not evaluated."""
    if candidate is None or ranking is None:
        return None
    return candidate.tokens_per_second if ranking.objective == "throughput" else float(candidate.memory.total_bytes)
