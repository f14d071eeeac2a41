"""The diagnosis of a convergence check: which causes explain that ranks train differently from one rank.

It judges by what the ranks recorded, and knows nothing of the mistakes that the harness made them make.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from bench.convergence.evidence import (
    Answer,
    ConvergenceEvidence,
    Culprit,
    NotExamined,
    RuledOut,
    join_names,
    name_ranks,
)
from bench.convergence.updates import gap, judge_updates
from bench.rank.evidence import StepEvidence

# The data: whether all ranks together read what one rank reads, by fingerprints of sequences


def judge_sequences(witnessed: ConvergenceEvidence) -> Answer:
    """Judge whether the ranks together read the one rank's sequences in each step, whichever rank reads which."""
    for step in range(witnessed.steps):
        whole, shares = Counter(witnessed.reference[step].sequences), shares_of(witnessed, step)
        if sum(shares, Counter[str]()) != whole:
            return _repeated(witnessed, step) or _shared_wrongly(step, shares, whole)
    if witnessed.steps <= witnessed.epoch_steps:
        return RuledOut(text="sequences: together the ranks read what one rank reads (no epoch ended)")
    return RuledOut(text="sequences: together the ranks read what one rank reads, in each epoch")


def shares_of(witnessed: ConvergenceEvidence, step: int) -> list[Counter[str]]:
    """Return the sequences of each share of the batch; ranks with the same share count once if they read the same."""
    read = {
        (place, tuple(rank[step].sequences))
        for rank, place in zip(witnessed.ranks, witnessed.places, strict=True)
        if place is not None
    }
    return [Counter(sequences) for _, sequences in sorted(read)]


def _repeated(witnessed: ConvergenceEvidence, step: int) -> Culprit | None:
    """Find ranks that read every epoch in the same order, where the one rank does not."""
    epoch = witnessed.epoch_steps
    if step < epoch or _has_one_order(witnessed.reference, epoch, witnessed.steps):
        return None
    ranks = [
        rank
        for rank, place in enumerate(witnessed.places)
        if place is not None and _has_one_order(witnessed.ranks[rank], epoch, witnessed.steps)
    ]
    if not ranks:
        return None
    return Culprit(
        cause="sampler_epoch",
        step=step,
        text=f"{name_ranks(ranks)} read those of step {step - epoch} again: each epoch has the order of the first",
        next_move="call the sampler's set_epoch(epoch) before each epoch",
    )


def _has_one_order(steps: Sequence[StepEvidence], epoch: int, count: int) -> bool:
    return all(steps[step].sequences == steps[step - epoch].sequences for step in range(epoch, count))


def _shared_wrongly(step: int, shares: Sequence[Counter[str]], whole: Counter[str]) -> Culprit:
    together = sum(shares, Counter[str]())
    repeated = sum((together - whole).values())
    several = [name for name in together if sum(name in share for share in shares) > 1]
    if several:
        text = f"{len(several)} sequence(s) were read by several ranks, where one rank reads each once"
        move = "give each data rank a share of its own, such as DistributedSampler's with its rank and their number"
    else:
        text = f"{repeated} of {sum(together.values())} sequences are not those that one rank reads"
        move = "compare seed, effective batch and order of the data"
    return Culprit(cause="data_shares", step=step, text=text, next_move=move)


RATE_LIMIT = 1e-6
STATISTICS_LIMIT = 1e-4
WEIGHT_LIMIT = 1e-6
"""Allowed difference as a share of the rate, of the largest statistic, and of a weight's norm. The order of additions
makes less than 1e-6 in fp32, a mistake far more."""


def examine(witnessed: ConvergenceEvidence) -> list[Answer]:
    """Answer every question: learning rate, data, batch statistics, initial weights, replicas, gradients, updates."""
    answers = [question(witnessed) for question in QUESTIONS]
    named = judge_updates(witnessed, [answer for answer in answers if isinstance(answer, Culprit)])
    return [*(_less_consequence(answer, named) for answer in answers), *named]


def _less_consequence(answer: Answer, named: Sequence[Answer]) -> Answer:
    """Demote replicas that drift apart to a consequence, where a named gradient or update differs before."""
    if not isinstance(answer, Culprit) or answer.cause != "replicas":
        return answer
    if not any(isinstance(one, Culprit) and one.step < answer.step for one in named):
        return answer
    return NotExamined(text=f"replicas: they differ from step {answer.step} on, which what is named before explains")


def _learning_rate(witnessed: ConvergenceEvidence) -> Answer:
    if not any(seen.learning_rates for rank in witnessed.ranks for seen in rank):
        return NotExamined(text="learning rate: no rank said what it used")
    for step in range(witnessed.steps):
        expected = witnessed.rates[step]
        wrong = {
            name: used
            for name, seen in _all_of(witnessed, step)
            for used in seen.learning_rates
            if not math.isclose(used, expected, rel_tol=RATE_LIMIT)
        }
        if wrong:
            used = next(iter(wrong.values()))
            return Culprit(
                cause="learning_rate",
                step=step,
                text=f"{join_names(list(wrong))} used learning rate {used:g}, where {witnessed.rule} says {expected:g}",
                next_move="multiply the rate of every group of the optimizer by the rule's factor before its step",
            )
    return RuledOut(text=f"learning rate: each step used what {witnessed.rule} says")


def _statistics(witnessed: ConvergenceEvidence) -> Answer:
    subject = "batch statistics"
    if not witnessed.reference[0].statistics:
        return NotExamined(text=f"{subject}: not every axis of the mesh shares out the batch, so that none are taken")
    for step in range(witnessed.steps):
        first, *others = [rank[step].statistics for rank in witnessed.ranks]
        if not first or not all(others):
            break  # They are not finite any more, which the loss shows too.
        for rank, other in enumerate(others, start=1):
            if (channel := _differing(first, other)) is not None:
                return Culprit(
                    cause="batch_statistics",
                    step=step,
                    text=f"ranks normalise by statistics of their own: {_statistic(first, channel)} is"
                    f" {first[channel]:.4g} on rank 0 and {other[channel]:.4g} on rank {rank}",
                    next_move="average mean and variance over all ranks in forward, as SyncBatchNorm does",
                )
    alone, together = witnessed.reference[0], witnessed.ranks[0][0]
    is_same_data = sum(shares_of(witnessed, 0), Counter[str]()) == Counter(alone.sequences)
    channel = _differing(alone.statistics, together.statistics)
    if is_same_data and channel is not None:
        return Culprit(
            cause="batch_statistics",
            step=0,
            text=f"{_statistic(alone.statistics, channel)} is {together.statistics[channel]:.4g} on all ranks and"
            f" {alone.statistics[channel]:.4g} on one rank, of the same sequences",
            next_move="average the moments over all ranks, each rank's by its number of tokens",
        )
    return RuledOut(text=f"{subject}: all ranks normalise by the same")


def _differing(one: Sequence[float], other: Sequence[float]) -> int | None:
    """Return the index at which two lists of equal length differ most; None where they are within the limit."""
    gaps = [abs(a - b) for a, b in zip(one, other, strict=True)]
    widest = max(range(len(gaps)), key=gaps.__getitem__)
    return widest if gaps[widest] > STATISTICS_LIMIT * max(map(abs, one)) else None


def _statistic(statistics: Sequence[float], place: int) -> str:
    half = len(statistics) // 2
    return f"the {'mean' if place < half else 'variance'} of channel {place % half}"


def _initial_weights(witnessed: ConvergenceEvidence) -> Answer:
    alone = witnessed.reference[0]
    first = [rank[0] for rank in witnessed.ranks]
    told = {name for seen in first for name in seen.initial if name in alone.initial}
    if not told and all(seen.weights is None for seen in first):
        return NotExamined(text="initial weights: no rank told of any")
    other = [rank for rank, seen in enumerate(first) if not _began_alike(alone, seen)]
    if other:
        return Culprit(
            cause="initial_weights",
            step=0,
            text=f"{name_ranks(other)} began with other weights than one rank",
            next_move="seed every rank alike before the model is made, or send rank 0's weights to all",
        )
    if all(seen.weights is not None for seen in first):
        return RuledOut(text="initial weights: the same to the bit")
    missing = len(alone.initial) - len(told)
    some = f" of the {len(told)} weights that ranks told of (of {missing} none did)" if missing else ""
    return RuledOut(text=f"initial weights{some}: the same, by norm and one direction of each")


def _began_alike(alone: StepEvidence, seen: StepEvidence) -> bool:
    """Whether the initial weights match: bit by bit where the rank holds all, else by the sketches of its weights."""
    if seen.weights is not None:
        return seen.weights == alone.weights
    return all(
        gap(alone.initial[name], own) <= WEIGHT_LIMIT for name, own in seen.initial.items() if name in alone.initial
    )


def _replicas(witnessed: ConvergenceEvidence) -> Answer:
    whole = {rank: seen for rank, seen in enumerate(witnessed.ranks) if seen[0].weights is not None}
    if len(whole) < 2:
        return NotExamined(text="replicas: fewer than two ranks hold all weights")
    first, *others = whole
    if any(whole[rank][0].weights != whole[first][0].weights for rank in others):
        return NotExamined(text="replicas: they did not begin alike")
    for step in range(1, witnessed.steps):
        other = [rank for rank in others if whole[rank][step].weights != whole[first][step].weights]
        if other:
            return Culprit(
                cause="replicas",
                step=step,
                text=f"{name_ranks(other)} had other weights than rank {first}",
                next_move="look for a rank that updates by itself: gradients that are not averaged, or another rate",
            )
    return RuledOut(text="replicas: the same weights to the bit on all ranks that hold all")


QUESTIONS: tuple[Callable[[ConvergenceEvidence], Answer], ...] = (
    _learning_rate,
    judge_sequences,
    _statistics,
    _initial_weights,
    _replicas,
)
"""All questions but gradients and updates: `judge_updates` takes the answers to these into account."""


def _all_of(witnessed: ConvergenceEvidence, step: int) -> Iterator[tuple[str, StepEvidence]]:
    """Yield what the one rank and each rank recorded in a step, with the name of the recorder."""
    yield "the one rank", witnessed.reference[step]
    for rank, seen in enumerate(witnessed.ranks):
        yield f"rank {rank}", seen[step]
