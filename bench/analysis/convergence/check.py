"""The convergence check: whether a strategy on several ranks trains like one rank on the same batches.

`check_cases` makes the three cases of a check; `conclude` and `evaluate` compare their losses step by step and name
what explains a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from bench.analysis.convergence.diagnosis import diagnose
from bench.analysis.convergence.evidence import (
    FP32_LIMITS,
    CheckLimits,
    ConvergenceEvidence,
    NoCause,
    RootCause,
)
from bench.analysis.convergence.updates import clipped_steps
from bench.case import Case, baseline_case
from bench.errors import Misuse, plural
from bench.rank.evidence import StepEvidence, read_evidence
from bench.rank.messages import FailureCause
from bench.session.measure import MeasuredRuns
from workloads.core.learning_rate import rate_factor
from workloads.core.precision_options import is_fp8
from workloads.options import Check, Mistake, check_of
from workloads.spec import DATA_AXES, HALF_WEIGHTS_LIMIT

# The verdict: losses compared step by step


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """One step's mean loss in nats, on one rank and over all ranks; None if not finite.

    tolerance_ratio: the allowed difference, as a share of the loss on one rank.
    """

    step: int
    one_rank: float | None
    all_ranks: float | None
    tolerance_ratio: float

    @property
    def difference_ratio(self) -> float | None:
        """The difference as a share of the loss on one rank; None if either loss is not finite."""
        return _difference_ratio(self.one_rank, self.all_ranks)

    @property
    def agree(self) -> bool:
        """Whether the losses are within the tolerance; also true if neither is finite."""
        ratio = self.difference_ratio
        return self.one_rank == self.all_ranks if ratio is None else ratio <= self.tolerance_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceVerdict:
    """The verdict of a convergence check.

    outcome: "agrees" only if no loss diverges and no cause is named.
    parted_at: the first step whose losses differ by more than the tolerance; None if there is none.
    causes: ordered by the step that first shows them. is_explained: a cause shows no later than the losses diverge.
    clip: the norm that gradients are clipped to, 0 without clipping. clipped_steps: the number of steps in which the
        norm on one rank was above it.
    """

    outcome: Literal["agrees", "disagrees"]
    parted_at: int | None
    losses: tuple[Losses, ...]
    causes: tuple[RootCause, ...]
    is_explained: bool
    ruled_out: tuple[str, ...]
    not_examined: tuple[str, ...]
    clip: float
    clipped_steps: int


def evaluate(evidence: ConvergenceEvidence) -> ConvergenceVerdict:
    """Compare the losses, and name the causes of differences."""
    losses = []
    rounding_ratio = 0.0
    for step in range(evidence.steps):
        one_rank = _mean_loss([evidence.reference[step]])
        rounding_ratio = max(rounding_ratio, _difference_ratio(one_rank, _mean_loss([evidence.backwards[step]])) or 0.0)
        all_ranks = _mean_loss([rank[step] for rank in evidence.ranks])
        allowed_ratio = tolerance(step, rounding_ratio, evidence.limits)
        losses.append(Losses(step=step, one_rank=one_rank, all_ranks=all_ranks, tolerance_ratio=allowed_ratio))
    parted_at = next((pair.step for pair in losses if not pair.agree), None)
    findings = diagnose(evidence)
    causes = sorted((finding for finding in findings if isinstance(finding, RootCause)), key=lambda cause: cause.step)
    no_causes = [finding for finding in findings if isinstance(finding, NoCause)]
    return ConvergenceVerdict(
        outcome="agrees" if parted_at is None and not causes else "disagrees",
        parted_at=parted_at,
        losses=tuple(losses),
        causes=tuple(causes),
        is_explained=parted_at is None or any(cause.step <= parted_at for cause in causes),
        ruled_out=tuple(finding.text for finding in no_causes if finding.verdict == "ruled out"),
        not_examined=tuple(finding.text for finding in no_causes if finding.verdict == "not examined"),
        clip=evidence.clip,
        clipped_steps=len(clipped_steps(evidence)),
    )


def tolerance(step: int, rounding_ratio: float, limits: CheckLimits = FP32_LIMITS) -> float:
    """Return the allowed difference of a step's losses as a share of the loss. step: counted from 0.

    rounding_ratio: the largest difference up to this step between two runs on one rank that differ only in the order of
    additions. Training at a high rate is chaotic: a difference in the last bit can grow to any size.
    """
    return max(limits.loss + limits.loss_per_step * step, limits.rounding_factor * rounding_ratio)


BF16_LIMITS = CheckLimits(loss=1e-4, loss_per_step=1e-5, gradient=0.12, update=0.15, rounding_factor=5.0)
DIVIDED_LIMITS = replace(BF16_LIMITS, loss=4e-4, gradient=0.2, update=0.45)
"""For strategies that also round the summands of a product or of attention before adding them."""
FP8_LIMITS = replace(BF16_LIMITS, gradient=0.25, update=0.25, rounding_factor=2.5)
"""Measured in 12 steps at a rate of 3e-3, on 2 and 4 ranks compared with one rank with the same weights, as shares of
the loss, of a weight's gradient and of its update. ddp, fsdp, zero1 and gpipe in bf16, bf16_compute and autocast:
1.2e-4, 0.064 and 0.092. Divided summands, in tensor_parallel and ring_attention: 1.8e-4, 0.12 and 0.33. Reading
backwards on one rank: 4e-5, 0.043 and 0.03. fp8: 2.8e-5, 0.15 and 0.14; backwards 1.3e-5, 0.10 and 0.11."""


def limits_of(case: Case) -> CheckLimits:
    """Return the differences that the case's arithmetic may cause."""
    if case.precision == "fp32":
        return FP32_LIMITS
    if is_fp8(case):
        return FP8_LIMITS
    is_divided = case.spec().parity.half_weights_limit > HALF_WEIGHTS_LIMIT
    return DIVIDED_LIMITS if is_divided else BF16_LIMITS


def _mean_loss(ranks: Sequence[StepEvidence]) -> float | None:
    """Return the mean loss over the ranks that compute a loss; None if any of these is not finite.

    A plain mean is correct because these ranks have equally many sequences.
    """
    losses = [rank.loss for rank in ranks if rank.loss is not None]
    return fmean(losses) if losses and all(rank.is_finite for rank in ranks) else None


def _difference_ratio(one_rank: float | None, all_ranks: float | None) -> float | None:
    return None if one_rank is None or all_ranks is None else abs(all_ranks - one_rank) / abs(one_rank)


NOT_IN_CHECKS = (
    "trials",
    "warm_up",
    "trace_steps",
    "keep_traces",
    "trace_every",
    "memory_snapshot",
    "save_every",
    "save_mode",
    "keep_checkpoint",
    "with_baseline",
    "baseline_run",
    "fault_text",
    "with_timeline",
    "is_nightly",
)
"""Parameters of `run` that a check does not accept, because it measures no speed."""

EPOCHS = 4
"""Epochs in a check: several, so that a mistake at the end of an epoch is visible."""

LARGEST_CLIP = 0.1
"""Upper limit of a check's gradient clip, low enough for clipping to take effect and its mistakes to be visible.
Measured: `tiny` has norms of 0.36 to 3.6 in 40 steps at rates up to 3e-2, with and without batch normalisation. A case
without clipping is checked without clipping."""


def refuse_measuring_options(names: Sequence[str]) -> None:
    """Refuse options that apply only to a measurement. names: the options on the command line.

    Raises:
        Misuse: there is such an option.
    """
    if names:
        options = ", ".join(f"--{name}" for name in names)
        raise Misuse(f"--check-convergence compares losses and does not measure speed; leave out {options}")


def check_cases(case: Case, mistakes: Sequence[Mistake]) -> tuple[Case, Case, Case]:
    """Return the cases of a check: one rank, one rank that reads each batch backwards, and the ranks under test.

    mistakes: to inject into the ranks under test.

    Raises:
        Misuse: the case cannot be compared with one rank, or a mistake would have no effect.
    """
    _refuse_incomparable(case)
    check = Check(
        epoch_steps=max(2, case.steps // EPOCHS),
        data_ranks=case.spec().data_ranks(case),
        has_batch_norm=_without_batch_norm(case) is None,
    )
    _refuse_idle_mistakes(case, check, mistakes)
    together = replace(case, trials=1, warm_up=0, trace_steps=0)
    alone = baseline_case(together, "strong")
    return (
        _with_check(alone, check),
        _with_check(alone, replace(check, is_reversed=True)),
        _with_check(together, replace(check, mistakes=tuple(dict.fromkeys(mistakes)))),
    )


def conclude(measured: MeasuredRuns) -> tuple[MeasuredRuns, ConvergenceVerdict | None]:
    """Judge the runs of a check; if several ranks disagree with one, mark their run as failed.

    The verdict is None if a run failed.
    """
    if any(summary.outcome != "done" for summary in measured.summaries):
        return measured, None
    alone, backwards, together = measured.summaries
    verdict = evaluate(
        gather_evidence(
            together.case,
            reference=read_evidence(Path(alone.folder), 0),
            backwards=read_evidence(Path(backwards.folder), 0),
            ranks=[read_evidence(Path(together.folder), rank) for rank in range(together.case.ranks)],
        )
    )
    if verdict.outcome == "disagrees":
        causes = [f"{cause.cause} from step {cause.step}" for cause in verdict.causes]
        causes += [] if verdict.is_explained else ["unknown"]
        parted = "losses still agree" if verdict.parted_at is None else f"losses diverge in step {verdict.parted_at}"
        text = f"does not train as one rank does: {parted}; cause: {', '.join(causes)}"
        cause = FailureCause(kind="error", rank=None, step=verdict.parted_at, text=text)
        together = replace(together, outcome="failed", cause=cause)
    return replace(measured, summaries=(alone, backwards, together)), verdict


def gather_evidence(
    case: Case,
    *,
    reference: Sequence[StepEvidence],
    backwards: Sequence[StepEvidence],
    ranks: Sequence[Sequence[StepEvidence]],
) -> ConvergenceEvidence:
    """Combine the evidence of a check with its ranks' case: shares, learning rates, epochs, clip."""
    check = check_of(case)
    assert check is not None, "it is the case of a check"
    rate, data_ranks = float(case.options["learning_rate"]), check.data_ranks
    positions = (case.spec().data_share(case, rank) for rank in range(case.ranks))
    return ConvergenceEvidence(
        reference=reference,
        backwards=backwards,
        ranks=ranks,
        data_ranks=[None if position is None else position.rank for position in positions],
        learning_rates=[rate * rate_factor(case, data_ranks=data_ranks, step=step) for step in range(case.steps)],
        rule=f"lr_rule={case.options['lr_rule']} over {plural(data_ranks, 'data rank')}",
        epoch_steps=check.epoch_steps,
        clip=float(case.options["clip"]),
        limits=limits_of(case),
    )


def _with_check(case: Case, check: Check) -> Case:
    clip = min(float(case.options["clip"]), LARGEST_CLIP)
    return replace(case, options={**case.options, **check.options(), "clip": clip})


def _refuse_incomparable(case: Case) -> None:
    spec, parity = case.spec(), case.spec().parity
    if case.ranks == 1:
        raise Misuse("--check-convergence compares several ranks with one, but ranks is 1; use --ranks 2 or more")
    if parity.kind == "none":
        raise Misuse(f"{spec.name} cannot be compared with one rank: {parity.reason}; choose another strategy")
    if (reason := spec.incomparable(case)) is not None:
        raise Misuse(f"{spec.name} cannot be compared with one rank: {reason}")
    if case.precision == "fp16":
        raise Misuse(
            "precision is fp16, where one rank and several may skip different steps, whose losses then differ for that"
            " reason alone; use --precision fp32 or bf16"
        )


def _refuse_idle_mistakes(case: Case, check: Check, mistakes: Sequence[Mistake]) -> None:
    unscaled = replace(case, options={**case.options, "lr_rule": "base"})
    with_rule, without_rule = (
        [rate_factor(each, data_ranks=check.data_ranks, step=step) for step in range(case.steps)]
        for each in (case, unscaled)
    )
    if "learning_rate" in mistakes and with_rule == without_rule:
        raise Misuse(
            f"cause learning_rate omits the rule, but lr_rule={case.options['lr_rule']} over"
            f" {plural(check.data_ranks, 'data rank')} changes nothing; add --option lr_rule=linear"
        )
    if "sampler_epoch" in mistakes and case.steps <= check.epoch_steps:
        raise Misuse(
            f"cause sampler_epoch shows after an epoch of {check.epoch_steps} steps, but steps is {case.steps};"
            f" use --steps {check.epoch_steps + 1} or more"
        )
    if "batch_statistics" in mistakes and (reason := _without_batch_norm(case)) is not None:
        raise Misuse(f"cause batch_statistics {reason}")


def _without_batch_norm(case: Case) -> str | None:
    """Return why the model of a check has no batch normalisation; None if it has."""
    axes = case.spec().mesh(case)
    # Data-parallel ranks have equal shares, so the mean of the ranks' means is the batch's mean.
    if not all(axis in DATA_AXES for axis in axes):
        return f"needs a mesh whose axes all divide the batch; {case.strategy} has {', '.join(axes)}"
    if case.backend == "nccl" and case.spec().has_second_communicator(case):
        return (
            f"needs averages over the batch in backward, while {case.strategy} with these options uses a second"
            " communicator; two at once may hang on nccl: use compress=none"
        )
    return None
