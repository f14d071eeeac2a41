"""A convergence check: a strategy on its ranks beside `single` on the same batches, and what their evidence says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.asking import baseline_case
from bench.case import Case
from bench.controller import Measured
from bench.engines.messages import Cause
from bench.errors import Misuse
from bench.evidence import Seen, read_evidence
from bench.judgement.convergence import Verdict, judge
from bench.judgement.witnessed import Witnessed
from workloads.cards.check_options import Check, Mistake, check_of
from workloads.cards.data_place import DATA_AXES
from workloads.cards.training_options import rate_factor

NOT_IN_CHECKS = (
    "trials",
    "warm_up",
    "trace_steps",
    "keep_traces",
    "trace_every",
    "memory_snapshot",
    "with_baseline",
    "baseline_run",
    "fault_text",
    "with_timeline",
    "is_nightly",
)
"""Parameters of `run` that a check does not take: it measures no speed."""

EPOCHS = 4
"""That a check goes through, so that what happens at the end of one shows."""

LARGEST_CLIP = 0.1
"""What a check clips gradients to at the most, so that clipping changes them and its mistakes show. Measured: `tiny`
has norms of 0.36 to 3.6 in 40 steps at rates up to 3e-2, with the layer that normalises over the batch and without it.
Where the case clips nothing, neither does its check."""


def refuse_measuring_words(words: Sequence[str]) -> None:
    """Refuse what only a measurement takes. words: those that were said.

    Raises:
        Misuse: there is one.
    """
    if words:
        said = ", ".join(f"--{word}" for word in words)
        raise Misuse(f"--check-convergence compares losses and measures no speed: {said} cannot be set with it")


def check_cases(case: Case, mistakes: Sequence[Mistake]) -> tuple[Case, Case, Case]:
    """The one rank, the same with its batches read backwards, and the ranks that are compared with it.

    mistakes: that the ranks make on purpose, and the one rank does not.

    Raises:
        Misuse: such a case cannot be compared, or a mistake would have no effect.
    """
    _refuse_incomparable(case)
    check = Check(
        epoch_steps=max(2, case.steps // EPOCHS),
        data_ranks=case.card().data_ranks(case),
        has_batch_norm=_without_batch_norm(case) is None,
    )
    _refuse_idle_mistakes(case, check, mistakes)
    together = replace(case, trials=1, warm_up=0, trace_steps=0)
    alone = baseline_case(together, "strong")
    return (
        _with(alone, check),
        _with(alone, replace(check, is_reversed=True)),
        _with(together, replace(check, mistakes=tuple(dict.fromkeys(mistakes)))),
    )


def conclude(measured: Measured) -> tuple[Measured, Verdict | None]:
    """The verdict on the ranks, whose run has failed where they disagree; None where a run did not end well."""
    if any(summary.outcome != "done" for summary in measured.summaries):
        return measured, None
    alone, backwards, together = measured.summaries
    verdict = judge(
        witnessed(
            together.case,
            reference=read_evidence(Path(alone.folder), 0),
            backwards=read_evidence(Path(backwards.folder), 0),
            ranks=[read_evidence(Path(together.folder), rank) for rank in range(together.case.ranks)],
        )
    )
    if verdict.outcome == "disagrees":
        together = replace(together, outcome="failed", cause=_cause(verdict))
    return replace(measured, summaries=(alone, backwards, together)), verdict


def witnessed(
    case: Case, *, reference: Sequence[Seen], backwards: Sequence[Seen], ranks: Sequence[Sequence[Seen]]
) -> Witnessed:
    """The evidence of a check together with what the case of its ranks says of it."""
    check = check_of(case)
    assert check is not None, "it is the case of a check"
    rate, data_ranks = float(case.options["learning_rate"]), check.data_ranks
    places = (case.card().place_of(case, rank) for rank in range(case.ranks))
    return Witnessed(
        reference=reference,
        backwards=backwards,
        ranks=ranks,
        places=[None if place is None else place.rank for place in places],
        rates=[rate * rate_factor(case, data_ranks=data_ranks, step=step) for step in range(case.steps)],
        rule=f"lr_rule={case.options['lr_rule']} over {data_ranks} data rank(s)",
        epoch_steps=check.epoch_steps,
        clip=float(case.options["clip"]),
    )


def _with(case: Case, check: Check) -> Case:
    clip = min(float(case.options["clip"]), LARGEST_CLIP)
    return replace(case, options={**case.options, **check.options(), "clip": clip})


def _refuse_incomparable(case: Case) -> None:
    card, parity = case.card(), case.card().parity
    if case.ranks == 1:
        raise Misuse("--check-convergence compares several ranks with one; ranks is 1")
    if parity.kind == "none":
        raise Misuse(f"{card.name} is not comparable with one rank: {parity.reason}; choose another strategy")
    if (reason := parity.incomparable(case)) is not None:
        raise Misuse(f"{card.name} is not comparable with one rank: {reason}")
    if parity.kind == "lossless_limit" and not any(
        all(case.options[name] == value for name, value in variant.items()) for variant in parity.variants
    ):
        variants = " or ".join(
            ", ".join(f"{name}={value}" for name, value in variant.items()) for variant in parity.variants
        )
        raise Misuse(f"{card.name} is comparable with one rank only where it loses nothing: set {variants}")
    if case.precision != "fp32":
        raise Misuse(
            f"precision is {case.precision}; how far losses may be apart was measured in fp32: take --precision fp32"
        )


def _refuse_idle_mistakes(case: Case, check: Check, mistakes: Sequence[Mistake]) -> None:
    factor = rate_factor(case, data_ranks=check.data_ranks, step=case.steps - 1)
    if "learning_rate" in mistakes and factor == 1.0:
        raise Misuse(
            f"cause learning_rate leaves the rule out, and lr_rule={case.options['lr_rule']} over {check.data_ranks}"
            " data rank(s) changes nothing; add --option lr_rule=linear"
        )
    if "sampler_epoch" in mistakes and case.steps <= check.epoch_steps:
        raise Misuse(
            f"cause sampler_epoch shows after an epoch of {check.epoch_steps} steps, and steps is {case.steps};"
            f" take --steps {check.epoch_steps + 1} or more"
        )
    if "batch_statistics" in mistakes and (reason := _without_batch_norm(case)) is not None:
        raise Misuse(f"cause batch_statistics {reason}")


def _without_batch_norm(case: Case) -> str | None:
    """Why the model of a check has no layer that normalises over the batch; None where it has one."""
    axes = case.card().mesh(case)
    # Ranks whose shares are equal have the batch's mean as the mean of theirs.
    if not all(axis in DATA_AXES for axis in axes):
        return f"needs a mesh whose axes all share out the batch; {case.strategy} has {', '.join(axes)}"
    if case.backend == "nccl" and case.card().has_second_communicator(case):
        return (
            f"needs averages over the batch in backward, beside which {case.strategy} with these options uses a"
            " communicator of its own, and two at once may hang on nccl: take compress=none"
        )
    return None


def _cause(verdict: Verdict) -> Cause:
    named = [f"{culprit.cause} from step {culprit.step}" for culprit in verdict.causes]
    causes = ", ".join(named if verdict.is_explained else [*named, "unknown"])
    parted = "losses agree so far" if verdict.parted_at is None else f"losses part in step {verdict.parted_at}"
    return Cause(
        kind="error", rank=None, step=verdict.parted_at, text=f"does not train as one rank does: {parted}; {causes}"
    )
