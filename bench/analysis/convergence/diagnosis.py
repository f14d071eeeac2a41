"""The diagnosis of a convergence check: why several ranks train differently from one.

It uses only what the ranks recorded, and does not know the mistakes that the harness injected.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from bench.analysis.convergence.evidence import (
    CheckFinding,
    ConvergenceEvidence,
    NoCause,
    RootCause,
    join_names,
    name_ranks,
)
from bench.analysis.convergence.updates import compare_updates, difference_ratio
from bench.errors import plural
from bench.rank.evidence import StepEvidence

RATE_LIMIT = 1e-6
STATISTICS_LIMIT = 1e-4
WEIGHT_LIMIT = 1e-6
"""Allowed differences as shares of the learning rate, of the largest statistic, and of a weight's norm. In fp32, the
order of additions causes less than 1e-6, and a mistake far more."""


def diagnose(evidence: ConvergenceEvidence) -> list[CheckFinding]:
    """Examine every possible cause: learning rate, data, batch statistics, initial weights, replicas, then updates."""
    findings = [examine(evidence) for examine in EXAMINATIONS]
    updates = compare_updates(evidence, [finding for finding in findings if isinstance(finding, RootCause)])
    steps = [finding.step for finding in updates if isinstance(finding, RootCause)]
    for number, finding in enumerate(findings):
        # If a gradient or an update differed earlier, diverged replicas are a consequence.
        if (
            isinstance(finding, RootCause)
            and finding.cause == "replicas"
            and any(step < finding.step for step in steps)
        ):
            text = f"replicas: they differ from step {finding.step} on, which an earlier cause explains"
            findings[number] = NoCause(verdict="not examined", text=text)
    return [*findings, *updates]


def _learning_rate(evidence: ConvergenceEvidence) -> CheckFinding:
    if not any(evidence_of_step.learning_rates for rank in evidence.ranks for evidence_of_step in rank):
        return NoCause(verdict="not examined", text="learning rate: no rank reported its rate")
    for step, expected in enumerate(evidence.learning_rates[: evidence.steps]):
        recorded = {"the one rank": evidence.reference[step]}
        recorded |= {f"rank {rank}": steps[step] for rank, steps in enumerate(evidence.ranks)}
        wrong = {
            name: used
            for name, evidence_of_step in recorded.items()
            for used in evidence_of_step.learning_rates
            if not math.isclose(used, expected, rel_tol=RATE_LIMIT)
        }
        if wrong:
            used = next(iter(wrong.values()))
            return RootCause(
                cause="learning_rate",
                step=step,
                text=f"{join_names(list(wrong))} used learning rate {used:g}, but {evidence.rule} gives {expected:g}",
                next_move="multiply the rate of every optimizer group by the rule's factor before its step",
            )
    return NoCause(verdict="ruled out", text=f"learning rate: each step used the rate that {evidence.rule} gives")


# The data: do all ranks together read the same sequences as one rank, by their fingerprints?


def _data(evidence: ConvergenceEvidence) -> CheckFinding:
    """Compare the sequences of all ranks together with those of one rank in each step, whichever rank reads which."""
    for step in range(evidence.steps):
        expected, shares = Counter(evidence.reference[step].sequences), _shares(evidence, step)
        if sum(shares, Counter[str]()) != expected:
            return _repeated_epoch(evidence, step) or _wrong_shares(step, shares, expected)
    epochs = " (no epoch ended)" if evidence.steps <= evidence.epoch_steps else ", in each epoch"
    return NoCause(verdict="ruled out", text=f"sequences: together the ranks read what one rank reads{epochs}")


def _shares(evidence: ConvergenceEvidence, step: int) -> list[Counter[str]]:
    """Return the sequences of each share of the batch; ranks that read the same share count once."""
    read = {
        (data_rank, tuple(steps[step].sequences))
        for steps, data_rank in zip(evidence.ranks, evidence.data_ranks, strict=True)
        if data_rank is not None
    }
    return [Counter(sequences) for _, sequences in sorted(read)]


def _repeated_epoch(evidence: ConvergenceEvidence, step: int) -> RootCause | None:
    """Find ranks that read every epoch in the same order although the single rank does not."""
    epoch = evidence.epoch_steps

    def has_one_order(steps: Sequence[StepEvidence]) -> bool:
        return all(steps[at].sequences == steps[at - epoch].sequences for at in range(epoch, evidence.steps))

    if step < epoch or has_one_order(evidence.reference):
        return None
    ranks = [
        rank
        for rank, data_rank in enumerate(evidence.data_ranks)
        if data_rank is not None and has_one_order(evidence.ranks[rank])
    ]
    if not ranks:
        return None
    return RootCause(
        cause="sampler_epoch",
        step=step,
        text=f"{name_ranks(ranks)} read the sequences of step {step - epoch} again: every epoch has the order of the"
        " first",
        next_move="call the sampler's set_epoch(epoch) before each epoch",
    )


def _wrong_shares(step: int, shares: Sequence[Counter[str]], expected: Counter[str]) -> RootCause:
    together = sum(shares, Counter[str]())
    several = [name for name in together if sum(name in share for share in shares) > 1]
    if several:
        text = f"several ranks read the same {plural(len(several), 'sequence')}, but one rank reads each only once"
        move = "give each data rank its own share, for example by DistributedSampler with its rank and their number"
    else:
        wrong = sum((together - expected).values())
        text = f"{wrong} of {sum(together.values())} sequences differ from those that one rank reads"
        move = "compare the seed, the effective batch and the order of the data"
    return RootCause(cause="data_shares", step=step, text=text, next_move=move)


def _batch_statistics(evidence: ConvergenceEvidence) -> CheckFinding:
    if not evidence.reference[0].statistics:
        text = "batch statistics: not every axis of the mesh divides the batch, so there are none"
        return NoCause(verdict="not examined", text=text)
    for step in range(evidence.steps):
        first, *others_statistics = [rank[step].statistics for rank in evidence.ranks]
        if not first or not all(others_statistics):
            break  # They are no longer finite, which the loss also shows.
        for rank, statistics in enumerate(others_statistics, start=1):
            if (index := _differing(first, statistics)) is not None:
                return RootCause(
                    cause="batch_statistics",
                    step=step,
                    text=f"each rank normalises by its own statistics: {_name_statistic(first, index)} is"
                    f" {first[index]:.4g} on rank 0 and {statistics[index]:.4g} on rank {rank}",
                    next_move="average mean and variance over all ranks in forward, like SyncBatchNorm",
                )
    alone, together = evidence.reference[0], evidence.ranks[0][0]
    is_same_data = sum(_shares(evidence, 0), Counter[str]()) == Counter(alone.sequences)
    index = _differing(alone.statistics, together.statistics)
    if is_same_data and index is not None:
        return RootCause(
            cause="batch_statistics",
            step=0,
            text=f"{_name_statistic(alone.statistics, index)} is {together.statistics[index]:.4g} on all ranks and"
            f" {alone.statistics[index]:.4g} on one rank, for the same sequences",
            next_move="average the moments over all ranks, weighted by each rank's number of tokens",
        )
    return NoCause(verdict="ruled out", text="batch statistics: all ranks normalise by the same values")


def _differing(first: Sequence[float], second: Sequence[float]) -> int | None:
    """Return the index at which two lists of equal length differ most; None if they are within the limit."""
    differences = [abs(a - b) for a, b in zip(first, second, strict=True)]
    index = max(range(len(differences)), key=differences.__getitem__)
    return index if differences[index] > STATISTICS_LIMIT * max(map(abs, first)) else None


def _name_statistic(statistics: Sequence[float], index: int) -> str:
    """Name a statistic: the list holds the means of all channels, then their variances."""
    channels = len(statistics) // 2
    return f"the {'mean' if index < channels else 'variance'} of channel {index % channels}"


def _initial_weights(evidence: ConvergenceEvidence) -> CheckFinding:
    alone = evidence.reference[0]
    firsts = [steps[0] for steps in evidence.ranks]
    recorded = {name for first_step in firsts for name in first_step.initial if name in alone.initial}
    if not recorded and all(first_step.weights is None for first_step in firsts):
        return NoCause(verdict="not examined", text="initial weights: no rank reported any")
    differing = []
    for rank, first_step in enumerate(firsts):
        # Bit by bit if the rank holds all weights, else by the sketches of the weights that it holds.
        if first_step.weights is not None:
            is_same = first_step.weights == alone.weights
        else:
            ratios = (
                difference_ratio(alone.initial[name], first_step.initial[name])
                for name in recorded & first_step.initial.keys()
            )
            is_same = all(ratio <= WEIGHT_LIMIT for ratio in ratios)
        if not is_same:
            differing.append(rank)
    if differing:
        return RootCause(
            cause="initial_weights",
            step=0,
            text=f"{name_ranks(differing)} began with different weights from one rank",
            next_move="seed every rank alike before the model is built, or send rank 0's weights to all ranks",
        )
    if all(first_step.weights is not None for first_step in firsts):
        return NoCause(verdict="ruled out", text="initial weights: bitwise equal")
    missing = len(alone.initial) - len(recorded)
    scope = f" of the {len(recorded)} weights that ranks reported ({missing} were not reported)" if missing else ""
    return NoCause(verdict="ruled out", text=f"initial weights{scope}: equal by norm and by one projection of each")


def _replicas(evidence: ConvergenceEvidence) -> CheckFinding:
    """Compare the weights of all ranks that hold the whole model, bit by bit before each step."""
    replicas = {rank: steps for rank, steps in enumerate(evidence.ranks) if steps[0].weights is not None}
    if len(replicas) < 2:
        return NoCause(verdict="not examined", text="replicas: fewer than two ranks hold all weights")
    first = next(iter(replicas))
    for step in range(evidence.steps):
        differing = [rank for rank, steps in replicas.items() if steps[step].weights != replicas[first][step].weights]
        if differing and step == 0:
            return NoCause(verdict="not examined", text="replicas: their initial weights differ")
        if differing:
            return RootCause(
                cause="replicas",
                step=step,
                text=f"{name_ranks(differing)} had different weights from rank {first}",
                next_move="look for a rank that updates on its own: gradients that are not averaged, or another rate",
            )
    return NoCause(verdict="ruled out", text="replicas: bitwise equal weights on all ranks that hold the whole model")


EXAMINATIONS: tuple[Callable[[ConvergenceEvidence], CheckFinding], ...] = (
    _learning_rate,
    _data,
    _batch_statistics,
    _initial_weights,
    _replicas,
)
"""All examinations except that of gradients and updates, `compare_updates`, which uses their findings."""
